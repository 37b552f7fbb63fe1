"""Which evaluations are compared, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolecast.config import make_config
from rolecast.errors import InputError
from rolecast.stages.diff import compare_evaluations, write_diff
from rolecast.stages.run import Run, create
from rolecast.store.artifact import writing


def put(folder: Path, ems: list[float]) -> None:
    rows = [
        {"id": f"q{n}", "question": "?", "golds": ["g"], "answer": "a", "status": "ok", "scores": {"em": em}} for n, em in enumerate(ems)
    ]
    with writing(folder, "evaluation", {}) as partial:
        (partial / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = create(tmp_path / "run", make_config({}, "here"))
    put(made.evaluation("sft"), [0.0, 1.0])
    return made


def test_the_last_stage_that_was_evaluated_is_compared(run: Run, tmp_path: Path) -> None:
    put(tmp_path / "eval" / "evaluation", [1.0, 1.0])
    found = compare_evaluations(run.place, str(tmp_path / "eval"))
    assert (found.a, found.b) == (f"{run.place}, sft", str(tmp_path / "eval"))
    assert [pair.change for pair in found.pairs] == [1.0, 0.0]
    put(run.evaluation("rl"), [1.0, 0.0])
    assert compare_evaluations(run.place, run.place, "sft").b == f"{run.place}, rl"
    assert [pair.change for pair in compare_evaluations(run.place, run.place, "sft", "rl").pairs] == [-1.0, 1.0]


def test_what_was_not_evaluated_cannot_be_compared(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rl not evaluated; run `rolecast eval .* --stage rl`"):
        compare_evaluations(run.place, run.place, "rl")
    with pytest.raises(InputError, match="not a run"):
        compare_evaluations(run.place, str(tmp_path / "nowhere"))
    put(tmp_path / "eval" / "evaluation", [1.0])
    with pytest.raises(InputError, match="without a run: it has no stage 'rl'"):
        compare_evaluations(run.place, str(tmp_path / "eval"), "", "rl")


def test_pages_replace_those_of_before_and_nothing_else(run: Run, tmp_path: Path) -> None:
    found, out = compare_evaluations(run.place, run.place), tmp_path / "diff"
    out.mkdir()
    (out / "page-0002.html").write_text("old")
    assert write_diff(found, out) == out / "index.html"
    assert [path.name for path in out.iterdir()] == ["index.html"]
    with pytest.raises(InputError, match="holds something else than a diff"):
        write_diff(found, run.path)
