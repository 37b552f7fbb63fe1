"""What goes to a loop in another thread, and comes back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from rolecast.loops import LoopThread, OwnLoop

WHOSE: ContextVar[str] = ContextVar("whose", default="nobody's")


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.stop()


async def doubled(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def failing() -> None:
    raise KeyError("lost")


def test_each_gets_its_own_result(thread: LoopThread) -> None:
    async def ask() -> list[int]:
        return await asyncio.gather(*(thread.begin(doubled(number)) for number in range(500)))

    assert asyncio.run(ask()) == list(range(0, 1000, 2))
    assert asyncio.run(ask()) == list(range(0, 1000, 2)), "from another loop"


def test_many_threads_ask_at_once(thread: LoopThread) -> None:
    found: dict[int, list[int]] = {}

    async def ask(caller: int) -> None:
        for number in range(200):
            found.setdefault(caller, []).append(await thread.run(doubled(number)))

    callers = [threading.Thread(target=lambda caller=caller: asyncio.run(ask(caller)), daemon=True) for caller in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert [found[caller] for caller in range(8)] == [list(range(0, 400, 2))] * 8


def test_an_error_is_the_caller_s_and_the_others_go_on(thread: LoopThread) -> None:
    async def ask() -> list[Any]:
        return await asyncio.gather(thread.begin(failing()), thread.begin(doubled(1)), return_exceptions=True)

    error, other = asyncio.run(ask())
    assert isinstance(error, KeyError)
    assert other == 2


@pytest.mark.parametrize("begun", [True, False])
def test_to_cancel_the_result_cancels_the_work(thread: LoopThread, begun: bool) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def ask() -> None:
        result = thread.begin(work())
        await asyncio.sleep(0.1 if begun else 0)
        result.cancel()
        with pytest.raises(asyncio.CancelledError):
            await result
        await thread.run(asyncio.sleep(0.05))  # type: ignore[arg-type]

    began = time.monotonic()
    asyncio.run(ask())
    assert time.monotonic() - began < 30
    assert ended in (["cancelled"], [] if not begun else ["cancelled"])
    assert not [task for task in asyncio.all_tasks(thread._loop) if not task.done()]


def test_work_that_is_cancelled_cancels_the_result(thread: LoopThread) -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    async def ask() -> None:
        with pytest.raises(asyncio.CancelledError):
            await thread.begin(work())

    asyncio.run(ask())


def test_work_knows_whose_it_is(thread: LoopThread) -> None:
    async def asked() -> str:
        return WHOSE.get()

    busy = threading.Event()

    async def block() -> str:
        busy.wait(10)
        return WHOSE.get()

    async def ask() -> list[str]:
        begun = [thread.begin(block())]
        for name in ("a's", "b's"):
            WHOSE.set(name)
            begun.append(thread.begin(asked()))  # which go together
        busy.set()
        return await asyncio.gather(*begun)

    assert asyncio.run(ask()) == ["nobody's", "a's", "b's"]


def test_a_result_that_comes_after_all_harms_nobody(thread: LoopThread) -> None:
    """Work that does not let itself be cancelled answers somebody who has gone."""
    busy = threading.Event()

    async def stubborn() -> int:
        busy.wait(10)
        return 1

    async def ask() -> int:
        unwanted, wanted = thread.begin(stubborn()), thread.begin(doubled(2))
        await asyncio.sleep(0.1)
        unwanted.cancel()
        busy.set()
        return await asyncio.wait_for(wanted, 10)

    faults: list[object] = []

    async def watched() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
        return await ask()

    assert asyncio.run(watched()) == 4
    assert not faults


def test_a_caller_that_has_gone_harms_nobody(thread: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    async def late() -> int:
        await asyncio.sleep(0.1)
        return 1

    async def ask() -> None:
        thread.begin(late())

    asyncio.run(ask())  # its loop is closed before there is a result
    assert thread.wait(doubled(2)) == 4
    time.sleep(0.2)
    assert thread.wait(doubled(3)) == 6
    assert not caplog.records


def test_what_comes_together_wakes_a_loop_once(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[object] = []
    wake = thread._loop.call_soon_threadsafe
    monkeypatch.setattr(thread._loop, "call_soon_threadsafe", lambda *given, **named: (woken.append(given), wake(*given, **named))[1])
    busy = threading.Event()

    async def block() -> None:
        busy.wait(10)

    async def ask() -> None:
        first = thread.begin(block())
        await asyncio.sleep(0.1)  # the other thread is at it
        before = len(woken)
        rest = [thread.begin(doubled(number)) for number in range(100)]
        assert len(woken) == before + 1
        busy.set()
        await asyncio.gather(first, *rest)

    asyncio.run(ask())


def test_an_own_loop_is_asked_from_within_and_from_other_threads() -> None:
    home = OwnLoop()
    loops: list[object] = []

    async def where() -> object:
        loops.append(asyncio.get_running_loop())
        return loops[-1]

    async def play() -> list[object]:
        return [await home.begin(where()), await home.run(where()), await asyncio.to_thread(home.wait, where())]

    assert home.wait(where()) is home.runner.get_loop()
    home.wait(play())
    assert home.runner.run(play()) == [home.runner.get_loop()] * 3
    assert len(set(loops)) == 1
    home.runner.close()
