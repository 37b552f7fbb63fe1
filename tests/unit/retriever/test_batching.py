"""Micro-batching: what is searched together, in which order, and whose fault is whose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from rolecast.errors import InputError
from rolecast.loops import LoopThread
from rolecast.retriever.batching import Batcher
from rolecast.service.errors import Overloaded
from rolecast.types import Passage


class Slow:
    """Finds the query itself, k times; notes every search, and takes its time."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.searches: list[tuple[list[str], int]] = []

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.searches.append((list(queries), k))
        await asyncio.sleep(self.seconds)
        for query in queries:
            if query.startswith("bad"):
                raise InputError(query)
        return [[Passage(f"{query}/{n}", "", query) for n in range(k)] for query in queries]

    @property
    def sizes(self) -> list[int]:
        return [len(queries) for queries, _ in self.searches]


@pytest.fixture
def worker() -> Iterator[LoopThread]:
    worker = LoopThread("test")
    yield worker
    worker.stop()


def batched(worker: LoopThread, slow: Slow, play: Callable[[Batcher], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    async def run() -> Any:
        batcher = Batcher(lambda queries, k: worker.run(slow.search(queries, k)), **options)
        batcher.start()
        try:
            return await asyncio.wait_for(play(batcher), 10)
        finally:
            await batcher.stop()

    return asyncio.run(run())


def ids(results: list[list[Passage]]) -> list[list[str]]:
    return [[p.id for p in found] for found in results]


def test_what_arrives_together_is_searched_together(worker: LoopThread) -> None:
    slow, sizes = Slow(), list[int]()

    async def play(batcher: Batcher) -> Any:
        return await asyncio.gather(*(batcher.search([f"q{n}"], 2) for n in range(10)))

    found = batched(worker, slow, play, wait=0.05, observe=sizes.append)
    assert [ids(results) for results in found] == [[[f"q{n}/0", f"q{n}/1"]] for n in range(10)]
    assert slow.sizes == sizes == [10]


def test_what_arrives_within_the_window_is_searched_together(worker: LoopThread) -> None:
    slow = Slow()

    async def play(batcher: Batcher) -> Any:
        asked = []
        for n in range(4):
            asked.append(asyncio.create_task(batcher.search([f"q{n}"], 1)))
            await asyncio.sleep(0.01)
        return await asyncio.gather(*asked)

    batched(worker, slow, play, wait=0.5)
    assert slow.sizes == [4]


def test_what_arrives_during_a_search_makes_the_next_batch_at_once(worker: LoopThread) -> None:
    slow = Slow(0.1)

    async def play(batcher: Batcher) -> float:
        first = asyncio.create_task(batcher.search(["first"], 1))
        await asyncio.sleep(0.55)  # it has waited for company, and is being searched
        begun = asyncio.get_running_loop().time()
        await asyncio.gather(first, *(batcher.search([f"q{n}"], 1) for n in range(5)))
        return asyncio.get_running_loop().time() - begun

    assert batched(worker, slow, play, wait=0.5) < 0.45  # what is left of one search, and another; no second wait
    assert slow.sizes == [1, 5]


def test_a_batch_is_bounded(worker: LoopThread) -> None:
    slow = Slow()

    async def play(batcher: Batcher) -> Any:
        return await batcher.search([f"q{n}" for n in range(10)], 1)

    assert ids(batched(worker, slow, play, most=4)) == [[f"q{n}/0"] for n in range(10)]
    assert slow.sizes == [4, 4, 2]


def test_a_full_batch_does_not_wait(worker: LoopThread) -> None:
    async def play(batcher: Batcher) -> Any:
        return await batcher.search(["a", "b"], 1)

    batched(worker, Slow(), play, most=2, wait=60.0)  # would time out


def test_a_long_list_delays_others_by_one_batch(worker: LoopThread) -> None:
    slow = Slow(0.01)

    async def play(batcher: Batcher) -> list[str]:
        order: list[str] = []

        async def ask(name: str, count: int) -> None:
            await batcher.search([f"{name}{n}" for n in range(count)], 1)
            order.append(name)

        long = asyncio.create_task(ask("long", 100))
        await asyncio.sleep(0.02)
        await asyncio.gather(long, ask("short", 1), ask("other", 2))
        return order

    assert batched(worker, slow, play, most=8, wait=0.0)[:2] == ["short", "other"]
    assert max(slow.sizes) == 8


def test_each_k_is_searched_as_it_was_asked(worker: LoopThread) -> None:
    slow = Slow()

    async def play(batcher: Batcher) -> Any:
        return await asyncio.gather(*(batcher.search([f"q{k}"], k) for k in (1, 3, 1, 2)))

    assert [len(results[0]) for results in batched(worker, slow, play, wait=0.05)] == [1, 3, 1, 2]
    assert sorted(slow.searches) == [(["q1", "q1"], 1), (["q2"], 2), (["q3"], 3)]


def test_an_error_is_its_own_requests_alone(worker: LoopThread) -> None:
    async def play(batcher: Batcher) -> Any:
        requests = [["a"], ["bad1"], ["b", "c"], ["d", "bad2"], ["e"]]
        return await asyncio.gather(*(batcher.search(queries, 1) for queries in requests), return_exceptions=True)

    a, bad1, bc, bad2, e = batched(worker, Slow(), play, wait=0.05)
    assert [ids(good) for good in (a, bc, e)] == [[["a/0"]], [["b/0"], ["c/0"]], [["e/0"]]]
    assert (str(bad1), str(bad2)) == ("bad1", "bad2")
    assert isinstance(bad1, InputError)


def test_an_error_of_another_kind_is_everyones_and_is_not_met_again_for_each(worker: LoopThread) -> None:
    slow = Slow()

    async def play(batcher: Batcher) -> Any:
        return await asyncio.gather(*(batcher.search([query], 1) for query in ("a", "bad", "b")), return_exceptions=True)

    found = batched(worker, slow, play, wait=0.05, isolated=KeyError)
    assert [str(error) for error in found] == ["bad"] * 3
    assert slow.sizes == [3]


def test_it_goes_on_after_an_error(worker: LoopThread) -> None:
    async def play(batcher: Batcher) -> Any:
        with pytest.raises(InputError):
            await batcher.search(["bad"] * 200, 1)
        return await batcher.search(["good"], 1)

    assert ids(batched(worker, Slow(), play)) == [["good/0"]]


def test_who_has_gone_is_not_searched_for(worker: LoopThread) -> None:
    slow = Slow(0.05)

    async def play(batcher: Batcher) -> Any:
        first = asyncio.create_task(batcher.search(["first"], 1))
        await asyncio.sleep(0.02)
        gone = asyncio.create_task(batcher.search(["gone"] * 5, 1))
        await asyncio.sleep(0)
        gone.cancel()
        await first
        return await batcher.search(["last"], 1)

    assert ids(batched(worker, slow, play, wait=0.0)) == [["last/0"]]
    assert [query for queries, _ in slow.searches for query in queries] == ["first", "last"]


def test_too_many_waiting_are_turned_away_and_room_comes_back(worker: LoopThread) -> None:
    async def play(batcher: Batcher) -> Any:
        taken = asyncio.create_task(batcher.search(["a"] * 8, 1))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await batcher.search(["b"] * 3, 1)
        await taken
        for _ in range(5):
            await batcher.search(["c"] * 10, 1)
        for _ in range(3):
            with pytest.raises(InputError):
                await batcher.search(["bad"] * 10, 1)
        return await batcher.search(["c"] * 10, 1)

    assert len(batched(worker, Slow(), play, most=2, wait=0.0, pending=10)) == 10


def test_no_query_needs_no_search(worker: LoopThread) -> None:
    slow = Slow()
    assert batched(worker, slow, lambda batcher: batcher.search([], 3)) == []
    assert slow.searches == []


def test_the_event_loop_is_free_while_the_index_computes(worker: LoopThread) -> None:
    import time

    async def play(batcher: Batcher) -> int:
        ticks = 0
        busy = asyncio.create_task(worker.call(lambda: time.sleep(0.3)))
        while not busy.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert batched(worker, Slow(), play) > 10
