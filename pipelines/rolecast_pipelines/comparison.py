"""A comparison as one pipeline: every run of it beside the others, each as its own pipeline has it, and one step that compares them."""

import json
from collections.abc import Sequence
from typing import Any

from kfp import dsl

from rolecast.launching.overrides import Overrides
from rolecast.stages.comparison import Member
from rolecast_pipelines import components
from rolecast_pipelines.overrides import NOTHING
from rolecast_pipelines.parameters import LAUNCHING, Parameter, pipeline, placed
from rolecast_pipelines.place import JOB, Place, keys_of
from rolecast_pipelines.schedule import steps_of_run

OUT = Parameter("out", "Where the runs and the comparison live: s3://bucket/prefix/NAME.")


def make_comparison(members: Sequence[Member], overrides: Overrides = NOTHING) -> Any:
    """The pipeline of these runs, unrolled: they wait for nothing but their own steps. It carries their configs."""
    labels = list(dict.fromkeys(member.label for member in members))
    runs = json.dumps([member.key for member in members])
    named = json.dumps([[member.label, member.config.seed] for member in members])

    def body(out: Any, launcher: Any, job: Any, **given: Any) -> None:
        place = Place.of(given, overrides)
        concluded = place.telling(components.conclude(place=out, runs=runs, execution=JOB))
        with dsl.ExitHandler(concluded, name="Train and compare"):
            reports = [
                steps_of_run(
                    place,
                    member.config.schedule,
                    f"{out}/{member.key}",
                    member.config.model_dump_json(),
                    launcher,
                    job,
                    keys_of(member.config),
                )
                for member in members
            ]
            written = [task.outputs["Output"] for task in reports]
            place.control(components.compare(out=out, members=named, reports=written, execution=JOB))

    return pipeline(
        "rolecast-compare",
        f"Compares {', '.join(labels)} under one protocol, {len(members)} runs.",
        [OUT, *LAUNCHING, *placed(overrides)],
        body,
    )
