"""A plan as people read it."""

from __future__ import annotations

from collections.abc import Sequence

from rolecast.planning.memory import Part, total
from rolecast.planning.plan import GIB, Plan
from rolecast.planning.work import Work


def table(plan: Plan) -> str:
    s = plan.shape
    where = f"{plan.gpus} GPUs of {plan.memory / GIB:.1f} GiB" if plan.gpus else f"this machine's {plan.memory / GIB:.1f} GiB"
    lines = [
        f"{plan.name}, on {where}",
        f"model: {s.parameters:,} parameters, {s.layers} layers × {s.hidden}, vocabulary {s.vocabulary:,} ({s.origin})",
    ]
    if plan.corpus is not None:
        lines.append(f"corpus: {plan.corpus.passages:,} passages of {plan.corpus.letters:.0f} letters ({plan.corpus.origin})")
    for stage in plan.stages:
        lines += ["", f"memory, stage {stage.name}" + ("" if stage.trained else " (trains nothing)"), *_parts(stage.parts, plan.gpus)]
    lines += ["", "work, at most", *_works(plan.works, plan)]
    lines += ["", f"disk: {plan.disk / GIB:.2f} GiB of checkpoints, versions and models, without data, index and records"]
    if not plan.gpus:
        lines.append("glibc's allocator may hold more than is in use; MALLOC_MMAP_THRESHOLD_=65536 keeps it to that (docs/planning.md)")
    return "\n".join(lines)


def _parts(parts: Sequence[Part], gpus: int) -> list[str]:
    lines = []
    for where, title in (("device", "each GPU"), ("host", "the host" if gpus else "the process")):
        own = [part for part in parts if part.where == where]
        if not own:
            continue
        width = max(len(part.name) for part in own)
        lines += [f"  {part.name:<{width}}  {_size(part.bytes)}  {part.what}" for part in own]
        lines.append(f"  {title:<{width}}  {_size(total(parts, 'device' if where == 'device' else 'host'))}")
    return lines


def _size(count: int) -> str:
    return f"{count / GIB:9.3f} GiB" if count >= GIB / 1000 else f"{count / 2**20:9.3f} MiB"


def _works(works: Sequence[Work], plan: Plan) -> list[str]:
    columns = ("episodes", "replies", "sampled", "searches", "judged", "trained")
    heads = ("episodes", "replies", "sampled tokens", "searches", "judge calls", "trained tokens", "hours")
    rows = [["", *heads]]
    for work in works:
        hours = f"{plan.seconds[work.name] / 3600:.2f}" if work.name in plan.seconds else "–"
        numbers = [getattr(work, column) for column in columns]
        rows.append([work.name, *("?" if number is None else f"{number:,}" for number in numbers), hours])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  " + "  ".join(f"{cell:>{width}}" if number else f"{cell:<{width}}" for number, (cell, width) in enumerate(zip(row, widths, strict=True))) for row in rows]  # fmt: skip
    told = [f"  the judge is {plan.judge}"]
    if any(work.sampled is None for work in works):
        told.append("  ?: the method's options bound no episode; --like RUN says what one took")
    if plan.like is not None:
        told.append(f"  hours are those of {plan.like.run}, which took, an episode of RL: {_means(plan)}")
    elif plan.seconds:
        told.append(
            f"  hours: {sum(plan.seconds.values()) / 3600:.2f} in all, at the rates given, where every reply and context is as long as it may be"
        )
    else:
        told.append("  hours: give --tokens-per-second SAMPLING,TRAINING, or --like RUN of an earlier run on such a machine")
    return [*lines, *told]


def _means(plan: Plan) -> str:
    assert plan.like is not None
    kinds = (("sampled", "tokens"), ("searches", "searches"), ("judged", "judge calls"))
    found = [f"{mean:.1f} {unit} ({stage})" for name, unit in kinds for stage, mean in getattr(plan.like, name).items()]
    return ", ".join(found) or "nothing that was counted"
