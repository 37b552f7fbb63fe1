"""Episodes are on their own: what fails in one costs that one."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from parallel import Late, Parallel, Repeats, collector, prompt, question, say

from rolecast.errors import EngineError, NamedStop
from rolecast.leasing import Group
from rolecast.ports import Embed, Judge, Sampling, Verdict
from rolecast.rollout.collect import Episode
from rolecast.rollout.env import Env
from rolecast.signals import Stopped
from rolecast.stages.keeping import each
from rolecast.types import Passage, Question, Reward, Trajectory

FIFTY = [Episode(question(number), f"0:q{number}", 0) for number in range(50)]


class Short(Parallel):
    """One search, one turn."""

    async def rollout(self, question: Question, env: Env) -> str | None:
        [passage] = await env.search(question.text, 1)
        return (await say(env, passage.text))[1]


class BadProbe(Short):
    async def probe(self, trajectory: Trajectory, env: Env) -> None:
        await say(env, "x")
        if trajectory.question.id == "q7":
            raise ZeroDivisionError("probing q7")


class Judging:
    """Fails for the judgement with this number."""

    def __init__(self, fails_at: int) -> None:
        self.left = fails_at

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        self.left -= 1
        if self.left == 0:
            raise OSError("the judge is on fire")
        return Verdict(1.0)


def spoiled(done: list[Trajectory]) -> list[Trajectory]:
    assert [t.question.id for t in done] == [f"q{number}" for number in range(50)]
    assert all((t.fault == "") == (t.status == "ok") for t in done)
    return [t for t in done if t.status == "error"]


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_tool_that_fails_in_one_of_fifty_episodes_costs_that_episode_alone(lockstep: bool, caplog: pytest.LogCaptureFixture) -> None:
    def run(fails_on: str) -> list[Trajectory]:
        return collector(Short(), Late(1, fails_on=fails_on), lockstep=lockstep).collect(FIFTY, Sampling(1.0), "train")

    done = run("town 31?")
    [t] = spoiled(done)
    assert (t.question.id, t.fault, t.answer, t.rewards) == ("q31", "OSError: the index is on fire", None, [])
    assert "episode 0:q31.0 failed: OSError: the index is on fire" in caplog.text
    sound = run("\0")
    texts = [[action.text for action in t.actions] for t in sound]
    assert [[action.text for action in t.actions] for t in done] == [[] if n == 31 else said for n, said in enumerate(texts)]


def test_a_judge_that_fails_spoils_one_episode_and_not_its_answer() -> None:
    done = collector(Short(), Late(), Judging(9)).collect(FIFTY, Sampling(1.0), "eval")
    [t] = spoiled(done)
    assert t.fault == "OSError: the judge is on fire"
    assert t.answer is not None
    assert (t.rewards, t.counts) == ([], False)


def test_a_probe_that_fails_spoils_one_episode_and_not_its_answer() -> None:
    done = collector(BadProbe(), Late()).collect(FIFTY, Sampling(1.0), "train")
    [t] = spoiled(done)
    assert (t.question.id, t.fault) == ("q7", "ZeroDivisionError: probing q7")
    assert t.answer is not None
    assert all(len(t.threads_of("speaker", probe=True)) == 1 for t in done)
    assert not any(t.threads_of("speaker", probe=True) for t in collector(BadProbe(), Late()).collect(FIFTY, Sampling(1.0), "eval"))


def test_an_engine_that_fails_ends_the_batch() -> None:
    made = collector(Short(), Late())
    made.engine._drain = lambda: 1 / 0  # type: ignore[attr-defined]
    with pytest.raises(EngineError, match=r"the engine did not answer .*: ZeroDivisionError"):
        made.collect(FIFTY, Sampling(1.0), "train")


class Spent(Late):
    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        raise NamedStop("the search engine's budget is spent")


def test_a_stop_that_has_a_name_ends_the_batch_instead_of_spoiling_what_is_left() -> None:
    with pytest.raises(NamedStop, match="budget is spent"):
        collector(Short(), Spent()).collect(FIFTY, Sampling(1.0), "eval")


@pytest.mark.parametrize("at_once", [4, 16])
def test_a_signal_that_meets_an_episode_is_raised_once_and_leaves_nothing_for_the_end(
    at_once: int, caplog: pytest.LogCaptureFixture
) -> None:
    made = collector(Short(), Late())

    async def play(member: int, told: Callable[[], None]) -> None:
        await made.play_group(Group(f"g{member}", FIFTY[member].question, (0,), "eval", Sampling(1.0)))
        if member == 1:
            raise Stopped(signal.SIGTERM)  # as its handler does, in whatever runs

    gc.collect()  # what tests before this one left
    caplog.clear()
    with pytest.raises(Stopped):
        made.run(each(range(8), play, at_once, lambda: False))
    made.close()
    gc.collect()  # of a task whose end nobody read asyncio would print a traceback
    assert not caplog.records


class NoWeights(Short):
    async def rollout(self, question: Question, env: Env) -> str | None:
        role = self.roles["speaker"]
        return (await env.open(type(role)("x", role.sees, role.stop, 3, slot="nobody"), prompt()).act(str))[1]


def test_a_turn_that_no_weights_can_take_ends_the_batch() -> None:
    with pytest.raises(EngineError, match="no weights for slot 'nobody'"):
        collector(NoWeights(), Late()).collect(FIFTY, Sampling(1.0), "train")


class Preparing(BadProbe):
    async def rollout(self, question: Question, env: Env) -> str | None:
        return f"{question.given.get('plan', '')} {await super().rollout(question, env)}"

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        return [Reward("team", trajectory.id, 1.0)]

    def prepare(self, trajectory: Trajectory) -> Mapping[str, Any] | None:
        assert trajectory.rewards  # it may choose by them
        kept: dict[str, Any] = {"q0": {"plan": (1, {"a": None})}, "q1": {"plan": {1}}, "q2": {"plan": float("nan")}}
        return kept.get(trajectory.question.id)


def test_what_a_method_prepares_is_kept_as_json_has_it() -> None:
    kept, broken, unbounded, left_out = collector(Preparing(), Late()).collect(FIFTY[:4], Sampling(1.0), "prepare")
    assert (kept.prepared, kept.status) == ({"plan": [1, {"a": None}]}, "ok")
    for t in (broken, unbounded):
        assert t.prepared is None
        assert t.fault.startswith("InputError: method parallel prepares what is no JSON (")
    assert (left_out.prepared, left_out.status) == (None, "ok")
    assert not any(t.threads_of("speaker", probe=True) for t in (kept, left_out))
    assert collector(Preparing(), Late()).collect(FIFTY[:1], Sampling(1.0), "eval")[0].prepared is None


def test_an_episode_is_given_what_was_prepared() -> None:
    given = Episode(Question("q9", "town 9?", FIFTY[9].question.gold, given={"plan": "Bak"}), "0:q9", 0)
    [t] = collector(Preparing(), Late()).collect([given], Sampling(1.0), "eval")
    assert t.answer is not None
    assert t.answer.startswith("Bak ")


def test_progress_counts_episodes_as_they_end() -> None:
    told: list[int] = []
    collector(Short(), Late(), lockstep=False).collect(FIFTY[:5], Sampling(1.0), "eval", told.append)
    assert told == [1, 2, 3, 4, 5]


class Noting(Repeats):
    """An engine that a collector can drive; it keeps what it was asked."""

    async def __aenter__(self) -> Noting:
        return self

    async def __aexit__(self, *exc: object) -> None: ...


@pytest.mark.parametrize("phase", ["train", "eval"])
def test_a_group_is_played_as_it_says_every_member_in_order(phase: str) -> None:
    made = collector(Short(), Late())
    engine = made.engine = Noting()  # type: ignore[assignment]
    group = Group("3:q1", question(1), (0, 2, 5), phase, Sampling(0.25))
    done = made.run(made.play_group(group))
    assert [(t.id, t.group, t.member, t.question.id) for t in done] == [(f"3:q1.{m}", "3:q1", m, "q1") for m in (0, 2, 5)]
    assert {request.sampling for request in engine.requests} == {Sampling(0.25)}
    assert len({request.seed for request in engine.requests}) == 3


def test_while_episodes_are_played_the_collector_leaves_alone_what_was_there() -> None:
    """A look at all of a process with torch and vLLM in it takes a tenth of a second and more. Afterwards all is as it was, also where it failed."""
    gc.collect()
    frozen: list[int] = []

    async def main() -> None:
        frozen.append(gc.get_freeze_count())
        raise KeyError("the end")

    with pytest.raises(KeyError, match="the end"):
        collector(Short(), Late()).run(main())
    assert frozen[0] > 10_000
    assert gc.get_freeze_count() == 0
