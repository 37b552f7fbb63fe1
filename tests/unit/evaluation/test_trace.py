import json
from dataclasses import replace

import pytest

from rolecast.evaluation.tasks import QA, find
from rolecast.evaluation.trace import trace
from rolecast.types import Action, Gold, Observation, Question, Reward, Thread, Trajectory


def action(id: str, text: str, logprobs: tuple[float, ...] = (-0.5, -1.5), valid: bool = True) -> Action:
    return Action(id, tuple(range(len(logprobs))), logprobs, "run/0.1", text, "stop", valid)


@pytest.fixture
def trajectory() -> Trajectory:
    question = Question("q1", "Who is the mentor of Brol Tan?", Gold(("Vrek Stom",), passages=("p1",)), "chain", 1)
    planner = Thread("t#0", "planner", "shared", turns=[Observation((1, 2, 3), "prompt", ("memory", "question")), action("t/a0", "query")])
    answerer = Thread(
        "t#1", "answerer", "shared", probe=True, turns=[Observation((4,), "evidence", ("p1",)), action("t/p0", "x", valid=False)]
    )
    rewards = [
        Reward("role", "t/a0", 1.0, "judge.planner", "asks for the missing fact"),
        Reward("team.em", "t", 1.0, "text"),
        Reward("role", "t/p0", None, "judge.answerer", "no verdict"),
    ]
    return Trajectory(
        "t", question, "g", 0, "decor", 0, threads=[planner, answerer], answer="Vrek Stom", searches=1, retrieved=["p1", "p2"],
        states={"t/a0": object()}, rewards=rewards,
    )  # fmt: skip


def test_structure(trajectory: Trajectory) -> None:
    assert trace(trajectory) == {
        "id": "t",
        "question": "Who is the mentor of Brol Tan?",
        "type": "chain",
        "hops": 1,
        "golds": ["Vrek Stom"],
        "answer": "Vrek Stom",
        "status": "ok",
        "fault": "",
        "searches": 1,
        "retrieved": ["p1", "p2"],
        "gold_passages": ["p1"],
        "rewards": [{"name": "team.em", "value": 1.0, "source": "text", "reason": ""}],
        "threads": [
            {
                "id": "t#0",
                "role": "planner",
                "key": "",
                "probe": False,
                "turns": [
                    {"kind": "observation", "text": "prompt", "sources": ["memory", "question"], "tokens": 3},
                    {
                        "kind": "action",
                        "id": "t/a0",
                        "text": "query",
                        "tokens": 2,
                        "valid": True,
                        "finish": "stop",
                        "logprob": -1.0,
                        "rewards": [{"name": "role", "value": 1.0, "source": "judge.planner", "reason": "asks for the missing fact"}],
                    },
                ],
            },
            {
                "id": "t#1",
                "role": "answerer",
                "key": "",
                "probe": True,
                "turns": [
                    {"kind": "observation", "text": "evidence", "sources": ["p1"], "tokens": 1},
                    {
                        "kind": "action",
                        "id": "t/p0",
                        "text": "x",
                        "tokens": 2,
                        "valid": False,
                        "finish": "stop",
                        "logprob": -1.0,
                        "rewards": [{"name": "role", "value": None, "source": "judge.answerer", "reason": "no verdict"}],
                    },
                ],
            },
        ],
    }


def test_with_a_task_it_has_the_score_that_the_task_gives(trajectory: Trajectory) -> None:
    assert {**trace(trajectory), "measure": "em", "score": 1.0} == trace(trajectory, QA)
    graded = trace(replace_rewards(trajectory, 0.2, 0.6), find("reward:rubric"))
    assert (graded["measure"], graded["score"]) == ("rubric", pytest.approx(0.4))
    assert trace(replace_rewards(trajectory, None), find("reward:rubric"))["score"] is None


def replace_rewards(trajectory: Trajectory, *values: float | None) -> Trajectory:
    return replace(trajectory, rewards=[Reward("rubric", "t", value) for value in values])


def test_is_deterministic_json(trajectory: Trajectory) -> None:
    assert json.dumps(trace(trajectory), allow_nan=False) == json.dumps(trace(trajectory), allow_nan=False)


@pytest.mark.parametrize("logprobs", [(), (-1.0, float("-inf")), (float("nan"),)])
def test_no_finite_mean_is_null(trajectory: Trajectory, logprobs: tuple[float, ...]) -> None:
    trajectory.threads[0].turns[1] = action("t/a0", "query", logprobs)
    turn = trace(trajectory)["threads"][0]["turns"][1]
    assert turn["logprob"] is None
    assert turn["tokens"] == len(logprobs)


def test_a_reward_that_is_not_finite_is_unscored(trajectory: Trajectory) -> None:
    trajectory.rewards = [replace(trajectory.rewards[1], value=float("nan"))]
    assert trace(trajectory)["rewards"][0]["value"] is None


def test_no_reward_is_lost(trajectory: Trajectory) -> None:
    trajectory.rewards.append(Reward("stray", "an id that nothing has", 0.5))
    assert [reward["name"] for reward in trace(trajectory)["rewards"]] == ["team.em", "stray"]
