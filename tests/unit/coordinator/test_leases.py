"""Leases: each group is taken once, whatever workers do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rolecast.coordinator import leases
from rolecast.coordinator.leases import Coordinator
from rolecast.leasing import Group, Handshake, Lease, Malformed, Refused, Stopped, TeamVersion
from rolecast.ports import Sampling
from rolecast.stage_settings import RlConfig
from rolecast.types import Action, Gold, Observation, Question, Thread, Trajectory

HELLO = Handshake("0.1", "config", "bm25 1", "lexical", "renderer", "prompts")
V1, V2 = TeamVersion("run/1.1", "versions/1"), TeamVersion("run/1.2", "versions/2")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def coordinator(clock: Clock) -> Coordinator:
    made = Coordinator("run", 1, HELLO, lease_seconds=10, clock=clock)
    made.publish(V1)
    return made


def group(name: str, members: int = 2) -> Group:
    return Group(name, Question(name, f"{name}?", Gold(("a",))), tuple(range(members)), "train", Sampling())


def played(lease: Lease, version: str | None = None, member: int | None = None) -> list[Trajectory]:
    done = []
    for m in lease.group.members if member is None else (member,):
        name = f"{lease.group.id}.{m}"
        action = Action(f"{name}/a0", (1,), (-0.5,), version or lease.version.name, "x", "stop")
        thread = Thread(f"{name}#0", "planner", "shared", turns=[Observation((2,), "q"), action])
        done.append(Trajectory(name, lease.group.question, lease.group.id, m, "decor", 0, threads=[thread]))
    return done


def take(coordinator: Coordinator, worker: str = "w", capacity: int = 1) -> list[Lease]:
    return coordinator.lease(worker, HELLO, capacity)


def test_groups_are_leased_in_order_and_once(coordinator: Coordinator) -> None:
    coordinator.add([group("a"), group("b"), group("c")])
    assert [lease.group.id for lease in take(coordinator, capacity=2)] == ["a", "b"]
    assert [lease.group.id for lease in take(coordinator, "other", capacity=2)] == ["c"]
    assert take(coordinator) == []


def test_a_completed_group_comes_back_until_it_is_acknowledged(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator)
    assert coordinator.complete(lease, played(lease))
    for _ in range(2):  # the first answer may have been lost on the way
        done, abandoned = coordinator.collected()
        assert (list(done), abandoned) == (["a"], {})
    assert coordinator.collected(["a"]) == ({}, {})


def test_the_same_submission_again_is_no_error_and_counts_once(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator)
    assert [coordinator.complete(lease, played(lease)) for _ in range(3)] == [True, False, False]
    assert (coordinator.counts["accepted"], coordinator.counts["duplicates"]) == (1, 2)


def test_a_silent_worker_loses_its_group_and_the_first_submission_is_taken(coordinator: Coordinator, clock: Clock) -> None:
    coordinator.add([group("a")])
    [first] = take(coordinator, "slow")
    clock.now = 11
    [second] = take(coordinator, "quick")
    assert second.group == first.group  # the same seeds
    assert second.id != first.id
    assert coordinator.complete(first, played(first))  # the slow one was not dead after all
    assert not coordinator.complete(second, played(second))
    assert (coordinator.counts["expired"], coordinator.counts["accepted"]) == (1, 1)


def test_a_late_submission_takes_a_group_that_waits_for_another_lease(coordinator: Coordinator, clock: Clock) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator)
    clock.now = 11
    coordinator.expire()
    assert coordinator.waiting == 1
    assert coordinator.complete(lease, played(lease))
    assert coordinator.waiting == 0
    assert take(coordinator) == []


def test_a_heartbeat_keeps_a_lease_and_tells_which_are_lost(coordinator: Coordinator, clock: Clock) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator)
    for now in (8, 16, 24):
        clock.now = now
        assert coordinator.extend([lease, replace(lease, id="1/other/1")]) == [lease.id]
    clock.now = 35
    assert coordinator.extend([lease]) == []


def test_a_group_is_abandoned_after_its_tries_and_named_with_the_reason(coordinator: Coordinator, clock: Clock) -> None:
    coordinator.add([group("a")])
    for number in range(1, 4):
        assert len(take(coordinator, f"w{number}")) == 1
        clock.now += 11
    done, abandoned = coordinator.collected()
    assert (done, abandoned) == ({}, {"a": "worker w3 was silent for 10 s"})
    assert take(coordinator) == []
    assert coordinator.counts["abandoned"] == 1


def test_tries_are_counted_anew_when_a_group_of_that_name_is_opened_again(coordinator: Coordinator, clock: Clock) -> None:
    for _ in range(5):  # a dev question is played at every evaluation
        coordinator.add([group("dev")])
        [lease] = take(coordinator)
        clock.now += 11
        [lease] = take(coordinator)
        coordinator.complete(lease, played(lease))
        assert coordinator.collected(["dev"])[1] == {}


@pytest.mark.parametrize(("field", "mend"), [
    ("package", "deploy the same release and config"), ("config", "deploy the same release and config"), ("index", "give it the run's"),
    ("judge", "give it the run's"), ("renderer", "deploy the same release and config"), ("prompts", "deploy the same release and config"),
])  # fmt: skip
def test_a_worker_that_differs_is_refused_with_both_sides(coordinator: Coordinator, field: str, mend: str) -> None:
    coordinator.add([group("a")])
    with pytest.raises(Refused, match=f"worker w: its {field} is other, the run's is {getattr(HELLO, field)}; {mend}$"):
        coordinator.lease("w", replace(HELLO, **{field: "other"}), 1)
    assert coordinator.waiting == 1


def test_submissions_of_another_attempt_are_fenced(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator)
    with pytest.raises(Refused, match="is of attempt 2, this is attempt 1"):
        coordinator.complete(replace(lease, attempt=2), played(lease))
    with pytest.raises(Refused, match="not one of attempt 1"):
        coordinator.complete(replace(lease, id="1/a/9"), played(lease))
    assert coordinator.counts["fenced"] == 1
    assert coordinator.complete(lease, played(lease))


def test_only_the_leased_group_whole_and_by_the_leased_version_is_taken(coordinator: Coordinator) -> None:
    coordinator.add([group("a"), group("b")])
    a, b = take(coordinator, capacity=2)
    for wrong, reason in (
        (played(a, member=0), "members"),
        (played(b), "members"),
        ([*reversed(played(a))], "members"),
        (played(a, version="run/1.0"), "sampled by run/1.0"),
    ):
        with pytest.raises(Refused, match=reason):
            coordinator.complete(a, wrong)
    assert coordinator.complete(a, played(a))


def test_leases_name_the_newest_version_and_wait_for_the_first(clock: Clock) -> None:
    coordinator = Coordinator("run", 1, HELLO, clock=clock)
    coordinator.add([group("a"), group("b")])
    assert take(coordinator) == []
    coordinator.publish(V1)
    assert take(coordinator)[0].version == V1
    coordinator.publish(V2)
    assert take(coordinator)[0].version == V2


def test_one_worker_that_cannot_load_a_version_is_quarantined(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator, "broken")
    take(coordinator, "sound")  # is there, and has nothing to do yet
    coordinator.fail(lease, "canary", "version")
    with pytest.raises(Refused, match="worker broken is quarantined"):
        take(coordinator, "broken")
    assert coordinator.collected() == ({}, {})
    assert [lease.group.id for lease in take(coordinator, "sound")] == ["a"]


def test_workers_are_those_that_were_heard_of_lately(coordinator: Coordinator, clock: Clock) -> None:
    for worker, now in (("one", 100.0), ("other", 105.0)):
        clock.now = now
        take(coordinator, worker)
    heard = {}
    for clock.now in (110.0, 110.5, 115.5):
        heard[clock.now] = coordinator.workers(10.0)
    assert heard == {110.0: ["one", "other"], 110.5: ["other"], 115.5: []}


def test_how_long_and_how_often_is_what_the_settings_begin_with() -> None:
    plain = Coordinator("run", 1, HELLO)
    assert (plain.lease_seconds, plain.tries) == (RlConfig().lease_seconds, RlConfig().lease_tries)


def test_a_quarantine_ends_with_its_version(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator, "broken")
    coordinator.fail(lease, "canary", "version")
    coordinator.publish(V2)
    assert [lease.version for lease in take(coordinator, "broken")] == [V2]


def test_a_version_that_two_workers_cannot_load_stops_the_run(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    for worker in ("one", "two"):
        [lease] = take(coordinator, worker)
        coordinator.fail(lease, "canary", "version")
    with pytest.raises(Stopped, match=r"version run/1\.1 could not be loaded by one, two"):
        coordinator.collected()


def test_a_version_that_the_only_worker_cannot_load_stops_the_run(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator, "one")
    coordinator.fail(lease, "canary", "version")
    with pytest.raises(Stopped):
        coordinator.collected()


def test_a_group_given_back_is_leased_again(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator, "one")
    coordinator.fail(lease, "out of memory")
    [again] = take(coordinator, "two")
    assert again.group.id == "a"


def test_adding_the_same_groups_again_opens_them_once(coordinator: Coordinator) -> None:
    for _ in range(2):  # the learner's request was answered, but the answer was lost
        coordinator.add([group("a")])
    [lease] = take(coordinator, capacity=5)
    coordinator.complete(lease, played(lease))
    coordinator.add([group("a")])
    assert take(coordinator) == []


def test_two_that_cannot_load_stop_the_run_though_a_third_could(coordinator: Coordinator) -> None:
    """A version that two machines refuse is broken, whoever has not noticed."""
    coordinator.add([group("a"), group("b")])
    take(coordinator, "sound")
    for worker in ("one", "two"):
        [lease] = take(coordinator, worker)
        coordinator.fail(lease, "canary", "version")
    with pytest.raises(Stopped, match="by one, two"):
        coordinator.collected()


def test_what_was_sampled_by_an_older_version_is_refused_after_its_lease_ended(coordinator: Coordinator, clock: Clock) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator)
    clock.now = 11
    coordinator.expire()
    coordinator.publish(V2)
    with pytest.raises(Refused, match="for its current version"):
        coordinator.complete(lease, played(lease))
    [again] = take(coordinator)
    assert again.version == V2


def test_a_group_given_back_waits_at_the_end_and_every_lease_has_an_id_of_its_own(coordinator: Coordinator) -> None:
    coordinator.add([group("a"), group("b")])
    seen = []
    for _ in range(4):
        [lease] = take(coordinator, f"w{len(seen)}")
        seen.append(lease)
        coordinator.fail(lease, "the store is away", "nobody")
    assert [lease.group.id for lease in seen] == ["a", "b", "a", "b"]
    assert len({lease.id for lease in seen}) == len({lease.secret for lease in seen}) == 4


def test_nobody_speaks_for_a_lease_without_its_secret(coordinator: Coordinator, clock: Clock) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator)
    guessed = replace(lease, secret="guessed")
    assert coordinator.extend([guessed]) == []
    for call in (lambda: coordinator.complete(guessed, played(lease)), lambda: coordinator.fail(guessed, "canary", "version")):
        with pytest.raises(Refused, match="not yours"):
            call()
    assert coordinator.collected() == ({}, {})  # nobody is quarantined
    clock.now = 9
    coordinator.extend([guessed])
    clock.now = 11
    assert coordinator.extend([lease]) == []  # the stranger's heartbeat did not count
    assert lease.secret not in repr(lease)


def test_a_store_that_is_away_blames_neither_version_nor_group(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    for number in range(5):  # more than its tries, by more than two workers
        [lease] = take(coordinator, f"w{number}")
        coordinator.fail(lease, "the store is away", "nobody")
        assert coordinator.collected() == ({}, {})
    [lease] = take(coordinator)
    assert coordinator.complete(lease, played(lease))


def test_a_failure_of_an_older_version_says_nothing_about_the_new_one(coordinator: Coordinator) -> None:
    coordinator.add([group("a"), group("b")])
    old = take(coordinator, "one") + take(coordinator, "two")
    coordinator.publish(V2)
    for lease in old:
        coordinator.fail(lease, "canary", "version")
    assert coordinator.collected() == ({}, {})
    assert len(take(coordinator, "one", 2)) == 2


def test_the_same_version_published_again_forgets_nothing(coordinator: Coordinator, clock: Clock) -> None:
    coordinator.add([group("a"), group("b")])
    first, second = take(coordinator, "broken") + take(coordinator, "slow")
    coordinator.fail(first, "canary", "version")
    clock.now = 11
    coordinator.expire()
    coordinator.publish(V1)  # the learner asks anew, since the answer was lost
    with pytest.raises(Refused, match="quarantined"):
        take(coordinator, "broken")
    assert coordinator.complete(second, played(second))


def test_what_is_remembered_is_bounded(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_ENDED", 5)
    monkeypatch.setattr(leases, "MOST_WORKERS", 5)
    coordinator.add([group("a")])
    for number in range(20):
        [lease] = take(coordinator, f"w{number}")
        coordinator.fail(lease, "the store is away", "nobody")
    assert len(coordinator._ended) == 5
    assert coordinator.workers(100) == [f"w{number}" for number in range(15, 20)]


@pytest.mark.parametrize("staleness", [0, 1])
def test_what_a_version_that_is_too_old_samples_is_sampled_again(clock: Clock, staleness: int) -> None:
    coordinator = Coordinator("run", 1, HELLO, lease_seconds=10, tries=1, clock=clock, staleness=staleness)
    coordinator.publish(V1)
    coordinator.add([group("a"), group("b")])
    held, done = take(coordinator, capacity=2)
    coordinator.complete(done, played(done))
    for number in range(staleness):
        coordinator.publish(TeamVersion(f"run/1.{10 + number}", "versions/x"))
        assert coordinator.extend([held]) == [held.id]
    if staleness:
        assert list(coordinator.collected()[0]) == ["b"]
    coordinator.publish(V2)
    assert coordinator.extend([held]) == []
    with pytest.raises(Refused, match="not one of attempt 1 of run run for its current version"):
        coordinator.complete(held, played(held))
    assert coordinator.collected() == ({}, {})  # nor is what nobody has collected taken
    [again] = take(coordinator)  # though a group is leased once: it was nobody's fault
    assert (again.group.id, again.version) == ("a", V2)
    assert coordinator.complete(again, played(again))
    assert coordinator.counts["stale"] == 2


def test_what_was_taken_in_time_is_collected_after_the_next_version(clock: Clock) -> None:
    coordinator = Coordinator("run", 1, HELLO, clock=clock, staleness=1)
    coordinator.publish(V1)
    coordinator.add([group("a"), group("b")])
    first, late = take(coordinator, capacity=2)
    coordinator.complete(first, played(first))
    coordinator.publish(V2)
    assert coordinator.complete(late, played(late))  # by the version that its lease names
    assert {a.version for ts in coordinator.collected()[0].values() for t in ts for a in t.actions} == {V1.name}


# Groups that nobody needs any more


def test_a_cancelled_group_is_leased_no_more_and_its_worker_is_told(coordinator: Coordinator) -> None:
    coordinator.add([group("a"), group("b"), group("c")])
    held, kept = take(coordinator, capacity=2)
    assert coordinator.dropped([held, kept]) == []
    coordinator.cancel(["a", "c", "unknown"])
    assert take(coordinator, capacity=9) == []
    assert coordinator.dropped([held, kept]) == [held.id]
    assert coordinator.dropped([replace(held, secret="guessed")]) == []
    assert coordinator.extend([held, kept]) == [kept.id]
    assert coordinator.counts["cancelled"] == 2
    assert coordinator.spent() == ({}, 1)
    coordinator.spend(held, played(held)[:1])
    assert coordinator.spent() == ({held.id: played(held)[:1]}, 0)
    assert coordinator.spent([held.id]) == ({}, 0)
    assert coordinator.dropped([held]) == []
    assert coordinator.complete(kept, played(kept))
    assert coordinator.collected() == ({"b": played(kept)}, {})


def test_a_group_that_was_taken_before_it_was_cancelled_is_spent(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator)
    coordinator.complete(lease, played(lease))
    coordinator.cancel(["a"])
    assert coordinator.collected() == ({}, {})
    assert coordinator.spent() == ({"a": played(lease)}, 0)


def test_a_dropped_group_that_comes_whole_is_spent_and_not_taken(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator)
    coordinator.cancel(["a"])
    assert not coordinator.complete(lease, played(lease))
    assert coordinator.spent() == ({lease.id: played(lease)}, 0)
    assert not coordinator.complete(lease, played(lease))
    assert coordinator.spent([lease.id]) == ({}, 0)
    assert coordinator.collected() == ({}, {})


def test_another_lease_of_a_group_is_dropped_when_the_group_is_taken(coordinator: Coordinator, clock: Clock) -> None:
    coordinator.add([group("a")])
    [silent] = take(coordinator)
    clock.now = 11
    [lease] = take(coordinator)
    clock.now = 12
    assert coordinator.complete(silent, played(silent))
    assert coordinator.dropped([silent, lease]) == [lease.id]


def test_what_an_old_version_samples_for_nothing_is_spent(clock: Clock) -> None:
    coordinator = Coordinator("run", 1, HELLO, clock=clock)
    coordinator.publish(V1)
    coordinator.add([group("a"), group("b")])
    held, done = take(coordinator, capacity=2)
    coordinator.complete(done, played(done))
    coordinator.publish(V2)
    assert coordinator.dropped([held]) == [held.id]
    coordinator.spend(held, [])
    assert coordinator.spent() == ({"b": played(done), held.id: []}, 0)
    assert [lease.group.id for lease in take(coordinator, capacity=9)] == ["a"]  # it is sampled anew


def test_only_who_was_leased_a_dropped_group_tells_what_it_sampled_of_it(coordinator: Coordinator) -> None:
    coordinator.add([group("a"), group("b")])
    lease, kept = take(coordinator, capacity=2)
    coordinator.cancel(["a"])
    for wrong in (replace(lease, secret="guessed"), replace(lease, attempt=0), kept):
        with pytest.raises(Refused, match="is not one that attempt 1 of run run has dropped, or not yours"):
            coordinator.spend(wrong, [])
    with pytest.raises(Malformed, match="it is for members"):
        coordinator.spend(lease, [replace(t, member=7) for t in played(lease)[:1]])
    with pytest.raises(Malformed, match=r"was sampled by run/9\.9"):
        coordinator.spend(lease, played(lease, version="run/9.9"))
    assert coordinator.spent() == ({}, 1)


def test_of_what_was_ended_log_probs_may_be_missing_but_not_wrong(coordinator: Coordinator) -> None:
    coordinator.add([group("a")])
    [lease] = take(coordinator)
    coordinator.cancel(["a"])
    cut = played(lease)[1:]
    thread = cut[0].threads[0]
    action = thread.actions[0]
    thread.turns[1] = replace(action, ids=(1, 2))
    with pytest.raises(Malformed, match="2 tokens and 1 log-probs"):
        coordinator.spend(lease, cut)
    thread.turns[1] = replace(action, ids=(1, 2), logprobs=())
    coordinator.spend(lease, cut)
    assert coordinator.spent()[0] == {lease.id: cut}


def test_leases_that_nobody_tells_of_are_forgotten_in_the_end(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_ENDED", 2)
    names = ["a", "b", "c", "d"]
    coordinator.add([group(name) for name in names])
    held = take(coordinator, capacity=4)
    coordinator.cancel(names)
    assert coordinator.dropped(held) == [lease.id for lease in held[2:]]
    for number in range(3):
        coordinator.add([group(f"e{number}")])
        [lease] = take(coordinator)
        coordinator.complete(lease, played(lease))
        coordinator.cancel([f"e{number}"])
    assert list(coordinator.spent()[0]) == ["e1", "e2"]
