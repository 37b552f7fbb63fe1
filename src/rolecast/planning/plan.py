"""What a run will take, and whether it fits: the parts of `memory`, `index`, `work` and `hours` put together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.planning.hours import Measured, Rates, seconds_of
from rolecast.planning.index import Corpus, corpus_of, index_parts
from rolecast.planning.memory import BYTES, Part, engine_parts, learner_parts, on_host, optimizer_bytes, total, weights_of
from rolecast.planning.shape import Shape, shape_of
from rolecast.planning.work import Work, asked_judge, work_of
from rolecast.stage_settings import TrainedConfig
from rolecast.types import Stage

GIB = 2**30
PROCESS = 450 * 2**20  # bytes of a learner's process before it has a model: Python, torch, transformers (measured; docs/planning.md)
VERSIONS = 3  # published versions in a store: two that stay, and one that is written


class TooLargeError(InputError):
    """A part does not fit into the memory that there is."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """`trained`: False where the stage only samples, or takes its model from elsewhere."""

    name: str
    trained: bool
    parts: Sequence[Part]
    disk: int


@dataclass(frozen=True, slots=True)
class Plan:
    """`gpus`: 0 where all is in the memory of one process. `memory`: bytes of each GPU, or of this machine."""

    name: str
    gpus: int
    memory: int
    shape: Shape
    stages: Sequence[StagePlan]
    corpus: Corpus | None
    works: Sequence[Work]
    judge: str
    seconds: Mapping[str, float]
    like: Measured | None

    @property
    def disk(self) -> int:
        return sum(stage.disk for stage in self.stages)


def make_plan(
    config: RunConfig, gpus: int, memory: float | None = None, rates: Rates | Measured | None = None, passages: int | None = None
) -> Plan:
    """`memory`: GiB of each GPU, or of this machine, whose own is the default. Nothing is loaded, and nothing is written."""
    if gpus and memory is None:
        raise InputError(f"--gpus {gpus}: say how much memory each of them has, as --memory 80 (GiB)")
    shape, corpus, works = shape_of(config), corpus_of(config, passages), work_of(config)
    index = index_parts(config, corpus)
    there = int(memory * GIB) if memory is not None else own_memory()
    stages = [_stage(config, stage, shape, gpus, there, index) for stage in config.schedule]
    return Plan(
        config.name, gpus, there, shape, stages, corpus, works, asked_judge(config),
        seconds_of(config, works, rates), rates if isinstance(rates, Measured) else None,
    )  # fmt: skip


def _stage(config: RunConfig, stage: Stage, shape: Shape, gpus: int, memory: int, index: Sequence[Part]) -> StagePlan:
    settings = config.stages[stage.name]
    trains = isinstance(settings, TrainedConfig) and bool(settings.steps) and not settings.model
    samples = stage.kind == "rollout" or (stage.kind == "rl" and trains)
    parts = learner_parts(config, stage, shape, max(1, gpus)) if trains else []
    if samples and config.rollouts == "local":
        # A shard cannot sample by itself, and vLLM has the weights in a process of its own.
        shared = trains and config.engine.name == "transformers" and not (config.learner.name == "deepspeed" and config.learner.zero == 3)
        parts += _share(config, engine_parts(config, stage, shape, shared), memory)
    parts = [*parts, Part("process", PROCESS, "Python and its libraries", "", "host"), *(index if samples else [])]
    return StagePlan(stage.name, trains, parts if gpus else on_host(parts), _disk(config, stage, shape) if trains else 0)


def _share(config: RunConfig, parts: list[Part], memory: int) -> list[Part]:
    """vLLM takes a share of a GPU whatever it needs, which must hold its weights and one whole context; more of them wait for room."""
    share = getattr(config.engine, "memory", None)
    if share is None:
        return parts
    *weights, cache = parts
    least = sum(part.bytes for part in weights) + cache.bytes // cache.now
    what = f"{share} of {memory / GIB:.1f} GiB; weights and one context need {least / GIB:.2f}, the whole batch's cache {cache.bytes / GIB:.2f}"
    return [Part("engine: its share", max(least, int(share * memory)), what, "engine.memory")]


def _disk(config: RunConfig, stage: Stage, shape: Shape) -> int:
    """Checkpoints that are kept and one that is written, the best model, the stage's own, and published versions."""
    settings, w, b = config.stages[stage.name], weights_of(config, stage, shape), BYTES[config.model.dtype]
    assert isinstance(settings, TrainedConfig)
    trained = sum(w.trained.values())
    moments = sum(optimizer_bytes(settings.optimizers.get(slot, settings.optimizer), n, w.matrices[slot]) for slot, n in w.trained.items())
    checkpoint = trained * b + moments + (4 * trained if b == 2 or config.learner.name == "deepspeed" else 0)
    published = VERSIONS * trained * b if config.rollouts == "workers" and stage.kind == "rl" else 0
    best = trained * b if stage.kind == "rl" else 0
    return checkpoint * (settings.keep + 1) + best + shape.parameters * b + (trained * b if w.lora or not stage.merges else 0) + published


def require_fits(plan: Plan) -> None:
    """Raises TooLargeError, in one line with the largest part and what makes it smaller."""
    where, what = ("device", "each GPU") if plan.gpus else ("host", "this machine")
    for stage in plan.stages:
        needed = sum(part.bytes for part in stage.parts if part.where == where)
        if needed <= plan.memory:
            continue
        most = max((part for part in stage.parts if part.where == where and part.change), key=lambda part: part.bytes)
        raise TooLargeError(
            f"stage {stage.name} takes {needed / GIB:.1f} GiB, and {what} has {plan.memory / GIB:.1f}; its largest part is {most.name}, "
            f"{most.bytes / GIB:.1f} GiB ({most.what}): change {most.change}{_fitting(stage, most, needed - plan.memory)}"
        )


def _fitting(stage: StagePlan, part: Part, excess: int) -> str:
    """How large the number of the config that the part grows with may be, with all else that grows with it."""
    if not part.now:
        return ""
    grown = [other for other in stage.parts if other.change == part.change]
    room = float(sum(other.bytes for other in grown) - excess)

    def bytes_at(number: int) -> float:
        return sum((other.at(number) for other in grown), 0.0)

    fits = bisect_right(range(part.now), room, key=bytes_at) - 1
    return f" from {part.now:,} to {fits:,} or less" if fits > 0 else f", now {part.now:,}, and more: what is left is too large too"


def own_memory(meminfo: Path = Path("/proc/meminfo"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of this machine, or of its control group where that has fewer."""
    try:
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemTotal:"))
    except (OSError, StopIteration):
        raise InputError("this machine does not say how much memory it has; give --memory GiB") from None
    here = int(line.split()[1]) * 1024
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            here = min(here, int((groups / name).read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return here


def as_json(plan: Plan) -> dict[str, Any]:
    s = plan.shape
    numbers = {name: value for name, value in asdict(s).items() if name not in ("tensors",)}
    return {
        "name": plan.name, "gpus": plan.gpus, "memory_bytes": plan.memory, "model": {**numbers, "parameters": s.parameters},
        "stages": {
            stage.name: {
                "trained": stage.trained, "device_bytes": total(stage.parts), "host_bytes": total(stage.parts, "host"), "disk_bytes": stage.disk,
                "parts": [{name: value for name, value in asdict(part).items() if name != "change"} for part in stage.parts],
            }
            for stage in plan.stages
        },
        "corpus": asdict(plan.corpus) if plan.corpus else None, "judge": plan.judge, "disk_bytes": plan.disk,
        "work": {work.name: {key: value for key, value in asdict(work).items() if key != "name"} for work in plan.works},
        "seconds": dict(plan.seconds), "like": asdict(plan.like) if plan.like else None,
    }  # fmt: skip
