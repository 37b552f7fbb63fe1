"""Results as a text table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from rolecast.evaluation.latency import parts_of
from rolecast.reading import read_own


class Gains(BaseModel):
    """What later models score more than the one that RL began with, on the same questions: by stage, by score, with `low` and `high`."""

    over: str
    stages: dict[str, dict[str, dict[str, float]]]


class Summary(BaseModel):
    """What is printed of summary.json."""

    method: str
    seed: int
    stages: dict[str, dict[str, Any]]
    gains: Gains | None = None
    seconds: dict[str, float]
    report: str


def results_table(stages: Mapping[str, Mapping[str, Any]]) -> str:
    """One row per stage: the task's score with its interval (EM, unless all have another), the scores of further tasks with theirs, F1,
    the score by hops, share of replies in valid form, cost per question."""
    names = {result.get("headline", "em") for result in stages.values()}
    measure = names.pop() if len(names) == 1 else "score"
    others = list(dict.fromkeys(name for result in stages.values() for name in result.get("others", {})))
    hops = sorted({h for result in stages.values() for h in result["by_hops"]})
    head = [
        "stage",
        "EM" if measure == "em" else measure,
        "95 % interval",
        *[title for name in others for title in (name, "95 % interval")],
        "F1",
        *[f"{h} hop{'s' if h != '1' else ''}" for h in hops],
        "valid",
        "tokens",
        "searches",
        "n",
    ]
    rows = []
    for stage, result in stages.items():
        name = result.get("headline", "em")
        by_hops = [_percent(result["by_hops"].get(h, {}).get(name)) for h in hops]
        cost = [
            f"{100 * result['valid']:.1f}",
            f"{result['tokens_per_question']:.0f}",
            f"{result['searches_per_question']:.1f}",
            str(result["n"]),
        ]
        further = [cell for other in others for cell in (_percent(result.get(other)), _interval(result.get("others", {}).get(other, {})))]
        rows.append([stage, _percent(result[name]), _interval(result), *further, _percent(result.get("f1")), *by_hops, *cost])
    return aligned(head, rows)


def datasets_table(result: Mapping[str, Any]) -> str:
    """A row for each data set of a pooled set, and one for all; lenient scores beside the strict ones, where there are any."""
    lenient = {"lenient_em": "lenient EM", "lenient_f1": "lenient F1", "reply_cem": "CEM of reply"} if "lenient_em" in result else {}
    leads = result.get("headline", "em")
    further = {name: name for name in dict.fromkeys([leads, *result.get("others", {})]) if name not in ("em", "f1", "cem")}
    scores = {**further, "f1": "F1", "cem": "CEM", **lenient}
    head = ["data set", "n", "EM", "95 % interval", *scores.values(), "valid", "tokens", "searches"]
    rows = [
        [
            name, str(found["n"]), _percent(found.get("em")), _interval(found if result.get("headline", "em") == "em" else {}),
            *(_percent(found.get(score)) for score in scores),
            f"{100 * found['valid']:.1f}", f"{found['tokens_per_question']:.0f}", f"{found['searches_per_question']:.1f}",
        ]
        for name, found in [*result.get("by_dataset", {}).items(), ("all", result)]
    ]  # fmt: skip
    return aligned(head, rows)


def parts_table(stages: Mapping[str, Mapping[str, Any]]) -> str:
    """Of each stage how long a question took, each of its roles and its searches, and each role's longest context; "" where nothing tells."""
    rows = [
        [stage, row["part"], _seconds(row["p50"]), _seconds(row["p95"]), "–" if row["context"] is None else f"{row['context']:,}"]
        for stage, result in stages.items()
        for row in parts_of(result)
    ]
    return aligned(["stage", "part", "p50 s", "p95 s", "peak context"], rows) if rows else ""


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def gained(gains: Gains, stages: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for each later stage: the paired differences of its headline and of further tasks' scores."""
    lines = []
    for stage, differences in gains.stages.items():
        names = [stages[stage].get("headline", "em"), *stages[stage].get("others", {})]
        told = [
            f"{'EM' if name == 'em' else name} {100 * found['mean']:+.1f} [{100 * found['low']:+.1f}, {100 * found['high']:+.1f}]"
            for name in names
            if (found := differences.get(name))
        ]
        if told:
            lines.append(f"{stage} − {gains.over}, question by question: {', '.join(told)}")
    return lines


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in [head, *rows]
    ]
    return "\n".join([lines[0], "─" * len(lines[0]), *lines[1:]])


def _interval(score: Mapping[str, Any]) -> str:
    low, high = score.get("ci95") or (None, None)
    return f"{_percent(low)} – {_percent(high)}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}"


def print_summary(path: Path) -> None:
    summary = read_own(path, Summary, "write it anew by `rolecast report`")
    print(f"\n{summary['method']}, seed {summary['seed']}, held-out questions, greedy\n")
    print(results_table(summary["stages"]))
    if parts := parts_table(summary["stages"]):
        print(f"\n{parts}")
    if summary.get("gains"):
        print("\n" + "\n".join(gained(Gains.model_validate(summary["gains"]), summary["stages"])))
    print("\nseconds: " + ", ".join(f"{stage} {spent:.0f}" for stage, spent in summary["seconds"].items()))
    print(f"summary: {path}\nreport:  {path.with_name(summary['report'])}")
