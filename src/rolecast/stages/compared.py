"""What the runs of a comparison came to: read, held to be comparable, put side by side, written as JSON and as a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolecast.errors import InputError
from rolecast.evaluation.comparison import Finished, Point, compared
from rolecast.evaluation.comparison_page import render_comparison
from rolecast.evaluation.cost import Cost, read_cost
from rolecast.methods.registry import find
from rolecast.schedule import last
from rolecast.stages.budget import accounts
from rolecast.stages.comparison import Member, sft_rows
from rolecast.stages.gains import scores_of, start_of_rl
from rolecast.stages.metrics import read_metrics
from rolecast.stages.report import origin_of
from rolecast.stages.run import Run, open_run
from rolecast.stages.working import seconds
from rolecast.store.artifact import verify, write_text
from rolecast.store.uri import S3, open_store


def place_of(out: Path | str, member: Member) -> str:
    return f"{str(out).rstrip('/')}/{member.key}"


def members_at(out: Path | str, named: Sequence[tuple[str, int]]) -> list[Member]:
    """The members of a comparison whose runs are there, by label and seed."""
    return [Member(label, open_run(f"{str(out).rstrip('/')}/{label}-{seed}").config) for label, seed in named]


def finished(run: Run) -> bool:
    """Whether nothing is left to do for it."""
    return run.manifest(run.evaluation(last(run.config.schedule))) is not None and run.recall(run.path / "summary.json").exists()


def compare(out: Path | str, members: Sequence[Member], measure: str = "") -> dict[str, Any]:
    """Reads every member's run under `out`, and writes comparison.json and comparison.html there. `InputError` where one has not ended,
    or where two of one seed were not asked the same."""
    runs = [open_run(place_of(out, member)) for member in members]
    if open_ones := [run.place for run in runs if not finished(run)]:
        raise InputError(f"{open_ones[0]} has not ended (nor have {len(open_ones) - 1} others); give the command again, it goes on")
    _check_alike(runs)
    read = [_read(member.label, run) for member, run in zip(members, runs, strict=True)]
    made = [origin_of(run) for run in runs]
    origin = {part: list(dict.fromkeys(one for of in made for one in of[part])) for part in made[0]}
    found = {**_protocol(members), "origin": origin, **compared(read, measure)}
    pages = {"comparison.json": json.dumps(found, indent=1), "comparison.html": render_comparison(found)}
    for name, text in pages.items():
        _write(out, name, text)
    return found


def _write(out: Path | str, name: str, text: str) -> None:
    if str(out).startswith(S3):
        open_store(str(out)).put(name, text.encode())
    else:
        write_text(Path(out) / name, text)


def _protocol(members: Sequence[Member]) -> dict[str, Any]:
    """What all runs have in common."""
    first = members[0].config
    budgets = {member.config.budget for member in members if member.config.budget is not None}
    return {
        "budget": budgets.pop() if len(budgets) == 1 else None,
        "sft_rows": {member.label: sft_rows(member.config) for member in members},
        "test_questions": first.eval.n,
        "max_context": first.model.max_context,
        "retriever": first.retriever.kind,
        "judge": first.judge.model,
        "configs": {member.label: member.config.model_dump(mode="json") for member in members if member.config.seed == first.seed},
    }


def _check_alike(runs: Sequence[Run]) -> None:
    """Runs of one seed search one corpus by one ranker, have one judge, and answer the same questions."""
    by_seed: dict[int, tuple[Run, str, set[str]]] = {}
    for run in runs:
        asked = set(scores_of(run, last(run.config.schedule)))
        first, met, questions = by_seed.setdefault(run.config.seed, (run, met_by(run), asked))
        if met_by(run) != met:
            raise InputError(f"{run.place} and {first.place} search another index, or have another judge: they cannot be compared")
        if asked != questions:
            raise InputError(f"{run.place} and {first.place} were not asked the same questions: they cannot be compared")


def met_by(run: Run) -> str:
    """What episodes meet. An index is told by its corpus and its ranker: the same passages may be embedded with other last bits elsewhere."""
    c = run.config.retriever
    manifest = run.manifest(run.index)
    if c.live is not None:
        searched = c.live.name
    elif not c.indexed or c.index or manifest is None:
        searched = run.shared.get("retriever.index", "")
    else:
        files = json.loads(manifest)["files"]
        searched = " ".join(
            files[name]["sha256"] for name in ("corpus.jsonl", "index.json") if name in files
        )  # the other says how words are read
    return " ".join([c.kind, c.encoder if c.kind in ("dense", "hybrid") else "", searched, run.config.judge.model])


def _read(label: str, run: Run) -> Finished:
    c, schedule = run.config, run.config.schedule
    final = last(schedule)
    result = _result(run, final)
    spent = accounts(run, schedule)
    kept = [{key: value for key, value in account.items() if key != "ended"} for account in spent.values()]
    start = start_of_rl(schedule)
    return Finished(
        method=label,
        seed=c.seed,
        trained=find(c.method.name).trained,
        headline=result["headline"],
        scores=scores_of(run, final),
        start=scores_of(run, start) if start else {},
        training=sum((read_cost(account) for account in kept), Cost()),
        evaluation=read_cost(result["cost"]),
        seconds=seconds(run),
        curve=_curve(run, result["headline"]),
        ended=[account["ended"] for account in spent.values() if account.get("ended")],
    )


def _curve(run: Run, headline: str) -> list[Point]:
    """Dev evaluations of the RL stages that are measured as the last one is, with what the run had sampled by then."""
    points, before, spent = [], 0.0, accounts(run, run.config.schedule)
    for stage in run.config.schedule:
        if stage.name not in spent:
            continue
        sampled = 0.0
        for row in read_metrics(run.recall(run.stage(stage.name) / "metrics.jsonl").parent):
            sampled = row.get("tokens/sampled") or sampled
            if stage.kind == "rl" and row.get(f"dev/{headline}") is not None:
                points.append(Point(before + sampled, row[f"dev/{headline}"]))
        before += spent[stage.name]["sampled"]
    return points


def _result(run: Run, stage: str) -> dict[str, Any]:
    run.has(run.evaluation(stage))
    verify(run.evaluation(stage), "evaluation")
    found: dict[str, Any] = json.loads((run.evaluation(stage) / "result.json").read_text())
    return found
