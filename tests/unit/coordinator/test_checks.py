"""What a submission must be: the leased group, as this run's method and model could have played it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from rolecast.coordinator.checks import Rules
from rolecast.coordinator.leases import Coordinator
from rolecast.leasing import Group, Handshake, Lease, Malformed, TeamVersion
from rolecast.ports import Sampling
from rolecast.types import Action, Gold, Observation, Question, Reward, Thread, Trajectory

HELLO = Handshake("0.1", "config", "bm25 1", "lexical", "renderer", "prompts")
QUESTION = Question("q", "Who?", Gold(("a",)))
RULES = Rules("decor", {"planner": "shared", "condenser": "frozen"}, vocabulary=100)
Change = Callable[[list[Trajectory]], Any]


def leased() -> tuple[Coordinator, Lease]:
    coordinator = Coordinator("run", 1, HELLO, rules=RULES)
    coordinator.publish(TeamVersion("run/1.1", "versions/1"))
    coordinator.add([Group("0.0:q", QUESTION, (0, 1), "train", Sampling())])
    [lease] = coordinator.lease("w", HELLO, 1)
    return coordinator, lease


def played() -> list[Trajectory]:
    done = []
    for member in range(2):
        name = f"0.0:q.{member}"
        threads = [
            Thread(f"{name}#0", "planner", "shared", turns=[Observation((1, 2), "q"), action(f"{name}/a0"), Observation((), "")]),
            Thread(f"{name}#1", "condenser", "frozen", turns=[Observation((99,), "q"), action(f"{name}/a1")]),
        ]
        rewards = [Reward("team", name, 1.0), Reward("role", f"{name}/a1", None), Reward("role", f"{name}#1", -1.0)]
        done.append(Trajectory(name, QUESTION, "0.0:q", member, "decor", 0, threads=threads, rewards=rewards))
    return done


def action(id: str, **changed: Any) -> Action:
    return replace(Action(id, (3, 0), (-0.5, 1e-7), "run/1.1", "x", "stop"), **changed)


def acts(**changed: Any) -> Change:
    """The second episode's first action, changed."""

    def change(done: list[Trajectory]) -> None:
        turns = done[1].threads[0].turns
        turns[1] = replace(turns[1], **changed)

    return change


def thread(**changed: Any) -> Change:
    def change(done: list[Trajectory]) -> None:
        done[1].threads[0] = replace(done[1].threads[0], **changed)

    return change


def episode(**changed: Any) -> Change:
    def change(done: list[Trajectory]) -> None:
        done[1] = replace(done[1], **changed)

    return change


WRONG: list[tuple[Change, str]] = [
    (episode(member=0), "is for members"),
    (episode(group="0.0:p"), "is for members"),
    (episode(question=replace(QUESTION, gold=Gold(("mine",)))), "answers another question"),
    (episode(id="0.0:q.0"), "is called 0.0:q.0, not 0.0:q.1"),
    (episode(method="search_r1"), "of method search_r1; the run's is decor"),
    (episode(searches=-1), "searches"),
    (episode(judge_calls=-1), "judge calls"),
    (episode(judge_tokens=-1), "judge calls"),
    (episode(searches=10**400), "searches"),
    (episode(rewards=[Reward("team", "0.0:q.0", 1.0)]), "on 0.0:q.0, which is not in it"),
    (episode(rewards=[Reward("team", "", 1.0)]), "which is not in it"),
    (thread(id="0.0:q.0#0"), "0.0:q.0#0 is there twice"),
    (thread(id="0.0:p.1#0"), "does not begin with the episode's"),
    (thread(role="answerer"), "of role answerer in slot shared"),
    (thread(slot="frozen"), "of role planner in slot frozen"),
    (thread(turns=[]), "does not begin with an observation"),
    (thread(turns=[action("0.0:q.1/a0")]), "does not begin with an observation"),
    (thread(turns=[Observation((), ""), action("0.0:q.1/a0")]), "does not begin with an observation"),
    (thread(turns=[Observation((100,), "")]), "ids from 100 to 100, the vocabulary has 100"),
    (acts(id="0.0:q.0/a0"), "0.0:q.0/a0 is there twice"),
    (acts(id="0.0:q.1/a1"), "is there twice"),
    (acts(ids=(3, 100)), "ids from 3 to 100, the vocabulary has 100"),
    (acts(ids=(3, -1)), "ids from -1 to 3"),
    (acts(ids=(3,)), "1 tokens and 2 log-probs"),
    (acts(ids=(), logprobs=()), "0 tokens and 0 log-probs"),
    (acts(logprobs=(-0.5, nan)), "log-prob nan"),
    (acts(logprobs=(-0.5, -inf)), "log-prob -inf"),
    (acts(logprobs=(-0.5, 0.1)), "log-prob 0.1"),
    (acts(id="0.0:q.1/\n" + 1000 * "x", ids=()), "0 tokens and 2 log-probs"),
    (acts(version="run/1.0"), "sampled by run/1.0"),
]


def test_what_a_worker_plays_is_taken() -> None:
    coordinator, lease = leased()
    assert coordinator.complete(lease, played())
    assert coordinator.collected()[0] == {"0.0:q": played()}


@pytest.mark.parametrize(("change", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_anything_else_is_refused_in_one_line_and_leaves_the_lease(change: Change, reason: str) -> None:
    coordinator, lease = leased()
    done = played()
    change(done)
    with pytest.raises(Malformed) as raised:
        coordinator.complete(lease, done)
    assert reason in str(raised.value)
    assert str(raised.value).startswith(f"lease {lease.id}: ")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300
    assert coordinator.held == 1
    assert coordinator.complete(lease, played())


def test_the_question_that_is_trained_on_is_the_learners() -> None:
    """Equal is not the same: True equals 1, and a worker could send either."""
    coordinator, lease = leased()
    done = [replace(t, question=replace(QUESTION, hops=False)) for t in played()]
    assert coordinator.complete(lease, done)
    assert all(t.question.hops is not False for t in coordinator.collected()[0]["0.0:q"])
