"""SFT → RL → evaluation → report: the whole job as one pipeline of coarse tasks."""

from kfp import dsl, kubernetes

from rolecast_pipelines import components

S3_KEYS = {"AWS_ACCESS_KEY_ID": "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY": "AWS_SECRET_ACCESS_KEY"}
ENDPOINTS = ("ROLECAST_STORE", "ROLECAST_S3_ENDPOINT", "ROLECAST_S3_REGION", "ROLECAST_RETRIEVER_URL", "ROLECAST_JUDGE_URL")


def _step(task: dsl.PipelineTask, image: str, s3_secret: str, endpoints: str) -> dsl.PipelineTask:
    """Nothing is cached: a step finds finished work by its committed artifacts, which a cache cannot verify."""
    task.set_container_image(image).set_caching_options(False)
    kubernetes.use_secret_as_env(task, s3_secret, S3_KEYS, optional=True)
    kubernetes.use_config_map_as_env(task, endpoints, {key: key for key in ENDPOINTS}, optional=True)
    return task


def _launching(task: dsl.PipelineTask) -> dsl.PipelineTask:
    """The job that the step launches names the step's pod as its owner, and goes when the pod is deleted."""
    kubernetes.use_field_path_as_env(task, "ROLECAST_POD_NAME", "metadata.name")
    kubernetes.use_field_path_as_env(task, "ROLECAST_POD_UID", "metadata.uid")
    kubernetes.use_field_path_as_env(task, "ROLECAST_NAMESPACE", "metadata.namespace")
    return task


@dsl.pipeline(name="rolecast-sft-rl-eval", description="Trains a team of search roles: SFT, RL, held-out evaluation of both, report.")
def sft_rl_eval(
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

    def step(task: dsl.PipelineTask, image: str) -> dsl.PipelineTask:
        return _step(task, image, s3_secret, endpoints)

    prepared = step(components.prepare(run=run, config=config), retriever_image)
    sft = _launching(step(components.train(run=prepared.output, stage="sft", launcher=launcher, job=job), image))
    sft_result = step(components.evaluate(run=sft.outputs["Output"], stage="sft"), rollout_image)
    rl = components.train(run=sft.outputs["Output"], stage="rl", launcher=launcher, job=job).after(sft_result)
    rl = _launching(step(rl, image))
    rl_result = step(components.evaluate(run=rl.outputs["Output"], stage="rl"), rollout_image)
    step(components.report(run=rl.outputs["Output"], results=[sft_result.outputs["Output"], rl_result.outputs["Output"]]), image)
