"""What people are told of a pipeline's steps, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rolecast.evaluation.comparison import comparison_table
from rolecast.evaluation.table import results_table
from rolecast.stages.step import End

SUCCEEDED = "SUCCEEDED"  # KFP's word


def of_evaluation(run: str, stage: str, result: Mapping[str, Any]) -> str:
    return f"# Evaluation of {stage} of {run}\n\nHeld-out questions, greedy.\n\n{_table(results_table({stage: result}))}"


def of_run(run: str, summary: Mapping[str, Any]) -> str:
    spent = summary["seconds"]
    hours = ", ".join(f"{stage} {seconds / 60:.1f}" for stage, seconds in spent.items())
    return (
        f"# {run}\n\nMethod {summary['method']}, seed {summary['seed']}. Held-out questions, greedy.\n\n"
        f"{_table(results_table(summary['stages']))}\nMinutes: {hours or 'none'}.\n"
    )


def of_comparison(out: str, found: Mapping[str, Any]) -> str:
    return f"# {out}\n\nSeeds {', '.join(map(str, found['seeds']))}. Held-out questions, greedy.\n\n{_table(comparison_table(found))}"


def of_index(out: str, manifest: Mapping[str, Any], digest: str) -> str:
    made = manifest["provenance"]
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    return (
        f"# Index {out}\n\n{made['passages']:,} passages, {made['kind']}, {size / 2**20:,.1f} MiB, digest {digest}.\n\n"
        f"A run searches it with\n\n    retriever: {{kind: {made['kind']}, index: {out}}}\n"
    )


def of_end(place: str, state: str, message: str, ends: Sequence[tuple[str, End]]) -> str:
    """How a pipeline ended, with what each step that failed left behind, and where. `state`, `message`: KFP's."""
    if state == SUCCEEDED:
        return f"# {place}: done\n"
    lines = [f"# {place}: {state.lower() or 'ended'}", ""]
    for where, end in ends:
        of = f" of {where}" if where != place else ""
        lines += [f"## {end.step}{of}: exit code {end.code}", "", end.message, ""]
        lines += [end.report, ""] if end.report else []
    if not ends:
        lines += [message or "No step says why: see the log of the one that is marked as failed.", ""]
    return "\n".join(lines)


def _table(text: str) -> str:
    return f"```\n{text}\n```\n"
