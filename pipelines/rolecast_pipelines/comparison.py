"""A comparison as one pipeline: every run of it beside the others, each as its own pipeline has it, and one step that compares them."""

import json
from collections.abc import Sequence
from typing import Any

from kfp import dsl

from rolecast.stages.comparison import Member
from rolecast_pipelines import components
from rolecast_pipelines.schedule import Cluster, steps_of_run


def make_comparison(members: Sequence[Member]) -> Any:
    """The pipeline of these runs, unrolled: they wait for nothing but their own steps. It carries their configs."""
    labels = list(dict.fromkeys(member.label for member in members))
    named = json.dumps([[member.label, member.config.seed] for member in members])

    @dsl.pipeline(name="rolecast-compare", description=f"Compares {', '.join(labels)} under one protocol, {len(members)} runs.")
    def pipeline(
        out: str,
        launcher: str = "local",
        job: str = "{}",
        image: str = components.CONTROL,
        retriever_image: str = components.RETRIEVER,
        rollout_image: str = components.ROLLOUT,
        s3_secret: str = "rolecast-s3",
        endpoints: str = "rolecast-endpoints",
    ) -> None:
        """`out`: where the runs and the comparison live. The other parameters are those of a run's pipeline."""
        cluster = Cluster(launcher, job, image, retriever_image, rollout_image, s3_secret, endpoints)
        reports = [
            steps_of_run(cluster, member.config.schedule, f"{out}/{member.key}", member.config.model_dump_json()) for member in members
        ]
        cluster.step(components.compare(out=out, members=named, reports=[task.outputs["Output"] for task in reports]), image)

    return pipeline
