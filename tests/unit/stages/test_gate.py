"""Whether a team takes the place of the deployed one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolecast.errors import InputError
from rolecast.stages.gate import Team, decide, notes
from rolecast.stages.run import create
from rolecast.store.artifact import writing
from tests.tiny_runs import taught


def team(folder: Path, scores: list[float], model: str = "", corpus: str = "the corpus", headline: str = "em", **more: Any) -> Team:
    """A run with an evaluation that gave its questions these scores."""
    run = create(folder, taught(**more))
    with writing(run.index, "index", {}) as partial:
        (partial / "corpus.jsonl").write_text(corpus)
    with writing(run.model("sft"), "model", {}) as partial:
        (partial / "weights").write_text(model or folder.name)
    rows = [{"id": str(n), "question": f"q{n}", "golds": ["a"], "scores": {"em": score, "f1": score}} for n, score in enumerate(scores)]
    with writing(run.evaluation("sft"), "evaluation", {}) as partial:
        (partial / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (partial / "result.json").write_text(json.dumps({"headline": headline}))
    return Team(run, "sft")


HALF = [0.0, 1.0] * 50
BETTER = [1.0] * 70 + [0.0, 1.0] * 15


def test_what_is_better_for_sure_is_deployed(tmp_path: Path) -> None:
    new, old = team(tmp_path / "new", BETTER), team(tmp_path / "old", HALF)
    decision = decide(new, old, 0.0, 100)
    assert decision.deploys
    assert (decision.measure, decision.questions) == ("em", 100)
    assert decision.mean == pytest.approx(0.35)
    assert 0.2 < (decision.low or 0) < 0.35 < (decision.high or 0) < 0.5
    assert "+0.3500" in notes(new, old, decision)
    assert not decide(old, new, 0.0, 100).deploys


def test_the_interval_is_of_pairs(tmp_path: Path) -> None:
    """Three questions of a hundred more, none less: far less than two independent samples could tell apart."""
    new = [1.0 if n in (0, 2, 4, 6) else score for n, score in enumerate(HALF)]
    decision = decide(team(tmp_path / "new", new), team(tmp_path / "old", HALF), 0.0, 100)
    assert decision.deploys
    assert (decision.low or 0) > 0


def test_what_is_no_better_is_kept_out_unless_a_margin_lets_it_in(tmp_path: Path) -> None:
    same = team(tmp_path / "new", HALF), team(tmp_path / "old", HALF)
    assert not decide(*same, 0.0, 100).deploys
    assert not decide(*same, 0.03, 100).deploys  # of a hundred questions that all came out alike
    assert decide(*same, 0.04, 100).deploys
    worse = [0.0] * 20 + HALF[20:]
    assert not decide(team(tmp_path / "worse", worse), same[1], 0.04, 100).deploys


def test_the_first_one_is_deployed_and_the_same_one_is_not_again(tmp_path: Path) -> None:
    first = team(tmp_path / "new", HALF)
    assert decide(first, None, 0.0, 100).deploys
    decision = decide(first, first, 1.0, 1)
    assert not decision.deploys
    assert "is deployed already" in decision.reason
    assert "| deployed | nothing |" in notes(first, None, decide(first, None, 0.0, 100))


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    new, old = team(tmp_path / "new", HALF), team(tmp_path / "old", HALF[:60])
    with pytest.raises(InputError, match="asked 60 test questions in common with a score em, and 61 are wanted"):
        decide(new, old, 0.0, 61)
    with pytest.raises(InputError, match="search another index"):
        decide(new, team(tmp_path / "other", HALF, corpus="another"), 0.0, 1)
    with pytest.raises(InputError, match="asked 0 test questions in common with a score anls"):
        decide(team(tmp_path / "third", HALF, headline="anls"), old, 0.0, 1)
    empty = Team(create(tmp_path / "empty", taught()), "sft")
    with pytest.raises(InputError, match="was not evaluated"):
        decide(empty, None, 0.0, 1)
