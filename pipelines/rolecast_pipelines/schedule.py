"""The whole job as one pipeline of coarse tasks: every stage of a method's schedule, an evaluation of each model, and a report."""

from dataclasses import dataclass
from typing import Any

from kfp import dsl, kubernetes

from rolecast.schedule import Schedule, digest
from rolecast_pipelines import components

S3_KEYS = {"AWS_ACCESS_KEY_ID": "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY": "AWS_SECRET_ACCESS_KEY"}
ENDPOINTS = ("ROLECAST_STORE", "ROLECAST_S3_ENDPOINT", "ROLECAST_S3_REGION", "ROLECAST_RETRIEVER_URL", "ROLECAST_JUDGE_URL")


@dataclass(frozen=True)
class Cluster:
    """What a pipeline's parameters say of where its steps run: images, how training is launched, names of a Secret and a ConfigMap."""

    launcher: str
    job: str
    image: str
    retriever_image: str
    rollout_image: str
    s3_secret: str
    endpoints: str

    def step(self, task: dsl.PipelineTask, image: str) -> dsl.PipelineTask:
        """Nothing is cached: a step finds finished work by its committed artifacts, which a cache cannot verify."""
        task.set_container_image(image).set_caching_options(False)
        kubernetes.use_secret_as_env(task, self.s3_secret, S3_KEYS, optional=True)
        kubernetes.use_config_map_as_env(task, self.endpoints, {key: key for key in ENDPOINTS}, optional=True)
        return task


def _launching(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """The Workflow of the step owns the job, and says when the step is told to end whether the job goes too."""
    kubernetes.use_field_path_as_env(task, "ROLECAST_WORKFLOW", "metadata.labels['workflows.argoproj.io/workflow']")
    kubernetes.use_field_path_as_env(task, "ROLECAST_NAMESPACE", "metadata.namespace")
    return task


def steps_of_run(cluster: Cluster, schedule: Schedule, run: str, config: str) -> dsl.PipelineTask:
    """The tasks of one run, its stages one after the other; returns the last one, the report."""
    last = cluster.step(components.prepare(run=run, config=config, schedule=digest(schedule)), cluster.retriever_image).output
    results: list[dsl.PipelineTask] = []
    for stage in schedule:
        done = components.train(run=last, stage=stage.name, kind=stage.kind, launcher=cluster.launcher, job=cluster.job)
        named = done.set_display_name(f"{'train' if stage.trains else 'rollout'}-{stage.name}")
        last = _launching(cluster.step(named.after(*results[-1:]), cluster.image)).outputs["Output"]
        if not stage.trains:
            continue
        evaluated = components.evaluate(run=last, stage=stage.name).set_display_name(f"evaluate-{stage.name}")
        results.append(cluster.step(evaluated, cluster.rollout_image))
    return cluster.step(components.report(run=last, results=[result.outputs["Output"] for result in results]), cluster.image)


def make_pipeline(schedule: Schedule) -> Any:
    """The pipeline of one schedule, unrolled. It carries the schedule's digest: its first step refuses a config with another one."""
    # kfp writes the description in the encoding of the place where it compiles: ASCII fits all.
    names = ", then ".join(stage.name for stage in schedule)

    @dsl.pipeline(name=f"rolecast-{'-'.join(stage.name for stage in schedule)}-eval".replace("_", "-").lower(),
                  description=f"Trains a team of search roles: {names}; held-out evaluation of each, report.")  # fmt: skip
    def pipeline(
        run: str,
        config: str,
        launcher: str = "local",
        job: str = "{}",
        image: str = components.CONTROL,
        retriever_image: str = components.RETRIEVER,
        rollout_image: str = components.ROLLOUT,
        s3_secret: str = "rolecast-s3",
        endpoints: str = "rolecast-endpoints",
    ) -> None:
        """`run`: where the run lives. `config`: a run's config as JSON. `launcher`: local trains inside the step (in an image that
        can), pytorchjob and trainjob launch a job, whose spec without run and stage is `job`, as JSON. `image`: what launch and report
        run in; index and evaluation run in the other two. `s3_secret`, `endpoints`: names of a Secret and a ConfigMap."""

        steps_of_run(Cluster(launcher, job, image, retriever_image, rollout_image, s3_secret, endpoints), schedule, run, config)

    return pipeline
