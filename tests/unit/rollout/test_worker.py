"""A worker plays without pause: each group is submitted when it is done, and what fails or changes costs no other group."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from parallel import Late, Parallel, collector, question

from rolecast.coordinator.leases import Coordinator
from rolecast.errors import EngineError, RolecastError, StoreError
from rolecast.leasing import Group, Handshake, Lease, TeamVersion, Ticket
from rolecast.ports import Sampling
from rolecast.rollout import worker as module
from rolecast.rollout.collect import Episode
from rolecast.rollout.rollouts import LocalTeam
from rolecast.rollout.worker import Worker
from rolecast.stages.publish import local_rollouts
from rolecast.types import Action, Observation, Thread, Trajectory, Version

HELLO = Handshake("0.1", "config", "bm25 1", "lexical", "renderer", "prompts")
V1, V2 = TeamVersion("run/1.1", ""), TeamVersion("run/1.2", "")


def group(id: str, phase: str = "train", temperature: float = 1.0) -> Group:
    return Group(id, question(), (0, 1), phase, Sampling(temperature))


@dataclass
class Stage:
    """A team whose groups end when they are told to: `ends[id]`; also the coordinator's log of what happened when."""

    ends: dict[str, asyncio.Event] = field(default_factory=dict)
    version: str = ""
    flying: int = 0
    most: int = 0
    fails: Exception | None = None
    log: list[str] = field(default_factory=list)
    then: dict[str, Callable[[], object]] = field(default_factory=dict)  # after a group was submitted
    overlaps: bool = False
    refused: set[str] = field(default_factory=set)  # versions that cannot be loaded
    handshake = HELLO

    @property
    def collector(self) -> Any:
        return self

    def run(self, main: Any) -> Any:
        return asyncio.run(main)

    def load(self, version: TeamVersion) -> None:
        assert self.flying == 0 or self.overlaps, "a version was loaded over groups in flight"
        if version.name in self.refused:
            raise StoreError("the store is away")
        self.version = version.name
        self.log.append(f"load {version.name}")

    def play_group(self, group: Group, ended: Callable[[], None]) -> Any:
        return self._play(group, self.version)

    def begun(self, group: Group) -> list[Trajectory]:
        self.log.append(f"end {group.id}")
        return [replace(self._episode(group, member, self.version)) for member in group.members[:1]]

    async def _play(self, group: Group, version: str) -> list[Trajectory]:
        self.flying += 1
        self.most = max(self.most, self.flying)
        try:
            if group.id in self.ends:
                await asyncio.wait_for(self.ends[group.id].wait(), 3)  # or the test would hang
            if self.fails is not None:
                raise self.fails
        finally:
            self.flying -= 1
        self.log.append(f"play {group.id} {group.phase} {group.sampling.temperature:g}")
        return [self._episode(group, member, version) for member in group.members]

    def _episode(self, group: Group, member: int, version: str) -> Trajectory:
        name = f"{group.id}.{member}"
        turns = [Observation((2,), "q"), Action(f"{name}/t#0", (1,), (0.0,), version, "x", "stop")]
        threads = [Thread(f"{name}/t", "planner", "shared", turns=turns)]
        return Trajectory(name, group.question, group.id, member, "decor", 0, threads=threads)


def staged(*groups: Group, capacity: int = 9, remote: bool = False) -> tuple[Stage, Coordinator, Worker]:
    stage, coordinator = Stage(), Coordinator("run", 1, HELLO)
    coordinator.publish(V1)
    coordinator.add(groups)
    worker = Worker("w", coordinator, stage, capacity, remote)
    complete = coordinator.complete

    def noted(ticket: Ticket, trajectories: Sequence[Trajectory]) -> bool:
        taken = complete(ticket, trajectories)
        id = trajectories[0].group
        stage.log.append(f"take {id}")
        stage.then.pop(id, lambda: None)()
        return taken

    worker.coordinator = _Facade(coordinator, noted)
    return stage, coordinator, worker


@dataclass
class _Facade:
    coordinator: Coordinator
    complete: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.coordinator, name)


def test_a_slow_group_blocks_no_other() -> None:
    stage, coordinator, worker = staged(group("slow"), group("b"), group("c"), group("d"), capacity=2)
    stage.ends["slow"] = asyncio.Event()
    stage.then["d"] = stage.ends["slow"].set  # ends when all others are with the coordinator
    assert worker.work() == 4
    assert [line for line in stage.log if line.startswith("take")] == ["take b", "take c", "take d", "take slow"]
    assert stage.most == 2
    assert set(coordinator.collected()[0]) == {"slow", "b", "c", "d"}


def test_groups_that_are_added_meanwhile_are_played_beside_those_in_flight() -> None:
    stage, coordinator, worker = staged(group("slow"), group("b"))
    stage.ends["slow"] = asyncio.Event()
    stage.then |= {"b": lambda: coordinator.add([group("late")]), "late": stage.ends["slow"].set}
    assert worker.work() == 3


def test_each_group_has_its_own_phase_and_sampling() -> None:
    stage, _, worker = staged(group("a", "train", 1.0), group("b", "eval", 0.0))
    worker.work()
    assert sorted(line for line in stage.log if line.startswith("play")) == ["play a train 1", "play b eval 0"]


def test_a_new_version_is_loaded_when_nothing_older_is_in_flight() -> None:
    stage, coordinator, worker = staged(group("slow"), group("b"))
    coordinator.staleness = 1
    stage.ends["slow"] = asyncio.Event()

    def publish() -> None:
        coordinator.publish(V2)
        coordinator.add([group("new"), group("newer")])
        asyncio.get_running_loop().call_later(0.05, stage.ends["slow"].set)

    stage.then["b"] = publish
    assert worker.work() == 4
    assert stage.log == [
        "load run/1.1", "play b train 1", "take b", "play slow train 1", "take slow",
        "load run/1.2", "play new train 1", "play newer train 1", "take new", "take newer",
    ]  # fmt: skip
    done, _ = coordinator.collected()
    assert {id: t.actions[0].version for id, (t, _) in done.items()} == {
        "slow": "run/1.1", "b": "run/1.1", "new": "run/1.2", "newer": "run/1.2",
    }  # fmt: skip


def test_a_new_version_is_loaded_beside_groups_in_flight_where_they_go_on_with_theirs() -> None:
    stage, coordinator, worker = staged(group("slow"), group("b"))
    coordinator.staleness, stage.overlaps = 1, True
    stage.ends["slow"] = asyncio.Event()
    stage.then |= {"b": lambda: (coordinator.publish(V2), coordinator.add([group("new")])), "new": stage.ends["slow"].set}
    assert worker.work() == 3
    assert [line for line in stage.log if line.startswith(("load", "take"))] == [
        "load run/1.1", "take b", "load run/1.2", "take new", "take slow",
    ]  # fmt: skip
    assert {id: t.actions[0].version for id, (t, _) in coordinator.collected()[0].items()} == {
        "slow": "run/1.1", "b": "run/1.1", "new": "run/1.2",
    }  # fmt: skip


def test_a_version_that_cannot_be_loaded_yet_ends_nothing_that_is_in_flight_and_plays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAP", 0.01)
    stage, coordinator, worker = staged(group("slow"), group("b"), remote=True)
    coordinator.staleness, stage.overlaps, stage.refused = 1, True, {V2.name}
    stage.ends["slow"] = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    stage.run = lambda main: asyncio.run(_with_loop(main, loops))  # type: ignore[method-assign]

    def publish() -> None:
        coordinator.publish(V2)
        coordinator.add([group("new")])
        loops[0].call_soon_threadsafe(loops[0].call_later, 0.05, stage.ends["slow"].set)

    stage.then["b"] = publish
    assert worker.work() == 2
    assert "play new train 1" not in stage.log
    assert set(coordinator.collected()[0]) == {"slow", "b"}
    assert coordinator.waiting == 1


@pytest.mark.parametrize("remote", [False, True])
def test_groups_that_nobody_needs_any_more_are_ended_and_what_they_sampled_is_told(remote: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAP", 0.01)
    stage, coordinator, worker = staged(group("slow"), group("b"), group("later"), capacity=2, remote=remote)
    stage.ends |= {"slow": asyncio.Event(), "later": asyncio.Event()}
    stage.then["b"] = lambda: coordinator.cancel(["slow", "later"])
    assert worker.work() == 2
    assert stage.flying == 0
    assert [line for line in stage.log if line.startswith(("take", "end"))] == ["take b", "end slow"]
    done, abandoned = coordinator.collected()
    assert (set(done), abandoned, coordinator.waiting, coordinator.held) == ({"b"}, {}, 0, 0)
    assert coordinator.counts["cancelled"] == 2
    [(name, sampled)] = coordinator.spent()[0].items()
    assert (name, [t.id for t in sampled]) == ("1/slow/1", ["slow.0"])
    assert coordinator.spent([name]) == ({}, 0)


def test_a_group_that_was_finished_before_its_worker_heard_that_nobody_needs_it_is_counted() -> None:
    stage, coordinator, worker = staged(group("a"), group("b"))
    stage.then["a"] = lambda: coordinator.cancel(["b"])
    worker.work()
    assert set(coordinator.collected()[0]) == {"a"}
    assert [[t.id for t in told] for told in coordinator.spent()[0].values()] == [["b.0", "b.1"]]


def test_an_engine_that_fails_gives_the_groups_back_and_is_raised() -> None:
    stage, coordinator, worker = staged(group("a"), group("b"))
    stage.ends["b"] = asyncio.Event()
    stage.fails = EngineError("no such kernel")
    with pytest.raises(EngineError):
        worker.work()
    assert (coordinator.waiting, coordinator.held) == (2, 0)
    assert stage.flying == 0


def test_a_worker_that_is_told_to_end_ends_what_it_has_and_leases_no_more() -> None:
    stage, coordinator, worker = staged(group("a"), group("b"), group("c"), capacity=2)
    told = False

    def tell() -> None:
        nonlocal told
        told = True

    worker.stopping = lambda: told
    stage.then["a"] = tell
    assert worker.work() == 2
    assert (coordinator.waiting, coordinator.held) == (1, 0)
    assert worker.work() == 0
    assert (coordinator.waiting, coordinator.held) == (1, 0)


def test_what_does_not_end_in_time_is_given_back_and_costs_the_group_no_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAP", 0.01)
    stage, coordinator, worker = staged(group("slow"), group("b"), remote=True)
    coordinator.tries = 1
    stage.ends["slow"] = asyncio.Event()
    told = False

    def tell() -> None:
        nonlocal told
        told = True
        assert worker.holds

    worker.stopping = worker.overdue = lambda: told
    stage.then["b"] = tell
    assert worker.work() == 1
    assert stage.flying == worker.holds == coordinator.held == 0
    assert coordinator.waiting == 1, "the group is not abandoned"
    assert set(coordinator.collected()[0]) == {"b"}


def test_a_coordinator_that_is_away_for_a_while_gets_the_group_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAP", 0.01)
    stage, coordinator, worker = staged(group("slow"), group("b"), remote=True)
    stage.ends["slow"] = asyncio.Event()
    complete, away, threads = worker.coordinator.complete, 2, set()

    def flaky(*arguments: Any) -> bool:
        nonlocal away
        threads.add(threading.current_thread())
        if away:
            away -= 1
            raise RolecastError("the coordinator does not answer")
        return bool(complete(*arguments))

    worker.coordinator.complete = flaky  # type: ignore[method-assign]
    loops: list[asyncio.AbstractEventLoop] = []
    stage.run = lambda main: asyncio.run(_with_loop(main, loops))  # type: ignore[method-assign]
    stage.then["b"] = lambda: loops[0].call_soon_threadsafe(stage.ends["slow"].set)
    assert worker.work() == 2
    assert coordinator.counts["accepted"] == 2
    assert threading.current_thread() not in threads  # episodes go on while it is asked


async def _with_loop(main: Any, loops: list[asyncio.AbstractEventLoop]) -> Any:
    loops.append(asyncio.get_running_loop())
    return await main


def test_every_group_is_counted_when_it_is_submitted() -> None:
    _, _, worker = staged(group("a"), group("b"))
    counted: list[int] = []
    worker.submitted = lambda: counted.append(1)
    worker.work()
    assert len(counted) == 2


def test_without_groups_none_is_played() -> None:
    stage, _, worker = staged()
    assert worker.work() == 0
    assert stage.log == []


def test_a_worker_that_is_full_asks_for_no_more() -> None:
    stage, coordinator, worker = staged(group("slow"), group("b"), group("c"), capacity=2)
    stage.ends["slow"] = asyncio.Event()
    stage.then["c"] = stage.ends["slow"].set
    rooms: list[int] = []

    class Noting(_Facade):
        def lease(self, worker: str, handshake: Handshake, capacity: int) -> list[Lease]:
            rooms.append(capacity)
            return self.coordinator.lease(worker, handshake, capacity)

    worker.coordinator = Noting(coordinator, worker.coordinator.complete)
    assert worker.work() == 3
    assert rooms == [2, 1, 1, 2]  # at its start, after b, after c, and with nothing in flight


def test_a_coordinator_that_is_away_while_groups_play_is_not_a_line_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "NAP", 0.005)
    stage, coordinator, worker = staged(group("slow"), group("b"), remote=True)
    stage.ends["slow"] = asyncio.Event()
    complete, lease, tries = worker.coordinator.complete, coordinator.lease, [0]

    def away(*arguments: Any) -> bool:
        tries[0] += 1
        if tries[0] <= 20:
            raise RolecastError("the coordinator does not answer")
        stage.ends["slow"].set()
        return bool(complete(*arguments))

    def nothing_more(*arguments: Any) -> list[Lease]:
        if worker.holds:
            raise RolecastError("the coordinator does not answer")
        return lease(*arguments)

    worker.coordinator.complete = away  # type: ignore[method-assign]
    worker.coordinator.lease = nothing_more  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO, logger=module.log.name):
        assert worker.work() == 2
    assert tries[0] > 20
    assert [record.message for record in caplog.records if record.name == module.log.name] == [
        "no more groups: the coordinator does not answer", "1 groups that are played are kept: the coordinator does not answer",
        "no more groups: the coordinator does not answer",
    ]  # fmt: skip


@pytest.mark.parametrize("taken", [True, False])
def test_a_group_that_was_taken_already_is_logged(caplog: pytest.LogCaptureFixture, taken: bool) -> None:
    _, coordinator, worker = staged(group("a"))
    worker.coordinator = _Facade(coordinator, lambda ticket, trajectories: taken)
    with caplog.at_level(logging.INFO):
        worker.work()
    assert ("the group was taken already" in caplog.text) == (not taken)


# The real collector


def groups_of(late: int) -> dict[str, list[Trajectory]]:
    """Three groups, of two phases and temperatures, by one worker in lockstep."""
    made = collector(Parallel(), Late(late), in_flight=4)
    coordinator = Coordinator("run", 1, HELLO)
    coordinator.publish(V1)
    coordinator.add([group("a"), group("b", "eval", 0.0), group("c", "train", 0.5)])
    assert Worker("w", coordinator, LocalTeam(made, HELLO), 10**9, remote=False).work() == 3
    return coordinator.collected()[0]


def test_in_one_process_and_in_lockstep_groups_repeat_bit_for_bit() -> None:
    once, again = groups_of(1), groups_of(2)
    assert once == again
    assert not any(t.fault for group in once.values() for t in group)
    assert {action.version for group in once.values() for t in group for action in t.actions} == {"run/1.1"}


def test_an_engine_that_fails_ends_a_local_run_with_its_error() -> None:
    made = collector(Parallel(), Late())
    rollouts = local_rollouts(made, "run", HELLO)
    rollouts.publish(Version("run", 0, 1))
    made.engine._drain = lambda: 1 / 0  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match="ZeroDivisionError"):
        rollouts.collect([Episode(question(), "0:q", member) for member in range(2)], Sampling(), "train")


def test_a_group_that_the_coordinator_cannot_read_is_given_back_and_not_played_for_ever() -> None:
    stage, coordinator, worker = staged(group("a"), group("b"))
    spoiled, stage.version = stage._episode, ""

    def nameless(group: Group, member: int, version: str) -> Trajectory:
        t = spoiled(group, member, version)
        return replace(t, threads=[]) if group.id == "a" and member == 1 else replace(t, id="x") if group.id == "a" else t

    stage._episode = nameless  # type: ignore[method-assign]
    worker.work()
    done, abandoned = coordinator.collected()
    assert set(done) == {"b"}
    assert set(abandoned) == {"a"}


@pytest.mark.parametrize("in_flight", [2, 12])
def test_every_token_that_was_sampled_is_of_a_group_that_was_taken_or_of_one_that_was_cancelled(in_flight: int) -> None:
    made = collector(Parallel(), Late(1), in_flight=in_flight, lockstep=False)
    made.lockstep = False
    rollouts = local_rollouts(made, "run", HELLO)
    rollouts.publish(Version("run", 1, 1))
    episodes = [Episode(question(number), f"0:q{number}", member) for number in range(6) for member in range(2)]
    taken: list[Trajectory] = []

    def take(group: Sequence[Trajectory]) -> list[Episode] | None:
        taken.extend(group)
        return None if len(taken) >= 4 else []

    cancelled = rollouts.stream(episodes, Sampling(1.0), "train", take)
    spent = rollouts.spent()
    assert cancelled == 6 - len({t.group for t in taken}) > 0
    assert {t.group for t in spent} & {t.group for t in taken} == set()
    assert sum(len(action.ids) for t in (*taken, *spent) for action in t.actions) == made.engine.generated  # type: ignore[attr-defined]
    cut = [action for t in spent for action in t.actions if not action.logprobs]
    assert cut
    assert not any(action.valid for action in cut)
    assert made.engine.branches == 0
