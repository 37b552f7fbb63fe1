from __future__ import annotations

import itertools

import pytest

from rolecast.launching.spec import Deadlines
from rolecast.launching.states import TRANSITIONS, IllegalTransition, JobView, Lifecycle, State
from rolecast.launching.status import observe

ENDS = {State.SUCCEEDED, State.FAILED}


def test_what_ended_stays_ended_and_what_did_not_can_reach_every_state() -> None:
    assert set(TRANSITIONS) == set(State)
    for state in State:
        assert TRANSITIONS[state] == (set() if state in ENDS else set(State) - {state})


@pytest.mark.parametrize(("before", "after"), [pair for pair in itertools.permutations(State, 2) if pair[0] in ENDS])
def test_a_job_that_comes_back_from_its_end_is_an_error(before: State, after: State) -> None:
    lifecycle = Lifecycle(lambda: 0.0)
    lifecycle.observe(JobView(before))
    with pytest.raises(IllegalTransition, match=f"had {before} was seen {after}"):
        lifecycle.observe(JobView(after))


def test_seconds_are_counted_per_state_and_deadlines_per_stay() -> None:
    times = iter([0.0, 4.0, 9.0, 11.0, 12.0])
    lifecycle, deadlines = Lifecycle(lambda: next(times)), Deadlines(queued=10, pending=20, running=30)
    for state in (State.QUEUED, State.RUNNING, State.QUEUED, State.RUNNING, State.SUCCEEDED):
        assert lifecycle.observe(JobView(state))
    assert lifecycle.seconds == {State.QUEUED: 6.0, State.RUNNING: 6.0}
    assert lifecycle.remaining(deadlines) == float("inf")


def test_a_new_reason_is_news_and_the_same_one_is_not() -> None:
    lifecycle = Lifecycle(lambda: 0.0)
    seen = [lifecycle.observe(JobView(State.PENDING, reason)) for reason in ("a", "a", "b")]
    assert seen == [True, False, True]


def test_a_suspended_job_without_a_queue_is_told_apart() -> None:
    job = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "training"}}, "spec": {"suspend": True}}
    assert observe(job, [], 1) == JobView(State.QUEUED, "waits for queue training")
    job["metadata"] = {}
    assert "no queue will resume it" in observe(job, [], 1).reason


def test_conditions_count_only_while_they_are_true() -> None:
    job = {"metadata": {}, "status": {"conditions": [{"type": "Failed", "status": "False"}, {"type": "Suspended", "status": "False"}]}}
    assert observe(job, [{"metadata": {"name": "a"}, "status": {"phase": "Running"}}], 1).state is State.RUNNING
