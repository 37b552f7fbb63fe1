"""The whole job as one pipeline of coarse tasks: every stage of a method's schedule, an evaluation of each model, and a report."""

from collections.abc import Sequence
from typing import Any

from kfp import dsl

from rolecast.launching.overrides import Overrides
from rolecast.schedule import Schedule, digest
from rolecast_pipelines import components
from rolecast_pipelines.overrides import NOTHING
from rolecast_pipelines.parameters import CONFIG, LAUNCHING, RUN, pipeline, placed
from rolecast_pipelines.place import JOB, Place


def steps_of_run(
    place: Place, schedule: Schedule, run: str, config: str, launcher: Any, job: Any, keys: Sequence[str]
) -> dsl.PipelineTask:  # fmt: skip
    """The tasks of one run, its stages one after the other; returns the last one, the report. `keys`: see `Place.evaluating`."""
    last = place.indexing(components.prepare(run=run, config=config, schedule=digest(schedule), execution=JOB)).output
    results: list[dsl.PipelineTask] = []
    for stage in schedule:
        done = components.train(run=last, stage=stage.name, kind=stage.kind, launcher=launcher, job=job, execution=JOB)
        named = done.set_display_name(f"{'train' if stage.trains else 'rollout'}-{stage.name}")
        last = place.launching(named.after(*results[-1:])).outputs["Output"]
        if not stage.trains:
            continue
        evaluated = components.evaluate(run=last, stage=stage.name, execution=JOB).set_display_name(f"evaluate-{stage.name}")
        results.append(place.evaluating(evaluated, keys))
    return place.control(components.report(run=last, results=[result.outputs["Output"] for result in results], execution=JOB))


def make_pipeline(schedule: Schedule, keys: Sequence[str] = (), overrides: Overrides = NOTHING) -> Any:
    """The pipeline of one schedule, unrolled. It carries the schedule's digest: its first step refuses a config with another one.

    `keys`: the variables that hold the keys of the config's endpoints, which evaluations are given.
    """
    names = ", then ".join(stage.name for stage in schedule)

    def body(run: Any, config: Any, launcher: Any, job: Any, **given: Any) -> None:
        place = Place.of(given, overrides)
        with dsl.ExitHandler(place.telling(components.conclude(place=run, runs="[]", execution=JOB)), name="Train and evaluate"):
            steps_of_run(place, schedule, run, config, launcher, job, keys)

    return pipeline(
        f"rolecast-{'-'.join(stage.name for stage in schedule)}-eval".replace("_", "-").lower(),
        f"Trains a team of search roles: {names}; held-out evaluation of each, report.",
        [RUN, CONFIG, *LAUNCHING, *placed(overrides)],
        body,
    )
