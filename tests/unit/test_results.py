"""Tables of docs/results.md are made from committed files that say what made them."""

from __future__ import annotations

import importlib.util
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("results", ROOT / "scripts" / "results.py")
assert spec is not None
assert spec.loader is not None
results = importlib.util.module_from_spec(spec)
spec.loader.exec_module(results)

ORIGIN = {"commits": ["0123456789abcdef"], "commands": ["rolecast demo --seed 3"], "machines": ["2 cores of a processor, 2 threads"]}
RESULT = {
    "headline": "em", "em": 0.5, "ci95": [0.4, 0.625], "by_hops": {"1": {"em": 0.75}, "2": {"em": 0.25}}, "by_type": {"chain": {"em": 0.5}},
    "tokens_per_question": 41.6, "searches_per_question": 1.25, "n": 1008,
}  # fmt: skip
GAINS = {"over": "sft", "stages": {"rl": {"em": {"mean": 0.5, "low": 0.375, "high": 0.625, "n": 1008}}}}
STAGES = {"sft": RESULT, "rl": {**RESULT, "em": 1.0, "ci95": None}}
SUMMARY: dict[str, Any] = {"seed": 3, "origin": ORIGIN, "gains": GAINS, "stages": STAGES}
ROW = {
    "method": "decor", "mean": 0.5, "low": 0.25, "high": 0.75, "spread": None, "start": None, "training": {"sampled": 4000.0},
    "evaluation": {"sampled": 30.0, "frozen": 2.0, "searches": 2.5, "context": {"planner": 99, "filter": 40}}, "seconds": {"sft": 90.0},
}  # fmt: skip
COMPARISON: dict[str, Any] = {
    "seeds": [0, 1], "origin": ORIGIN, "measure": "em", "methods": [ROW, {**ROW, "method": "solo", "start": {"mean": 0.125}}],
    "pairs": [{"a": "solo", "b": "decor", "mean": -0.1, "low": -0.2, "high": 0.0}],
}  # fmt: skip


def folder_with(tmp_path: Path, **tables: dict[str, Any]) -> Path:
    for name, files in tables.items():
        (tmp_path / name).mkdir()
        for stem, content in files.items():
            (tmp_path / name / f"{stem}.json").write_text(json.dumps(content))
    return tmp_path


def test_the_page_is_what_its_files_say() -> None:
    text = results.PAGE.read_text()
    assert results.page(text, results.PAGE.with_suffix("")) == text, "run make results"


def test_a_summary_is_a_row_for_each_stage_and_says_what_made_it(tmp_path: Path) -> None:
    text = "# Results\n\n<!-- results: demo -->\nold\n<!-- end of demo -->\nby hand\n"
    assert (
        results.page(text, folder_with(tmp_path, demo={"demo-3": SUMMARY}))
        == """# Results

<!-- results: demo -->

| run | score | − its start of RL | 1 hop | 2 hops | chain | tokens / question | searches | n |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| demo-3, sft | 50.0 [40.0, 62.5] |  | 75.0 | 25.0 | 50.0 | 42 | 1.2 | 1,008 |
| demo-3, rl | 100.0 | +50.0 [+37.5, +62.5] | 75.0 | 25.0 | 50.0 | 42 | 1.2 | 1,008 |

- demo-3: seed 3; commit 0123456789ab; `rolecast demo --seed 3`; 2 cores of a processor, 2 threads.

<!-- end of demo -->
by hand
"""
    )


def test_further_tasks_have_scores_and_gains_of_their_own(tmp_path: Path) -> None:
    told = {**RESULT, "report": 0.25, "others": {"report": {"n": 1008, "ci95": [0.125, 0.375]}}}
    gains = {"over": "sft", "stages": {"rl": {"report": {"mean": -0.125, "low": -0.25, "high": 0.0, "n": 1008}}}}
    found = results.table(folder_with(tmp_path, demo={"a": {**SUMMARY, "gains": gains, "stages": {"sft": told, "rl": told}}}) / "demo")
    head, _, sft, rl = found.splitlines()[1:5]
    assert head.startswith("| run | score | − its start of RL | report | report − its start of RL | 1 hop |")
    assert sft.startswith("| a, sft | 50.0 [40.0, 62.5] |  | 25.0 [12.5, 37.5] |  | 75.0 |")
    assert rl.startswith("| a, rl | 50.0 [40.0, 62.5] |  | 25.0 [12.5, 37.5] | -12.5 [-25.0, +0.0] | 75.0 |")


def test_a_comparison_is_a_row_for_each_method(tmp_path: Path) -> None:
    found = results.table(folder_with(tmp_path, all={"comparison": COMPARISON}) / "all").splitlines()
    assert found[3] == "| decor | 50.0 [25.0, 75.0] | – |  | – | 4,000 | 32 | 2.5 | 99 | 1.5 |"
    assert found[4] == "| solo | 50.0 [25.0, 75.0] | – | -10.0 [-20.0, +0.0] | 12.5 | 4,000 | 32 | 2.5 | 99 | 1.5 |"
    assert found[6].startswith("- comparison: seeds 0, 1; commit 0123456789ab;")


def changed(**parts: Any) -> dict[str, Any]:
    found = deepcopy(SUMMARY)
    found["origin"] |= parts
    return found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({**SUMMARY, "origin": None}, "does not say its commits"),
        (changed(commands=[]), "does not say its commands"),
        (changed(machines=[]), "does not say its machines"),
        ({key: value for key, value in SUMMARY.items() if key != "seed"}, "does not say its seed"),
        (changed(commits=["unknown"]), "commit 'unknown' is none that can be checked out"),
        (changed(commits=["0123456789ab-changed"]), "commit '0123456789ab-changed' is none"),
        (changed(commands=["rolecast demo --run /somewhere/else"]), "names a place of one machine"),
        (changed(commands=["rolecast demo --set model.path=/models/x"]), "names a place of one machine"),
    ],
)
def test_a_file_that_cannot_be_made_again_is_refused(tmp_path: Path, content: dict[str, Any], said: str) -> None:
    with pytest.raises(results.Refused, match=said):
        results.table(folder_with(tmp_path, demo={"a": content}) / "demo")


@pytest.mark.parametrize(
    "content",
    [
        [], {**SUMMARY, "stages": {}}, {**SUMMARY, "stages": {"rl": {}}}, changed(machines="one"), {**SUMMARY, "seed": None},
        *({**SUMMARY, "stages": {"rl": {**RESULT, **wrong}}} for wrong in ({"em": float("nan")}, {"em": 7.5}, {"em": "x"}, {"ci95": [0.9, 0.1]})),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_by_its_name(tmp_path: Path, content: Any) -> None:
    with pytest.raises(results.Refused, match=r"a\.json: (it is damaged|what it says cannot be shown|it does not say)"):
        results.table(folder_with(tmp_path, demo={"a": content}) / "demo")
    (tmp_path / "demo" / "a.json").write_text('{"seed": 3')
    with pytest.raises(results.Refused, match=r"a\.json: it is damaged"):
        results.table(tmp_path / "demo")


def test_folders_and_places_belong_together(tmp_path: Path) -> None:
    with pytest.raises(results.Refused, match=r"docs/results/demo has no place in docs/results\.md"):
        results.page("nothing", folder_with(tmp_path, demo={"a": SUMMARY}))
    with pytest.raises(results.Refused, match=r"docs/results/other holds no \.json"):
        results.page("<!-- results: other -->\n<!-- end of other -->", tmp_path / "none")
    with pytest.raises(results.Refused, match="holds summaries and comparisons"):
        results.table(folder_with(tmp_path, mixed={"a": SUMMARY, "b": COMPARISON}) / "mixed")


def test_adding_takes_a_file_by_the_name_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "runs" / "demo-3").mkdir(parents=True)
    file = tmp_path / "runs" / "demo-3" / "summary.json"
    file.write_text(json.dumps(SUMMARY))
    results.add(tmp_path / "docs", "demo", [file])
    assert json.loads((tmp_path / "docs" / "demo" / "demo-3.json").read_text()) == SUMMARY
    file.write_text(json.dumps({"seed": 1}))
    with pytest.raises(results.Refused):
        results.add(tmp_path / "docs", "demo", [file])
