"""Several models as one judge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scripted import TWO_HOPS

from rolecast.errors import InputError
from rolecast.judge.app import make_judge, open_judge
from rolecast.judge.client import HttpJudge
from rolecast.judge.ensemble import EnsembleJudge, agreed
from rolecast.judge.settings import JudgeSettings
from rolecast.ports import Verdict
from tests.endpoint import answering, completion, marked
from tests.live import serving

INPUTS: dict[str, Any] = {"question": TWO_HOPS.text, "gold": TWO_HOPS.gold, "prediction": "Kel Dax"}


@pytest.mark.parametrize(
    ("scores", "averaged", "score"),
    [
        ((1.0, 1.0, -1.0), False, 1.0),
        ((1.0, -1.0, -1.0), False, -1.0),
        ((1.0, -1.0), False, None),
        ((1.0, 1.0), False, 1.0),
        ((1.0, None, 1.0), False, 1.0),
        ((1.0, None, -1.0), False, None),
        ((1.0, None, None), False, None),  # one of three is no majority
        ((1.0, None), False, None),
        ((None, None, None), False, None),
        ((0.25, 1.0, 0.5), False, 0.5),
        ((0.0, 0.25, 0.75, 1.0), False, None),
        ((0.0, 0.25, 0.25, 1.0), False, 0.25),
        ((0.9, 0.2), True, 0.55),
        ((0.9, 0.2, 0.1), True, 0.2),
        ((0.0, 0.0, 1.0), True, 0.0),
    ],
)
def test_the_middle_one_is_the_verdict(scores: tuple[float | None, ...], averaged: bool, score: float | None) -> None:
    verdict = agreed({f"m{at}": Verdict(one, "so", 10) for at, one in enumerate(scores)}, averaged)
    assert verdict.score == (None if score is None else pytest.approx(score))
    assert verdict.tokens == 10 * len(scores)
    assert "m1" in verdict.reason


def test_the_levels_of_two_texts_are_those_of_the_middle_one() -> None:
    pairs = [(1.0, 0.25), (0.5, 0.5), (0.25, 1.0)]
    found = agreed({f"m{at}": Verdict(own / (own + other), levels=(own, other)) for at, (own, other) in enumerate(pairs)}, averaged=False)
    assert (found.score, found.levels) == (0.5, (0.5, 0.5))


def test_models_are_asked_each_by_its_name_and_named_together() -> None:
    said = {"a": "YES", "b": "NO", "c": "YES"}
    with answering() as (endpoint_url, endpoint):
        endpoint.replies = [lambda body: completion(marked(f"Score: {said[body['model']]}", body))]
        settings = JudgeSettings(judge_backend="ensemble", judge_openai_url=endpoint_url, judge_openai_model="a, b,c")
        with serving(*make_judge(settings)) as url:

            async def asked() -> tuple[Verdict, str]:
                judge = HttpJudge(url)
                return await judge.judge("answer", INPUTS), (await judge.info()).model

            verdict, name = asyncio.run(asked())
    assert (verdict.score, name) == (1.0, "a+b+c")
    assert sorted(body["model"] for body in endpoint.bodies) == ["a", "b", "c"]
    assert "b: 0" in verdict.reason


def test_an_ensemble_is_of_several() -> None:
    for models in ("a", "a,a"):
        with pytest.raises(InputError, match="two models or more"):
            open_judge(JudgeSettings(judge_backend="ensemble", judge_openai_url="http://x", judge_openai_model=models), {})
    with pytest.raises(InputError, match="two models or more"):
        EnsembleJudge({})
