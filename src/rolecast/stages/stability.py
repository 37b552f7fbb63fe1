"""The stability study: the same RL over many seeds, with SFT before it and without, and nothing that mends a collapse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.evaluation import tasks
from rolecast.evaluation.stability import Course, stability
from rolecast.evaluation.study_page import render_stability
from rolecast.stage_settings import RlConfig, SftConfig
from rolecast.stages.comparison import Entrant, Member, once, override_all
from rolecast.stages.metrics import read_metrics
from rolecast.stages.report import origin_of
from rolecast.stages.run import Run, open_run
from rolecast.store.artifact import write_text

WITHOUT = "-without-sft"  # ends the label of a run that starts RL from the start model


def plan_stability(
    entrants: Sequence[str], seeds: Sequence[int], steps: Sequence[int], taught: Sequence[bool], overrides: Sequence[str] = ()
) -> list[Member]:  # fmt: skip
    """Each method's own preset, `steps[-1]` steps of RL, without the guard that brings back the best model."""
    read = [Entrant.read(text) for text in entrants]
    once("method", [entrant.label for entrant in read])
    once("seed", seeds)
    once("step", steps)
    override_all(read, overrides)
    members = []
    for entrant in read:
        if not entrant.trained:
            raise InputError(f"{entrant.label} is not trained by reinforcement, so nothing can collapse; see `rolecast methods`")
        for sft in taught:
            config = _config(entrant, max(steps), sft)
            label = entrant.label if sft else f"{entrant.label}{WITHOUT}"
            members += [Member(label, config.model_copy(update={"seed": seed, "name": f"{label}-{seed}"})) for seed in seeds]
    return members


def _config(entrant: Entrant, steps: int, sft: bool) -> RunConfig:
    stages = {name: stage.model_dump(mode="json", exclude_unset=True) for name, stage in entrant.config.stages.items()}
    for name, stage in entrant.config.stages.items():
        if isinstance(stage, RlConfig):
            guard = {**stages[name].get("guard", {}), "fraction": 0.0}
            # A policy that says nothing useful any more, or never did, is not given up.
            stages[name] |= {"steps": steps, "idle_steps": None, "guard": guard}
        elif isinstance(stage, SftConfig) and not sft:
            stages[name] |= {"steps": 0, "drills": 0}
    return make_config({**entrant.settings, "stages": stages}, entrant.label)


def study_stability(out: Path, members: Sequence[Member], steps: Sequence[int]) -> dict[str, Any]:
    """Reads the members' runs under `out`; writes stability.json and stability.html there."""
    runs = [open_run(out / member.key) for member in members]
    courses = [course for member, run in zip(members, runs, strict=True) for course in _courses(member, run)]
    made = [origin_of(run) for run in runs]
    origin = {part: list(dict.fromkeys(one for of in made for one in of[part])) for part in made[0]}
    seeds = sorted({member.config.seed for member in members})
    found = {"seeds": seeds, "origin": origin, **stability(courses, sorted(steps))}
    write_text(out / "stability.json", json.dumps(found, indent=1))
    write_text(out / "stability.html", render_stability(found))
    return found


def _courses(member: Member, run: Run) -> list[Course]:
    courses = []
    for stage in run.config.schedule:
        if stage.kind != "rl":
            continue
        rows = read_metrics(run.recall(run.stage(stage.name) / "metrics.jsonl").parent)
        key, roles = f"dev/{tasks.find(stage.task).headline}", run.config.method_in(stage).roles
        courses.append(
            Course(
                member.label.removesuffix(WITHOUT), stage.name, run.config.seed, not member.label.endswith(WITHOUT),
                [(row["step"], row[key]) for row in rows if row.get(key) is not None],
                {
                    role: lengths for role in roles
                    if (lengths := [(row["step"], row[f"tokens/{role}"]) for row in rows if row.get(f"tokens/{role}") is not None])
                },
            )
        )  # fmt: skip
    return courses
