"""Groups from learner to worker and back, with a worker that is scripted."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rolecast.coordinator.leases import Coordinator
from rolecast.errors import RolecastError, StoreError
from rolecast.leasing import Group, Handshake, Refused, TeamVersion
from rolecast.ports import Sampling
from rolecast.rollout.collect import Episode
from rolecast.rollout.rollouts import Rollouts
from rolecast.rollout.worker import Worker
from rolecast.types import Action, Gold, Observation, Question, Thread, Trajectory, Version
from rolecast.weights.versions import CanaryError

HELLO = Handshake("0.1", "config", "bm25 1", "lexical", "renderer", "prompts")
EPISODES = [Episode(Question(f"q{i}", "Q?", Gold(("a",))), f"0.0:q{i}", member) for i in range(3) for member in range(2)]


class Team:
    """Plays by saying which version plays."""

    handshake = HELLO
    overlaps = False

    def __init__(self) -> None:
        self.version = ""
        self.calls: list[tuple[str, Sampling, str]] = []
        self.collector: Any = SimpleNamespace(play_group=self._play, run=asyncio.run)
        self.fault: RolecastError | None = None
        self.pause = threading.Event()
        self.pause.set()

    def load(self, version: TeamVersion) -> None:
        if self.fault is not None:
            raise self.fault
        self.version = version.name

    async def _play(self, group: Group, ended: Callable[[], None]) -> list[Trajectory]:
        while not self.pause.is_set():
            await asyncio.sleep(0.01)
        self.calls.append((group.id, group.sampling, group.phase))
        done = []
        for member in group.members:
            name = f"{group.id}.{member}"
            action = Action(f"{name}/a0", (1,), (0.0,), self.version, "x", "stop")
            threads = [Thread(f"{name}#0", "planner", "shared", turns=[Observation((2,), "q"), action])]
            done.append(Trajectory(name, group.question, group.id, member, "decor", 0, threads=threads))
            ended()
        return done


def connected(capacity: int = 100, tries: int = 3, staleness: int = 0) -> tuple[Rollouts, Coordinator, Team, Worker]:
    team, coordinator = Team(), Coordinator("run", 1, HELLO, tries=tries, staleness=staleness)
    worker = Worker("w", coordinator, team, capacity, remote=False)
    rollouts = Rollouts(SimpleNamespace(name="decor"), coordinator, worker.work)  # type: ignore[arg-type]
    rollouts.publish(Version("run", 1, 7))
    return rollouts, coordinator, team, worker


@pytest.mark.parametrize("capacity", [1, 2, 100])
def test_trajectories_come_back_in_order_by_the_published_version(capacity: int) -> None:
    rollouts, _, team, _ = connected(capacity)
    told: list[int] = []
    done = rollouts.collect(EPISODES, Sampling(0.5), "train", told.append)
    assert [(t.group, t.member) for t in done] == [(e.group, e.member) for e in EPISODES]
    assert {action.version for t in done for action in t.actions} == {"run/1.7"}
    assert {call[1:] for call in team.calls} == {(Sampling(0.5), "train")}
    assert [call[0] for call in team.calls] == ["0.0:q0", "0.0:q1", "0.0:q2"]
    assert told == [1, 2, 3, 4, 5, 6]


def test_when_every_episode_failed_the_fault_is_named_and_some_are_told(caplog: pytest.LogCaptureFixture) -> None:
    rollouts, _, team, _ = connected()
    play, failing = team.collector.play_group, {"0.0:q1"}

    async def spoiled(group: Group, ended: Callable[[], None]) -> list[Trajectory]:
        done: list[Trajectory] = await play(group, ended)
        for t in done if group.id in failing else ():
            t.status, t.fault = "error", f"OSError: {t.id}"
        return done

    team.collector.play_group = spoiled
    assert len(rollouts.collect(EPISODES, Sampling(), "train")) == 6
    assert "2 of 6 episodes failed; the last of OSError: 0.0:q1.1" in caplog.text
    failing |= {"0.0:q0", "0.0:q2"}
    with pytest.raises(RolecastError, match=r"every episode failed, the last one of OSError: 0.0:q2.1"):
        rollouts.collect(EPISODES, Sampling(), "train")


def test_the_same_groups_may_be_collected_again_later() -> None:
    rollouts, _, _, _ = connected()
    for _ in range(2):  # dev questions, at every evaluation
        assert len(rollouts.collect(EPISODES, Sampling(0.0), "eval")) == 6


def test_abandoned_groups_are_missing_and_told(caplog: pytest.LogCaptureFixture) -> None:
    rollouts, coordinator, team, worker = connected(capacity=1, tries=1)
    turns = iter([False, True, True])

    def work(progress: Callable[[int], None]) -> None:
        if next(turns):
            worker.work(progress)
        else:
            [lease] = coordinator.lease("gone", HELLO, 1)
            coordinator.fail(lease, "out of memory")

    rollouts.work = work
    done = rollouts.collect(EPISODES, Sampling(), "train")
    assert [t.group for t in done] == ["0.0:q1"] * 2 + ["0.0:q2"] * 2
    assert "1 of 3 groups were abandoned; the last: worker gone: out of memory" in caplog.text
    assert len(team.calls) == 2


def test_a_step_without_any_group_is_an_error() -> None:
    rollouts, coordinator, _, _ = connected(tries=1)
    rollouts.work = lambda progress: [coordinator.fail(lease, "no") for lease in coordinator.lease("w", HELLO, 9)]
    with pytest.raises(RolecastError, match="every group was abandoned"):
        rollouts.collect(EPISODES, Sampling(), "train")


def test_a_worker_that_cannot_load_gives_its_leases_back_with_the_version() -> None:
    rollouts, coordinator, team, worker = connected()
    team.fault = CanaryError("version run/1.7: log-probs differ")
    coordinator.lease("sound", HELLO, 0)
    rollouts.control.add(rollout_groups())
    assert worker.work() == 0
    with pytest.raises(Refused, match="quarantined"):
        worker.work()
    assert coordinator.waiting == 3


def test_a_worker_whose_store_is_away_gives_its_leases_back_and_is_not_quarantined() -> None:
    rollouts, coordinator, team, worker = connected(tries=1)
    team.fault = StoreError("s3://b: http://s3 cannot be reached")
    rollouts.control.add(rollout_groups())
    for _ in range(3):
        assert worker.work() == 0
        assert coordinator.collected() == ({}, {})
    team.fault = None
    assert worker.work() == 3


def test_heartbeats_keep_the_leases_while_a_version_is_fetched() -> None:
    team, coordinator = Team(), Coordinator("run", 1, HELLO, lease_seconds=0.15)
    coordinator.publish(TeamVersion("run/1.7", ""))
    coordinator.add(rollout_groups())
    load = team.load

    def slow(version: TeamVersion) -> None:
        time.sleep(0.6)
        coordinator.expire()  # as any other worker's question would
        load(version)

    team.load = slow  # type: ignore[method-assign]
    assert Worker("w", coordinator, team, 9).work() == 3
    assert (coordinator.counts["expired"], coordinator.counts["accepted"]) == (0, 3)


def test_the_last_acknowledgement_asks_for_nothing() -> None:
    """Over HTTP the question for more waits; a step that is over must not."""
    rollouts, coordinator, _, _ = connected()
    asked: list[int] = []
    told: list[list[str]] = []
    control: Any = SimpleNamespace(add=coordinator.add)
    control.collected = lambda received: (asked.append(len(received)), coordinator.collected(received))[1]
    control.acknowledge = lambda received: (told.append(list(received)), coordinator.acknowledge(received))[1]
    rollouts.control = control
    rollouts.collect(EPISODES, Sampling(), "train")
    assert max(asked) < 3
    assert told == [["0.0:q0", "0.0:q1", "0.0:q2"]]
    assert coordinator.collected() == ({}, {})


def rollout_groups() -> list[Group]:
    return [Group(f"0.0:q{i}", EPISODES[2 * i].question, (0, 1), "train", Sampling()) for i in range(3)]


def test_what_another_attempt_refuses_is_dropped_and_the_worker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    _, coordinator, _, worker = connected()
    coordinator.add(rollout_groups())
    lease, complete = coordinator.lease, coordinator.complete

    def older(*arguments: Any) -> Any:
        leases = lease(*arguments)
        coordinator.attempt = 2  # the learner was started again while the worker played
        return leases

    worker.coordinator = SimpleNamespace(lease=older, complete=complete)  # type: ignore[assignment]
    assert worker.work() == 3
    assert coordinator.counts["fenced"] == 3
    assert "is of attempt 1, this is attempt 2" in caplog.text


def test_heartbeats_keep_the_leases_of_a_slow_episode() -> None:
    team, coordinator = Team(), Coordinator("run", 1, HELLO, lease_seconds=0.15)
    worker = Worker("w", coordinator, team, 9)
    coordinator.publish(TeamVersion("run/1.7", ""))
    coordinator.add(rollout_groups())
    team.pause.clear()

    def look() -> None:
        coordinator.expire()  # as any other worker's question would
        team.pause.set()

    threading.Timer(0.6, look).start()
    assert worker.work() == 3
    assert (coordinator.counts["expired"], coordinator.counts["accepted"]) == (0, 3)


def test_what_was_begun_is_played_by_the_version_of_then_and_given_to_whoever_asks_for_it() -> None:
    rollouts, coordinator, team, _ = connected(staleness=1)
    later = [Episode(Question("q9", "Q?", Gold(("a",))), "1.0:q9", member) for member in range(2)]
    rollouts.begin(later, Sampling(), "train")
    rollouts.publish(Version("run", 1, 8))
    assert [t.group for t in rollouts.collect(EPISODES, Sampling(), "train")] == [e.group for e in EPISODES]
    assert coordinator.collected() == ({}, {})  # nothing lies there that would end a wait at once
    found = rollouts.collect(later, Sampling(), "train")
    assert {a.version for t in found for a in t.actions} == {"run/1.7"}
    assert len(team.calls) == 4  # and it was not played again
    assert coordinator.waiting == 0  # nor is it leased to anybody


def test_what_is_forgotten_is_played_anew() -> None:
    rollouts, _, team, _ = connected(staleness=1)
    rollouts.begin(EPISODES, Sampling(), "train")
    rollouts.collect([Episode(Question("q9", "Q?", Gold(("a",))), "1.0:q9", 0)], Sampling(), "eval")
    rollouts.forget()
    rollouts.publish(Version("run", 1, 8))
    assert {a.version for t in rollouts.collect(EPISODES, Sampling(), "train") for a in t.actions} == {"run/1.8"}
    assert len(team.calls) == 7


# Streamed


class Enough:
    """Takes groups until it has so many; asks for another one after each, as long as there are."""

    def __init__(self, wanted: int, more: list[Episode]) -> None:
        self.wanted, self.more = wanted, more
        self.taken: list[str] = []

    def __call__(self, group: Any) -> list[Episode] | None:
        self.taken += {t.group for t in group}
        if len(self.taken) >= self.wanted:
            return None
        return [self.more.pop(0), self.more.pop(0)] if self.more else []


def test_groups_are_handed_on_as_they_end_and_others_are_played_besides() -> None:
    rollouts, coordinator, team, _ = connected(capacity=2)
    take = Enough(99, list(EPISODES[4:]))
    assert rollouts.stream(EPISODES[:4], Sampling(0.5), "train", take) == 0
    assert take.taken == ["0.0:q0", "0.0:q1", "0.0:q2"]
    assert {call[1:] for call in team.calls} == {(Sampling(0.5), "train")}
    assert coordinator.collected() == ({}, {})
    assert rollouts.spent() == []


def test_what_still_plays_when_there_is_enough_is_cancelled_and_told_as_spent() -> None:
    rollouts, coordinator, team, worker = connected(capacity=1)
    worker.submitted = rollouts.settle
    take = Enough(1, [])
    assert rollouts.stream(EPISODES, Sampling(0.5), "train", take) == 2
    assert take.taken == ["0.0:q0"]
    assert [call[0] for call in team.calls] == ["0.0:q0"]
    assert (coordinator.waiting, coordinator.held, coordinator.counts["cancelled"]) == (0, 0, 2)


def test_what_was_finished_beside_what_was_needed_is_taken_too_so_that_it_is_counted() -> None:
    rollouts, _, _, _ = connected()
    take = Enough(1, [])
    assert rollouts.stream(EPISODES, Sampling(), "train", take) == 0  # all were finished when the worker's turn was over
    assert take.taken == ["0.0:q0", "0.0:q1", "0.0:q2"]


def test_what_was_begun_before_is_streamed_without_being_played_again() -> None:
    rollouts, _, team, _ = connected()
    rollouts.begin(EPISODES[:4], Sampling(), "train")
    take = Enough(99, [])
    rollouts.stream(EPISODES, Sampling(), "train", take)
    assert sorted(call[0] for call in team.calls) == sorted(take.taken) == ["0.0:q0", "0.0:q1", "0.0:q2"]


def test_an_abandoned_group_is_told_as_one_without_episodes_and_all_of_them_are_an_error() -> None:
    rollouts, _, team, _ = connected(tries=1)
    play, failing = team.collector.play_group, {"0.0:q1"}

    async def spoiled(group: Group, ended: Any) -> list[Trajectory]:
        done = await play(group, ended)
        return done[:1] if group.id in failing else done

    team.collector.play_group = spoiled
    groups: list[int] = []

    def take(group: Any) -> list[Episode]:
        groups.append(len(group))
        return []

    rollouts.stream(EPISODES, Sampling(), "train", take)
    assert sorted(groups) == [0, 2, 2]
    failing |= {"0.0:q0", "0.0:q2"}
    with pytest.raises(RolecastError, match="every group was abandoned"):
        rollouts.stream(EPISODES, Sampling(), "train", take)


def test_workers_elsewhere_are_heard_out_about_what_they_sampled_for_nothing() -> None:
    rollouts, coordinator, _, _ = connected()
    coordinator.add([Group("a", EPISODES[0].question, (0,), "train", Sampling())])
    [lease] = coordinator.lease("w", HELLO, 1)
    coordinator.cancel(["a"])
    assert rollouts.spent() == []
    late = threading.Timer(0.2, lambda: coordinator.spend(lease, [Trajectory("a.0", lease.group.question, "a", 0, "decor", 0)]))
    late.start()
    begun = time.monotonic()
    assert [t.id for t in rollouts.spent(5.0)] == ["a.0"]
    assert time.monotonic() - begun < 3
    assert rollouts.spent() == []
