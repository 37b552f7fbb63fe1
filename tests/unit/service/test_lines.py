"""Requests under way have a connection each, no more are made than are needed, and none is lost."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import httpx
import pytest

from rolecast.service.lines import IDLE, Lines


def lines(count: int, clock: Callable[[], float] = lambda: 0.0) -> tuple[Lines, list[httpx.AsyncClient], list[ssl.SSLContext]]:
    made: list[httpx.AsyncClient] = []
    read: list[ssl.SSLContext] = []

    def connect(certificates: ssl.SSLContext) -> httpx.AsyncClient:
        read.append(certificates)
        made.append(httpx.AsyncClient(transport=httpx.MockTransport(lambda request: httpx.Response(200)), verify=certificates))
        return made[-1]

    return Lines(count, connect, clock), made, read


def test_as_many_are_under_way_as_there_are_lines() -> None:
    own, made, read = lines(3)
    at_once: list[int] = []
    held: set[httpx.AsyncClient] = set()

    async def request() -> None:
        async with own.turn() as line:
            assert line not in held
            held.add(line)
            at_once.append(len(held))
            await asyncio.sleep(0.001)
            held.remove(line)

    async def run() -> None:
        await asyncio.gather(*(request() for _ in range(20)))

    asyncio.run(run())
    assert max(at_once) == 3
    assert len(made) == 3
    assert len({*map(id, read)}) == 1  # certificates are read once


def test_few_requests_need_few_lines_and_the_last_one_is_used_again() -> None:
    own, made, _ = lines(100)

    async def run() -> None:
        for _ in range(5):
            async with own.turn() as line:
                assert line is made[0]
        async with own.turn() as one, own.turn() as other:
            assert [one, other] == made
        async with own.turn() as line:  # `one`, which was given back last
            assert line is made[0]

    asyncio.run(run())
    assert len(made) == 2


def test_a_line_comes_back_from_a_request_that_fails_or_is_cancelled() -> None:
    own, _, _ = lines(1)

    async def stuck() -> None:
        async with own.turn():
            await asyncio.Event().wait()

    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            async with own.turn():
                raise ZeroDivisionError
        task = asyncio.create_task(stuck())
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with own.turn(0.01):
                pass
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with own.turn(0.01):
            pass

    asyncio.run(run())


def test_another_loop_has_lines_of_its_own_and_close_ends_them() -> None:
    own, made, _ = lines(2)

    async def run() -> None:
        async with own.turn() as line:
            assert line is made[-1]
        await own.close()
        assert line.is_closed
        async with own.turn() as again:
            assert not again.is_closed

    asyncio.run(run())
    asyncio.run(run())
    assert len(made) == 4
    asyncio.run(own.close())  # of a loop that has ended: nothing to end here
    assert not made[-1].is_closed


def test_lines_of_a_burst_are_ended_when_nobody_takes_them() -> None:
    """A server ends its side after a while, and a socket that nobody ends stays."""
    now = [0.0]
    own, made, _ = lines(8, lambda: now[0])

    async def request() -> None:
        async with own.turn():
            await asyncio.sleep(0)

    async def run() -> None:
        await asyncio.gather(*(request() for _ in range(8)))
        assert len(made) == 8
        for _ in range(4):
            now[0] += IDLE / 2
            await request()
        assert [line.is_closed for line in made].count(False) == 1
        assert len(made) == 8  # the one that is used stays

    asyncio.run(run())


def test_what_is_in_use_at_the_close_ends_when_it_is_given_back() -> None:
    own, made, _ = lines(1)
    seen: list[str] = []

    async def request(name: str) -> None:
        async with own.turn() as line:
            assert not line.is_closed
            await asyncio.sleep(0.001)
            assert (await line.get("http://here")).status_code == 200
            seen.append(name)

    async def run() -> None:
        tasks = [asyncio.create_task(request(name)) for name in ("in use", "waits")]
        await asyncio.sleep(0)
        await own.close()
        tasks.append(asyncio.create_task(request("later")))
        await asyncio.gather(*tasks)
        assert {*seen} == {"in use", "waits", "later"}
        await own.close()
        assert all(line.is_closed for line in made)

    asyncio.run(run())
