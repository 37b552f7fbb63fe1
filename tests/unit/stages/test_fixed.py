"""Evaluation on the documents that another run's team found: what is given, what is refused, and where it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rolecast.cli import runs
from rolecast.config import make_config
from rolecast.errors import InputError
from rolecast.leasing import Group
from rolecast.methods.base import DOCUMENTS
from rolecast.rollout.clock import Clock
from rolecast.rollout.collect import Collector, Tell
from rolecast.stages import evaluate as evaluate_stage
from rolecast.stages.evaluate import evaluate
from rolecast.stages.fixed import Found
from rolecast.stages.run import Run, create
from rolecast.store.artifact import writing
from rolecast.types import Action, Gold, Question, Thread, Trajectory
from tests.tiny import RENDERER

QUESTIONS = [Question(f"q{n}", f"Who is {n}?", Gold((f"name {n}",)), given={"kept": n}) for n in range(3)]
ROWS = [{"id": f"q{n}", "golds": [f"name {n}"], "retrieved": [f"p{n}", "p9", f"p{n}"]} for n in range(4)]


def run_of(folder: Path, name: str, method: str = "dac", corpus: str = "words") -> Run:
    run = create(folder / name, make_config({"name": name, "method": {"name": method}, "eval": {"n": 3}}, "here"))
    with writing(run.index, "index", {}) as partial:
        (partial / "corpus.jsonl").write_text(corpus)
    return run


def evaluated(run: Run, rows: Sequence[Mapping[str, Any]] = ROWS, stage: str = "rl") -> Found:
    with writing(run.evaluation(stage), "evaluation", {}) as partial:
        (partial / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Found(run, stage)


def test_questions_are_given_what_was_found_for_them_each_once(tmp_path: Path) -> None:
    found = evaluated(run_of(tmp_path, "other", "search_r1"))
    assert [dict(question.given) for question in found.given_to(QUESTIONS)] == [{"kept": n, DOCUMENTS: [f"p{n}", "p9"]} for n in range(3)]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (ROWS[:2], r"question q2 is not in its evaluation of rl; give both runs one eval.n"),
        ([*ROWS[:2], {**ROWS[2], "golds": ["x"]}], "question q2 has other answers there; take a run on the same data"),
        ([{"id": "q0", "golds": ["name 0"]}], "its evaluation of rl kept no documents; evaluate it anew"),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path: Path, rows: list[dict[str, Any]], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        evaluated(run_of(tmp_path, "other", "search_r1"), rows).given_to(QUESTIONS)


def test_what_cannot_be_is_said_before_any_work(tmp_path: Path) -> None:
    own, other = run_of(tmp_path, "own"), run_of(tmp_path, "other", "search_r1")
    with pytest.raises(InputError, match="other has no evaluation of rl; run `rolecast eval"):
        evaluate(own, "rl", found=Found(other, "rl"))
    found = evaluated(other)
    with pytest.raises(InputError, match="method search_r1 does not answer from given documents; these do: dac"):
        evaluate(other, "rl", found=found)
    with pytest.raises(InputError, match="searched another corpus than"):
        evaluate(own, "rl", found=evaluated(run_of(tmp_path, "foreign", "search_r1", "other words")))


class Silent:
    """An engine that nobody asks."""

    version, branches = "v", 0

    async def __aenter__(self) -> Silent:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """The questions of the episodes that were played."""
    seen: list[Question] = []

    async def play_group(collector: Collector, group: Group, ended: Tell) -> list[Trajectory]:
        seen.append(group.question)
        assert collector.clocks is not None
        collector.clocks["t"] = Clock()
        said = Thread("t", "generator", "generator", turns=[Action("t#0", (1,), (0.0,), "v", "", "stop")])
        return [Trajectory("t", group.question, group.id, 0, "dac", 0, threads=[said], answer="x", retrieved=["a", "b"])]

    monkeypatch.setattr(Collector, "play_group", play_group)
    monkeypatch.setattr(evaluate_stage, "finished_engine", lambda *_, **how: (Silent(), RENDERER))
    for name in ("require_model", "prepare_torch", "open_retriever", "open_judge"):
        monkeypatch.setattr(evaluate_stage, name, lambda *_: None)
    monkeypatch.setattr(evaluate_stage, "load_questions", lambda run, split: QUESTIONS)
    return seen


def test_it_stands_beside_the_other_evaluation_and_says_whose_documents_they_are(tmp_path: Path, asked: list[Question]) -> None:
    own, other = run_of(tmp_path, "own"), run_of(tmp_path, "other", "search_r1")
    plain, fixed = evaluate(own, "rl"), evaluate(own, "rl", found=(found := evaluated(other)))
    assert [DOCUMENTS in question.given for question in asked] == [False] * 3 + [True] * 3
    assert (plain, fixed.parent) == (own.evaluation("rl"), plain.parent)
    assert fixed.name == f"rl-on-{found.digest}"
    provenance = json.loads((fixed / "manifest.json").read_text())["provenance"]
    assert provenance["documents"] == {"run": str(tmp_path / "other"), "stage": "rl"}
    assert evaluate(own, "rl", found=found) == fixed
    assert len(asked) == 6


def test_an_evaluation_keeps_what_was_retrieved(tmp_path: Path, asked: list[Question]) -> None:
    folder = evaluate(run_of(tmp_path, "own"), "rl")
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert {tuple(row["retrieved"]) for row in rows} == {("a", "b")}


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    own, other = run_of(tmp_path, "own"), run_of(tmp_path, "other", "search_r1")
    evaluated(other)
    evaluated(other, stage="sft")
    monkeypatch.setattr(runs, "opened", lambda *_, **__: own)
    calls: list[Any] = []
    monkeypatch.setattr(
        evaluate_stage, "evaluate", lambda run, stage, profile, found: calls.append((run, stage, found)) or own.evaluation("rl")
    )
    monkeypatch.setattr("rolecast.evaluation.table.results_table", lambda results: "table")
    with writing(own.evaluation("rl"), "evaluation", {}) as partial:
        (partial / "result.json").write_text("{}")
    runs.evaluate(str(own.path), documents=str(other.path))
    runs.evaluate(str(own.path), "sft", str(other.path), "sft")
    assert [(stage, found.run.path, found.stage) for _, stage, found in calls] == [("rl", other.path, "rl"), ("sft", other.path, "sft")]
    assert f"from the documents of {other.path}, stage rl" in capsys.readouterr().out
    with pytest.raises(InputError, match="give --documents too"):
        runs.evaluate(str(own.path), documents_stage="sft")
    with pytest.raises(InputError, match="--profile and --documents are two evaluations"):
        runs.evaluate(str(own.path), documents=str(other.path), profile="squad")
