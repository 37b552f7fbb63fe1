"""What RL added: paired differences on the same test questions, against the model that it began with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import make_config
from rolecast.evaluation.table import Gains, gained
from rolecast.methods.registry import find
from rolecast.stages.gains import differences, gains, start_of_rl
from rolecast.stages.report import report
from rolecast.stages.run import Run, create
from rolecast.store.artifact import writing


def evaluated(run: Run, stage: str, ems: dict[str, float], f1: float = 0.5) -> None:
    """An evaluation whose questions scored so; the order of questions is another each time."""
    folder = run.evaluation(stage)
    rows = [
        {"id": id, "question": f"{id}?", "golds": ["g"], "scores": {"em": em, "f1": f1}}
        for id, em in sorted(ems.items(), reverse=stage == "rl")
    ]
    result: dict[str, Any] = {
        "headline": "em", "em": sum(ems.values()) / len(ems), "f1": f1, "ci95": [0.0, 1.0], "by_hops": {}, "by_type": {}, "valid": 1.0,
        "gold_recall": None, "tokens_per_question": 1.0, "searches_per_question": 1.0, "n": len(ems),
    }  # fmt: skip
    with writing(folder, "evaluation", {"fingerprint": run.fingerprint}) as partial:
        (partial / "result.json").write_text(json.dumps(result))
        (partial / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (partial / "traces.json").write_text("[]")
    run.record(folder)


def test_differences_are_question_by_question() -> None:
    before = {"a": {"em": 0.0, "f1": 0.5}, "b": {"em": 1.0, "f1": 1.0}, "c": {"em": 1.0, "f1": 1.0}}
    after = {"a": {"em": 1.0, "f1": 1.0}, "b": {"em": 1.0, "f1": None}, "d": {"em": 0.0, "f1": 0.0}}
    found = differences(after, before)
    assert (found["em"]["mean"], found["em"]["n"]) == (0.5, 2)  # a gained 1, b nothing; c and d were asked once
    assert (found["f1"]["mean"], found["f1"]["n"]) == (0.5, 1)
    assert differences(before, before)["em"] == {
        "mean": 0.0, "low": pytest.approx(0.025 ** (1 / 3) - 1), "high": pytest.approx(1 - 0.025 ** (1 / 3)), "n": 3, "better": 0, "worse": 0, "p": 1.0,
    }  # fmt: skip


def test_a_summary_has_what_rl_added_over_its_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = create(tmp_path / "run", make_config({}, "here"))
    evaluated(run, "sft", {f"q{i}": float(i % 2) for i in range(8)})
    assert "gains" not in json.loads(report(run).read_text())
    evaluated(run, "rl", {f"q{i}": float(i % 4 != 0) for i in range(8)})
    summary = json.loads(report(run).read_text())
    assert summary["gains"]["over"] == "sft"
    assert summary["gains"]["stages"]["rl"]["em"]["mean"] == 0.25  # q2 and q6 of eight
    assert summary["gains"]["stages"]["rl"]["f1"]["mean"] == 0.0
    [line] = gained(Gains.model_validate(summary["gains"]), summary["stages"])
    assert line.startswith("rl − sft, question by question: EM +25.0 [")
    assert "f1" not in line  # no score of a task of its own here


def test_all_later_stages_are_held_against_the_one_that_rl_began_with(tmp_path: Path) -> None:
    schedule = find("decomposer")(find("decomposer").config_type()).schedule()
    assert start_of_rl(schedule) == "sft"
    assert start_of_rl(schedule[:1]) == ""
    run = create(tmp_path / "run", make_config({"method": {"name": "decomposer"}}, "here"))
    for stage, right in (("sft", 1), ("planner", 2), ("answerer", 4)):
        evaluated(run, stage, {f"q{i}": float(i < right) for i in range(4)})
    found = gains(run, ["sft", "planner", "answerer"])["stages"]
    assert {stage: scores["em"]["mean"] for stage, scores in found.items()} == {"planner": 0.25, "answerer": 0.75}
    assert gains(run, ["planner", "answerer"]) == {}
