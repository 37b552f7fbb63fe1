"""What a stage keeps of updates that were not made, to look into: artifacts under `STAGE/refused`."""

from __future__ import annotations

from collections.abc import Callable

from rolecast.learner.refusals import Refusal
from rolecast.stages.run import Run
from rolecast.store.artifact import writing

KEPT = 8  # batches, the newest; what comes more often looks alike


def keeping(run: Run, stage: str) -> Callable[[Refusal], None]:
    """For a learner's `keep`."""
    folder = run.stage(stage) / "refused"

    def keep(refusal: Refusal) -> None:
        place = folder / refusal.name
        run.discard(place)  # a step that is done again after a crash
        with writing(place, "refusal", {**run.made, "reason": refusal.reason}) as partial:
            refusal.write(partial)
        run.publish(place)
        for old in run.artifacts(folder)[:-KEPT]:
            run.discard(old)

    return keep
