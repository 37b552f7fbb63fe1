"""A judge against people: agreement, kappa and biases, worked by hand."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rolecast.cli import main
from rolecast.errors import InputError, RolecastError
from rolecast.judge.calibration import Calibration, Length, Position, calibrate, kappa, read_rows, turned_round, wilson
from rolecast.ports import JudgeInfo, Verdict

GOLD = {"answers": ["Kel Dax", "Dax"]}


class Told:
    """Scores by the prediction: it says its score itself. `order`: what is added where the first accepted answer is another."""

    def __init__(self, order: float = 0.0) -> None:
        self.order = order

    async def info(self) -> JudgeInfo:
        return JudgeInfo("told")

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        said = str(inputs.get("prediction", inputs.get("report", inputs.get("content")))).split()[0]
        if said == "none":
            return Verdict(None, "no idea")
        return Verdict(float(said) + (self.order if inputs["gold"]["answers"][0] == "Dax" else 0.0), "so")


def row(expected: float, prediction: str, answers: list[str] | None = None) -> dict[str, Any]:
    return {
        "kind": "answer",
        "inputs": {"question": "q", "gold": {"answers": answers or ["x"]}, "prediction": prediction},
        "expected": expected,
    }


def written(tmp_path: Path, rows: list[Any]) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in rows) + "\n")
    return file


def calibrated(tmp_path: Path, rows: list[Any], order: float = 0.0) -> list[Calibration]:
    return asyncio.run(calibrate(Told(order), read_rows(written(tmp_path, rows))))


def test_agreement_and_kappa(tmp_path: Path) -> None:
    """Of 10: 4 right and so found, 3 wrong and so found, 2 wrong and found right, 1 right and found wrong."""
    rows = [row(1, "1")] * 4 + [row(0, "0")] * 3 + [row(0, "0.5")] * 2 + [row(1, "0.4")]
    [found] = calibrated(tmp_path, rows)
    assert (found.kind, found.n, found.unscored, found.agreement) == ("answer", 10, 0, 0.7)
    assert found.kappa == pytest.approx(0.4)  # p_e = .5 · .6 + .5 · .4
    assert found.lenient == pytest.approx(0.1)
    assert found.position is None


def test_unscored_rows_are_counted_and_in_no_share(tmp_path: Path) -> None:
    [found] = calibrated(tmp_path, [row(1, "1"), row(0, "none"), row(0, "0"), row(1, "none")])
    assert (found.n, found.unscored, found.agreement, found.reasons) == (4, 2, 1.0, {"no idea": 2})


def test_bias_by_length(tmp_path: Path) -> None:
    """Wrong answers: the short ones are found wrong, of the long ones two of three are found right."""
    rows = [row(0, "0 x"), row(0, "0 xx"), row(0, "0 xxx"), row(0, "0 " + "x" * 50), row(0, "1 " + "x" * 60), row(0, "1 " + "x" * 70)]
    [found] = calibrated(tmp_path, rows)
    assert found.length == Length(0.0, pytest.approx(2 / 3))
    assert calibrated(tmp_path, [row(1, "1")] * 3)[0].length is None  # all of one length


def test_bias_by_order(tmp_path: Path) -> None:
    """Where the other accepted answer comes first, 0.25 is added: of three rows that have two, one passes 0.5 then."""
    two = ["Kel Dax", "Dax"]
    [found] = calibrated(tmp_path, [row(0, "0.3", two), row(0, "0", two), row(1, "0.6", two), row(1, "0.3")], order=0.25)
    assert found.position == Position(3, pytest.approx(1 / 3), pytest.approx(0.25))


@pytest.mark.parametrize(
    ("inputs", "other"),
    [
        ({"gold": {"answers": ["a", "b"]}}, {"gold": {"answers": ["b", "a"]}}),
        ({"documents": ["1", "2"], "gold": {"answers": []}}, {"documents": ["2", "1"], "gold": {"answers": []}}),
        ({"gold": {"answers": ["a"]}, "documents": ["1"]}, None),
        ({"content": "ab"}, None),
    ],
)
def test_lists_are_turned_round(inputs: dict[str, Any], other: Any) -> None:
    assert turned_round(inputs) == other


def test_levels_agree_as_levels_and_signs_as_signs(tmp_path: Path) -> None:
    rubric = {"question": "q", "gold": GOLD, "item": "i"}
    planner = {"question": "q", "gold": GOLD, "queries": [], "memory": ""}
    rows: list[Any] = [
        {"kind": "rubric", "inputs": {**rubric, "report": "0.75"}, "expected": 1},
        {"kind": "rubric", "inputs": {**rubric, "report": "0.5"}, "expected": 0.5},
        {"kind": "decor.planner", "inputs": {**planner, "content": "-1"}, "expected": -1},
        {"kind": "decor.planner", "inputs": {**planner, "content": "1"}, "expected": -1},
        {"kind": "decor.planner", "inputs": {**planner, "content": "1"}, "expected": 1},
    ]
    levels, signs = calibrated(tmp_path, rows)
    assert (levels.kind, levels.agreement, levels.lenient) == ("rubric", 0.5, -0.125)
    assert (signs.kind, signs.agreement) == ("decor.planner", pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("same", "n", "low", "high"), [(32, 32, 0.8928, 1.0), (0, 32, 0.0, 0.1072), (50, 100, 0.4038, 0.5962), (1, 1, 0.2065, 1.0)]
)
def test_wilsons_interval(same: int, n: int, low: float, high: float) -> None:
    assert wilson(same, n) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_kappa_of_levels() -> None:
    """Of 8 pairs 5 are equal; p_e = (2·1 + 1·2 + 2·1 + 1·2 + 2·2) / 64."""
    pairs = [(0.0, 0.25), (0.25, 0.25), (0.5, 0.5), (1.0, 0.75), (1.0, 1.0), (0.0, 0.0), (0.75, 0.75), (0.5, 1.0)]
    assert kappa(pairs) == pytest.approx((0.625 - 0.1875) / 0.8125)
    assert kappa([(1.0, 1.0)] * 3) is None
    assert kappa([(1.0, 0.0), (0.0, 1.0)]) == -1.0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: the row"),
        ({"kind": "answer", "inputs": {}}, "line 2: expected"),
        ({**row(1, "1"), "expected": 2}, "line 2: expected"),
        ({**row(1, "1"), "more": 1}, "line 2: more"),
        ({**row(1, "1"), "kind": "who.knows"}, "line 2: no judge has the kind 'who.knows'"),
        ({"kind": "answer", "inputs": {"question": "q", "gold": GOLD}, "expected": 1}, "line 2: inputs of 'answer' lack 'prediction'"),
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_rows(written(tmp_path, [row(1, "1"), line]))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no rows"):
        read_rows(written(tmp_path, ["", " "]))
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "none")


def test_a_judge_without_any_score_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RolecastError, match="none of 2 verdicts of answer has a score, most often: no idea"):
        calibrated(tmp_path, [row(1, "none"), row(0, "none")])


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.delenv("ROLECAST_JUDGE_URL", raising=False)
    monkeypatch.setattr(sys, "argv", ["rolecast", "judge", "calibrate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return int(ended.value.code or 0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(1, "Kel Dax", ["Kel Dax", "Dax"]), row(0, "Brol", ["Kel Dax", "Dax"]), row(1, "Dax, Kel", ["Kel Dax"])]
    out = tmp_path / "out.json"
    assert command(monkeypatch, str(written(tmp_path, rows)), "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert "judge lexical, 3 rows" in said
    assert "answer: 3 rows, 0 unscored\n  agreement 66.7% [20.8%, 93.9%], kappa 0.40" in said
    assert "of 2 rows with lists 0.0% change" in said
    [told] = json.loads(out.read_text())["kinds"]
    assert (told["n"], told["kappa"]) == (3, pytest.approx(0.4))


def test_the_command_ends_with_one_line_where_a_row_is_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(monkeypatch, str(written(tmp_path, ["{"]))) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
