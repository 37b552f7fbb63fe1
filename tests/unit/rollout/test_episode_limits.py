"""What an episode may take: a tool or a judge that hangs costs it alone, and so do its tokens; who is judged holds no lane."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from parallel import ROLE, Late, Parallel, Repeats, collector, env_of, prompt, question, say

from rolecast.errors import StuckError
from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.base import Most, Spoken
from rolecast.ports import GenerateRequest, Sampling, Verdict
from rolecast.rollout.collect import Collector, Episode, turns_of
from rolecast.rollout.env import Env, Overflow, Spent
from rolecast.rollout.limits import Limits, within
from rolecast.rollout.scheduler import Left
from rolecast.types import Passage, Trajectory
from tests.tiny import RENDERER

EPISODES = [Episode(question(number), f"0:q{number}", member) for number in range(3) for member in range(2)]


class Hangs(Late):
    """Never answers what is asked about one town."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        if any("town 1" in query for query in queries):
            await asyncio.sleep(60)
        return await super().search(queries, k)


class HangingJudge(LexicalJudge):
    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        if "town 1" in inputs["question"]:
            await asyncio.sleep(60)
        return await super().judge(kind, inputs)


def played(made: Collector) -> list[Trajectory]:
    return made.collect(EPISODES, Sampling(1.0), "train")


def test_a_search_that_hangs_costs_its_episode_alone(caplog: pytest.LogCaptureFixture) -> None:
    made = collector(Parallel(), Hangs(longest=0), in_flight=2)
    made.limits = Limits(search=0.3)
    done = played(made)
    assert [t.status for t in done] == ["ok", "ok", "error", "error", "ok", "ok"]
    assert done[2].fault.startswith("StuckError: 0:q1.0: the retriever answered no search for 'What is the mayor of town 1? part 0'")
    assert "within 0.3 s; see whether it hangs, or raise retriever.limit" in done[2].fault
    assert "episode 0:q1.0 failed: StuckError" in caplog.text


def test_a_judge_that_hangs_costs_its_episode_alone() -> None:
    made = collector(Parallel(), Late(longest=0), HangingJudge(), in_flight=2)
    made.limits = Limits(judge=0.3)
    done = played(made)
    assert [t.status for t in done] == ["ok", "ok", "error", "error", "ok", "ok"]
    assert "0:q1.1: the judge gave no verdict of answer within 0.3 s; see whether it hangs, or raise judge.limit" in done[3].fault


def test_an_encoder_or_a_fetch_that_hangs_is_stuck_too() -> None:
    class Stuck(Late):
        async def embed(self, texts: Sequence[str]) -> Any:
            await asyncio.sleep(60)

        async def fetch(self, ids: Sequence[str]) -> list[Passage]:
            await asyncio.sleep(60)
            return []

    env = env_of(Repeats(), Stuck())
    env.limits = Limits(search=0.01)
    with pytest.raises(StuckError, match=r"g\.0: the retriever answered no embedding of 2 texts within 0\.01 s"):
        asyncio.run(env.embed(["a", "b"]))
    with pytest.raises(StuckError, match=r"answered with no passage 'p1'"):
        asyncio.run(env.fetch(["p1"]))


def test_a_call_s_own_timeout_is_its_own() -> None:
    async def tired() -> None:
        raise TimeoutError("the socket is slow")

    with pytest.raises(TimeoutError, match="the socket is slow"):
        asyncio.run(within(5.0, tired(), "it", "x"))


# Lanes


class Together(LexicalJudge):
    """Gives no verdict before it is asked about all six episodes."""

    def __init__(self) -> None:
        self.asked = 0
        self.all = asyncio.Event()

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        self.asked += 1
        if self.asked == 6:
            self.all.set()
        await self.all.wait()
        return await super().judge(kind, inputs)


def test_who_is_judged_holds_no_lane() -> None:
    made = collector(Parallel(), Late(longest=0), Together(), in_flight=2, lockstep=False)
    made.lockstep, made.limits = False, Limits(judge=20.0)
    assert [t.status for t in played(made)] == ["ok"] * 6
    assert made.engine.branches == 0


def test_in_lockstep_a_lane_is_given_on_when_its_episode_was_judged() -> None:
    made = collector(Parallel(), Late(longest=0), Together(), in_flight=2)
    made.limits = Limits(judge=0.5)
    assert "error" in {t.status for t in played(made)}
    assert made.engine.branches == 0


# Tokens


async def turns(env: Env, count: int) -> None:
    for _ in range(count):
        await say(env, "x")


def limited(tokens: int, reply: str = " yes yes yes</answer>") -> tuple[Env, Repeats]:
    engine = Repeats(lambda request: reply)
    env = env_of(engine)
    env.limits = Limits(tokens=tokens)
    return env, engine


REPLY = len(RENDERER.encode(" yes yes yes</answer>"))


def test_an_episode_samples_no_more_tokens_than_it_may() -> None:
    env, engine = limited(2 * REPLY + 1)
    engine.finish = "length"
    with pytest.raises(Spent, match=rf"episode g\.0 has sampled the {2 * REPLY + 1} tokens that it may \(method.episode_tokens\)") as end:
        asyncio.run(turns(env, 5))
    assert end.value.status == "length"
    assert [request.max_tokens for request in engine.requests] == [6, REPLY + 1, 1]
    assert sum(len(action.ids) for action in env.trajectory.actions) == 2 * REPLY + 1


def test_a_reply_that_the_episode_s_tokens_cut_is_nobody_s_fault() -> None:
    env, engine = limited(2)
    engine.finish = "length"
    with pytest.raises(Spent):
        asyncio.run(turns(env, 1))
    assert [len(action.ids) for action in env.trajectory.actions] == [2]


def test_an_episode_that_has_spent_all_asks_for_nothing() -> None:
    env, engine = limited(2 * REPLY)
    with pytest.raises(Spent):
        asyncio.run(turns(env, 5))
    assert len(engine.requests) == 2


def test_a_reply_that_its_own_limit_cuts_is_no_spent_episode() -> None:
    env, engine = limited(ROLE.max_tokens)
    engine.reply, engine.finish = lambda request: " yes" * 9, "length"
    asyncio.run(turns(env, 1))
    assert len(env.trajectory.actions[0].ids) == ROLE.max_tokens


def test_a_context_that_is_full_is_told_as_that() -> None:
    env, engine = limited(1000)
    env.max_context = len(env.open(ROLE, prompt()).thread.ids) + 2
    engine.finish = "length"
    with pytest.raises(Overflow):
        asyncio.run(turns(env, 1))


def test_branches_are_counted_together_when_they_are_done() -> None:
    async def play(env: Env) -> list[int]:
        await env.gather({"a": lambda part: turns(part, 2), "b": lambda part: turns(part, 1)})
        assert env.allowance == 4 * REPLY - 3 * REPLY
        await turns(env, 1)
        return [1]

    env, engine = limited(4 * REPLY)
    asyncio.run(play(env))
    assert len(engine.requests) == 4
    with pytest.raises(Spent):
        asyncio.run(turns(env, 1))


def test_probes_are_not_counted() -> None:
    env, engine = limited(2 * REPLY)
    asyncio.run(turns(env.probe(), 3))
    asyncio.run(turns(env, 2))
    assert len(engine.requests) == 5


def test_an_episode_without_a_budget_samples_as_its_roles_do() -> None:
    env, engine = limited(1)
    env.limits = Limits()
    asyncio.run(turns(env, 3))
    assert [request.max_tokens for request in engine.requests] == [6, 6, 6]


# Turns left


def test_a_group_has_as_many_turns_left_as_its_members_that_play() -> None:
    left = Left([3, 4], 4)
    assert left.turns == 8
    for _ in range(9):
        left.spoke(3)
    assert left.turns == 1 + 4
    left.ended(4)
    assert left.turns == 1
    left.ended(3)
    assert left.turns == 0
    assert Left([0, 1, 2], None).turns == 3


class Told(Parallel):
    @property
    def most(self) -> Most:
        return Most({"speaker": Spoken(5, 2)})


def test_requests_say_how_many_turns_their_group_has_left() -> None:
    made = collector(Told(), Late(longest=0), in_flight=2)
    requests: list[GenerateRequest] = []

    class Open(Repeats):
        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *exc: object) -> None: ...

    made.engine = Open(requests=requests)  # type: ignore[assignment]
    assert turns_of(Told()) == 10
    assert turns_of(Parallel()) is None
    played(made)
    by_group: dict[str, list[int]] = {}
    for request in requests:
        by_group.setdefault(request.key.split(".")[0], []).append(request.urgency)
    assert [max(found) for found in by_group.values()] == [20, 20, 20]
    for found in by_group.values():
        assert found == sorted(found, reverse=True)
        assert found[-1] <= 2  # the other member may be at its last turn too
