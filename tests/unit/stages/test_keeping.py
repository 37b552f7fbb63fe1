"""Episodes that are kept as they end: which begin when, and what a file of them still holds after a kill."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

import pytest

from rolecast.rollout.collect import Tell
from rolecast.rollout.scheduler import Lanes
from rolecast.stages.keeping import each, mended


class Lockstep:
    """Stands where an engine would. `batches`: who waited each time that all did."""

    def __init__(self) -> None:
        self.branches = 0
        self.waiting: list[tuple[int, asyncio.Future[None]]] = []
        self.batches: list[list[int]] = []

    async def __aenter__(self) -> Self:
        self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._driver.cancel()

    async def ask(self, who: int) -> None:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((who, future))
        await future

    async def _drive(self) -> None:
        while True:
            await asyncio.sleep(0)
            if 0 < self.branches == len(self.waiting):
                self.batches.append(sorted(who for who, _ in self.waiting))
                for _, future in self.waiting:
                    future.set_result(None)
                self.waiting = []


def batches(turns: list[int], in_flight: int, at_once: int | None) -> list[list[int]]:
    """Of episodes that take so many turns each; None plays all of them at once."""
    engine = Lockstep()

    def job(who: int, ended: Tell) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            for _ in range(turns[who]):
                await engine.ask(who)
            ended()

        return run

    async def main() -> None:
        async with engine:
            lanes = Lanes(engine, in_flight)

            async def play(who: int, ended: Tell) -> None:
                await lanes.all([job(who, ended)])

            if at_once is None:
                await lanes.all([job(who, lambda: None) for who in range(len(turns))])
            else:
                await each(range(len(turns)), play, at_once, lambda: False)

    asyncio.run(main())
    return engine.batches


@pytest.mark.parametrize("shortest", [0, 1])
def test_lockstep_takes_the_batches_that_it_takes_of_all_at_once(shortest: int) -> None:
    """Else a lane stands empty whenever the next is begun too late, and the last bits are others than those of all at once."""
    for seed in range(20):
        draw = random.Random(seed)
        turns, lanes = [draw.randint(shortest, 3) for _ in range(40)], draw.randint(2, 8)
        assert batches(turns, lanes, 2 * lanes) == batches(turns, lanes, None)


def test_no_more_are_live_than_are_let_and_one_that_does_not_tell_is_followed() -> None:
    live, most, done = 0, 0, []

    async def play(item: int, ended: Tell) -> None:
        nonlocal live, most
        live += 1
        most = max(most, live)
        await asyncio.sleep(0)
        live -= 1
        done.append(item)
        if item % 2:
            ended()
            ended()  # told twice, one begins

    asyncio.run(each(range(20), play, 3, lambda: False))
    assert (sorted(done), most) == (list(range(20)), 3)


def test_nothing_begins_after_one_that_failed() -> None:
    """An engine that is gone is gone for what comes after too."""
    begun: list[int] = []

    async def play(item: int, ended: Tell) -> None:
        begun.append(item)
        if item == 1:
            raise ValueError("gone")

    with pytest.raises(ValueError, match="gone"):
        asyncio.run(each(range(99), play, 2, lambda: False))
    assert begun == [0, 1, 2]


def test_the_first_exception_ends_the_others_and_nothing_more_begins() -> None:
    begun, cancelled = [], []

    async def play(item: int, ended: Tell) -> None:
        begun.append(item)
        if item == 2:
            raise ValueError("gone")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(item)
            raise

    with pytest.raises(ValueError, match="gone"):
        asyncio.run(each(range(9), play, 4, lambda: False))
    assert (begun, sorted(cancelled)) == ([0, 1, 2, 3], [0, 1, 3])


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_of_two_that_fail_at_once_one_is_raised_and_nobody_complains_of_the_other(caplog: pytest.LogCaptureFixture) -> None:
    async def play(item: int, ended: Tell) -> None:
        raise ValueError(f"{item} is gone")

    gc.collect()  # what tests before this one left
    caplog.clear()
    with pytest.raises(ValueError, match="is gone"):
        asyncio.run(each(range(9), play, 4, lambda: False))
    gc.collect()
    assert caplog.messages == []


def test_nothing_begins_once_all_is_spent() -> None:
    done: list[int] = []

    async def play(item: int, ended: Tell) -> None:
        done.append(item)

    asyncio.run(each(range(9), play, 1, lambda: len(done) >= 4))
    assert done == [0, 1, 2, 3]


def test_what_a_file_keeps_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that goes down after the rename would else leave an empty file of all that was paid for."""
    file, order = tmp_path / "played.jsonl", list[str]()
    rows = [{"at": 0, "fault": ""}, {"at": 1, "fault": "away"}, {"at": 0, "fault": ""}, {"at": 2, "fault": ""}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"at": 3')
    sync, replace = os.fsync, os.replace

    def watched_sync(handle: int) -> None:
        order.append("sync")
        sync(handle)

    def watched_replace(old: Path, new: Path) -> None:
        order.append("rename")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "replace", watched_replace)
    assert mended(file, lambda row: row["at"]) == {0, 2}
    assert [json.loads(line)["at"] for line in file.open()] == [0, 2]
    assert order == ["sync", "rename"]
    assert [path.name for path in tmp_path.iterdir()] == ["played.jsonl"]
