"""Two evaluations of the same questions, question by question."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolecast.errors import InputError
from rolecast.evaluation.attribution import FAULTS
from rolecast.evaluation.comparison import paired
from rolecast.evaluation.pages import pages
from rolecast.evaluation.table import aligned
from rolecast.evaluation.wrong_pages import PREDICTION, about

Predictions = Mapping[str, Mapping[str, Any]]  # by what was asked and what is right


@dataclass(frozen=True, slots=True)
class Pair:
    """One question, and how both did."""

    a: Mapping[str, Any]
    b: Mapping[str, Any]
    score_a: float
    score_b: float

    @property
    def change(self) -> float:
        return self.score_b - self.score_a


@dataclass(frozen=True, slots=True)
class Diff:
    """`pairs`: what got worse first, then what got better, the most before the least, then the rest. `alone`: questions that one of them
    lacks, or has no such score of. `paired`: of B − A, as `comparison.paired`, of every score that both have."""

    a: str
    b: str
    measure: str
    pairs: Sequence[Pair]
    alone: tuple[int, int]
    paired: Mapping[str, Mapping[str, Any]]

    @property
    def changed(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.change]


def diff(a: str, of_a: Predictions, b: str, of_b: Predictions, measure: str = "em") -> Diff:
    """InputError where no question has the score in both."""
    pairs = []
    differences: dict[str, dict[str, float]] = {}
    for key in (key for key in of_a if key in of_b):
        scores = [of[key]["scores"] for of in (of_a, of_b)]
        for name, value in scores[0].items():
            if value is not None and scores[1].get(name) is not None:
                differences.setdefault(name, {})[key] = scores[1][name] - value
        if key in differences.get(measure, {}):
            pairs.append(Pair(of_a[key], of_b[key], scores[0][measure], scores[1][measure]))
    if not pairs:
        have = f"; name another by --measure: {', '.join(differences)}" if differences else ""
        raise InputError(f"{a} and {b} have no question in common that both have the score {measure!r} of{have}")
    pairs.sort(key=lambda pair: (pair.change == 0, pair.change > 0, -abs(pair.change)))
    alone = (len(of_a) - len(pairs), len(of_b) - len(pairs))
    return Diff(a, b, measure, pairs, alone, {name: paired([of]) for name, of in differences.items()})


def sentence(found: Diff) -> str:
    """What the difference is, and of how many questions."""
    own = found.paired[found.measure]
    name = "EM" if found.measure == "em" else found.measure
    before, after = (sum(scores) / own["n"] for scores in zip(*((pair.score_a, pair.score_b) for pair in found.pairs), strict=True))
    better, worse = (sum(sign * pair.change > 0 for pair in found.pairs) for sign in (1, -1))
    test = f", McNemar's p = {own['p']:.3g}" if "p" in own else ""
    return (
        f"{name} of A is {100 * before:.1f}, of B {100 * after:.1f}: B − A is {100 * own['mean']:+.1f} [{100 * own['low']:+.1f}, {100 * own['high']:+.1f}]"
        f" over {own['n']:,} questions; {better:,} got better, {worse:,} worse{test}"
    )  # fmt: skip


def alone(found: Diff) -> str:
    """Of questions that were left out; "" where there are none."""
    return (
        f"left out: {found.alone[0]:,} questions of A and {found.alone[1]:,} of B that the other has no such score of"
        if any(found.alone)
        else ""
    )


def diff_table(found: Diff, most: int) -> str:
    """The differences of all scores, and at most so many questions whose score changed."""
    scores = [
        [name, f"{100 * of['mean']:+.1f}", f"{100 * of['low']:+.1f} – {100 * of['high']:+.1f}", str(of["n"]), f"{of['p']:.3g}" if "p" in of else "–"]
        for name, of in found.paired.items()
    ]  # fmt: skip
    lines = [f"A: {found.a}", f"B: {found.b}", sentence(found), *filter(None, [alone(found)])]
    lines += ["", aligned(["score", "B − A", "95 % interval", "n", "McNemar's p"], scores)]
    if shown := found.changed[:most]:
        rows = [
            [_cut(pair.a["question"], 60), _cut(_answer(pair.a), 24), _cut(_answer(pair.b), 24), f"{100 * pair.change:+.0f}"]
            for pair in shown
        ]
        lines += ["", aligned(["question", "A", "B", "change"], rows)]
    if left := len(found.changed) - len(shown):
        lines.append(f"and {left:,} more")
    return "\n".join(lines)


def diff_pages(found: Diff) -> Iterator[tuple[str, str]]:
    """(file name, HTML); the first page is index.html."""
    own = {
        "a": f"A: {found.a}", "b": f"B: {found.b}", "measure": "EM" if found.measure == "em" else found.measure, "n": len(found.pairs),
        "sentence": f"{sentence(found)}.", "alone": alone(found),
    }  # fmt: skip
    title, rows = f"{found.a} and {found.b}, question by question", (_row(pair) for pair in found.pairs)
    return pages("diff.html.jinja", rows, len(found.pairs), page_name, lambda row: row, title=title, found=own)


def page_name(page: int) -> str:
    return "index.html" if page == 1 else f"page-{page:04d}.html"


def _row(pair: Pair) -> dict[str, Any]:
    a, b = ({**PREDICTION, **side} for side in (pair.a, pair.b))
    sides = [
        {"answer": side["answer"], "fault": FAULTS.get(side["fault"], ""), "score": score}
        for side, score in ((a, pair.score_a), (b, pair.score_b))
    ]
    return {"question": a["question"], "about": about(a), "golds": a["golds"], "a": sides[0], "b": sides[1], "change": pair.change}


def _answer(side: Mapping[str, Any]) -> str:
    answer = side.get("answer")
    return f"({side.get('status', 'none')})" if answer is None else str(answer)


def _cut(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"
