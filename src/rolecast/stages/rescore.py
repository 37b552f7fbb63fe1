"""Rewards, credit and advantages of a stage's kept groups once more, under another config: what another α would have taught, without sampling.

Groups keep the components of their rewards (`stages.NAME.record`), so this is what training itself computes, from the same functions. Groups
that training dropped were not kept, and nothing is asked of a judge: what was not scored then has no reward now.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from rolecast.config import RunConfig, make_config
from rolecast.credit import Floats, advantages
from rolecast.errors import InputError
from rolecast.evaluation.intervals import pass_at_k
from rolecast.evaluation.table import aligned
from rolecast.evaluation.tasks import QA
from rolecast.learner.batch import action_lengths
from rolecast.reading import override
from rolecast.schedule import find
from rolecast.seeding import stream
from rolecast.stages.metrics import read_metrics
from rolecast.stages.run import Run
from rolecast.stages.sampling import Credited, credited, imperfect, shuffled
from rolecast.store.artifact import verify, write_text
from rolecast.types import Stage, Trajectory, Unit
from rolecast.wire.coordinator import unpack


@dataclass(frozen=True, slots=True)
class Rescored:
    """A step's groups under the config. `advantages`: by action, of every objective whose estimator needs no critic."""

    step: int
    trajectories: Sequence[Trajectory]
    units: Sequence[Unit]
    advantages: Mapping[str, Floats]

    def of(self, unit: Unit) -> float | None:
        """The unit's advantage: that of its tokens, which share it. None where it takes a critic's values."""
        return next((float(found[0]) for action in unit.actions if len(found := self.advantages.get(action, np.zeros(0)))), None)


def rescore(run: Run, stage: str, overrides: Sequence[str] = ()) -> Iterator[Rescored]:
    """Step by step. `InputError` where the stage kept no groups, or for an override of anything but the method's keys."""
    config = _changed(run, overrides)
    of = find(config.schedule, stage)
    if of.kind != "rl":
        raise InputError(f"{run.place}: stage {stage} is {of.kind}, which has no groups; name an RL stage by --stage")
    shards = run.artifacts(run.stage(stage) / "trajectories")
    if not shards:
        raise InputError(f"{run.place}: stage {stage} kept no groups; train it with --set stages.{stage}.record=true")
    return (_rescored(config, of, int(shard.name.removeprefix("step-")), _kept(run, shard)) for shard in shards)


def _changed(run: Run, overrides: Sequence[str]) -> RunConfig:
    settings = run.config.model_dump(mode="json")
    for text in overrides:
        key = text.partition("=")[0]
        if not key.startswith("method.") or key.removeprefix("method.").partition(".")[0] not in type(run.config.method).model_fields:
            raise InputError(f"{key} changes no reward of kept groups; --set takes keys of the method, as method.alpha=0.5")
        if key == "method.name":
            raise InputError("method.name makes another method, whose rewards these groups lack; leave it out")
        override(settings, text)
    return make_config(settings, run.place)


def _kept(run: Run, shard: Path) -> list[Trajectory]:
    run.has(shard)
    verify(shard, "trajectories")
    return unpack((shard / "trajectories.json.gz").read_bytes())


def _rescored(config: RunConfig, stage: Stage, step: int, kept: Sequence[Trajectory]) -> Rescored:
    method = config.method_in(stage)
    groups = [list(of) for _, of in groupby(kept, key=lambda t: t.group)]
    found: list[Credited] = [imperfect(method, credited(method, group)) for group in groups]
    units = [unit for group in found for unit in group.units]
    if config.rl(stage.name).shuffle_rewards:
        units = shuffled(found, stream(config.seed, "shuffle", config.steps_before(stage) + step))
    trajectories = [t for group in found for t in group.trajectories]
    lengths = action_lengths(thread for t in trajectories for thread in t.threads)
    values: dict[str, Floats] = {}
    for objective in stage.objectives:
        if objective.estimator != "gae":
            values |= advantages([unit for unit in units if unit.objective == objective.name], objective, lengths)
    return Rescored(step, trajectories, units, values)


def write_rescored(run: Run, stage: str, overrides: Sequence[str], out: Path | None) -> str:
    """Writes a line a unit to `out`, if it is given; returns the table."""
    trained = {row["step"]: row for row in read_metrics(run.recall(run.stage(stage) / "metrics.jsonl").parent)}
    rows, lines, right = [], [], defaultdict[str, list[float]](list)
    for found in rescore(run, stage, overrides):
        rows += _rows(found, trained.get(found.step + 1, {}))
        lines += [json.dumps(_line(found, unit)) for unit in found.units] if out is not None else []
        for t in found.trajectories:
            if (em := QA.scores(t)["em"]) is not None:
                right[t.group].append(em)
    if not rows:
        raise InputError(f"{run.place}: no kept group of {stage} has a reward under this config; what it weighs was not scored in training")
    if out is not None:
        write_text(out, "".join(line + "\n" for line in lines))
    table = aligned(["step", "role", "units", "reward trained", "reward now", "advantages ≠ 0"], rows)
    return f"{table}\n\n{_passed([(round(sum(ems)), len(ems)) for ems in right.values()])}".rstrip()


def _rows(found: Rescored, trained: Mapping[str, Any]) -> list[list[str]]:
    rows = []
    for tag in dict.fromkeys(unit.tag for unit in found.units):
        own = [unit for unit in found.units if unit.tag == tag]
        advantage = [value for unit in own if (value := found.of(unit)) is not None]
        before = trained.get(f"reward/{tag}")
        rows.append(
            [
                str(found.step), tag or "–", str(len(own)), "–" if before is None else f"{before:.6f}", f"{fmean(unit.reward for unit in own):.6f}",
                str(sum(value != 0 for value in advantage)) if advantage else "–",
            ]
        )  # fmt: skip
    return rows


def _line(found: Rescored, unit: Unit) -> dict[str, Any]:
    return {
        "step": found.step, "group": unit.group, "rollout": unit.rollout, "unit": unit.id, "role": unit.tag, "objective": unit.objective,
        "reward": unit.reward, "advantage": found.of(unit),
    }  # fmt: skip


def _passed(right: Sequence[tuple[int, int]]) -> str:
    """pass@k of the kept groups, for 1, 2, 4, … samples and for all of the largest group."""
    largest = max((n for _, n in right), default=0)
    ks = sorted({1 << power for power in range(largest.bit_length()) if 1 << power <= largest} | ({largest} if largest else set()))
    told = [f"{k}: {100 * found:.1f}" for k in ks if (found := pass_at_k(right, k)) is not None]
    return f"pass@k of {len(right)} kept groups, per cent: {', '.join(told)}" if told else ""
