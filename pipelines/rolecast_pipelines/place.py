"""Where a pipeline's steps run, with what they are given: images, resources, nodes, Secrets by reference, and when they are tried again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kfp import dsl, kubernetes

from rolecast.config import RunConfig
from rolecast.launching.overrides import Overrides
from rolecast.stages.step import S3_CA
from rolecast_pipelines.overrides import NOTHING, apply, require_expressible

S3_KEYS = {key: key for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")}
ENDPOINTS = ("ROLECAST_STORE", "ROLECAST_S3_ENDPOINT", "ROLECAST_S3_REGION", "ROLECAST_RETRIEVER_URL", "ROLECAST_JUDGE_URL",
             "ROLECAST_COORDINATOR_PORT", "ROLECAST_S3_AUDIENCE", "AWS_ROLE_ARN", "AWS_ENDPOINT_URL_STS")  # fmt: skip
JOB = dsl.PIPELINE_JOB_ID_PLACEHOLDER  # what a step's named end is recorded under, see `stages.ends`
TRIES = 3  # of a step, the first one among them
# Argo counts this from the step's first start and ends its pod then, so it is longer than any training may take.
LONGEST = "2592000s"


@dataclass(frozen=True)
class Place:
    """The parameters that every pipeline has, as its steps take them, and what a cluster wants of their pods."""

    image: Any
    retriever_image: Any
    rollout_image: Any
    control_cpu_request: Any
    control_cpu: Any
    control_memory_request: Any
    control_memory: Any
    index_cpu_request: Any
    index_cpu: Any
    index_memory_request: Any
    index_memory: Any
    evaluation_cpu_request: Any
    evaluation_cpu: Any
    evaluation_memory_request: Any
    evaluation_memory: Any
    evaluation_gpus: Any
    node_selector: Any
    tolerations: Any
    pull_secret: Any
    s3_secret: Any
    s3_ca: Any
    externals_secret: Any
    auth_secret: Any
    notify_secret: Any
    endpoints: Any
    overrides: Overrides

    @classmethod
    def of(cls, given: Mapping[str, Any], overrides: Overrides = NOTHING) -> "Place":
        """`InputError` if a step cannot be given the overrides."""
        require_expressible(overrides)
        return cls(overrides=overrides, **{field.name: given[field.name] for field in fields(cls) if field.name != "overrides"})

    def control(self, task: dsl.PipelineTask) -> dsl.PipelineTask:
        return self._overridden(self._step(task, self.image, "control"))

    def indexing(self, task: dsl.PipelineTask) -> dsl.PipelineTask:
        return self._overridden(self._step(task, self.retriever_image, "index"))

    def evaluating(self, task: dsl.PipelineTask, keys: Sequence[str] = ()) -> dsl.PipelineTask:
        """`keys`: variables that hold the keys of endpoints that roles speak through, by their names in the Secret. One that is not
        there is told by the step, in a line with the endpoint's name."""
        self._step(task, self.rollout_image, "evaluation")
        task.set_accelerator_type(self.overrides.gpu_resource).set_accelerator_limit(self.evaluation_gpus)
        task.register_pipeline_channels([self.evaluation_gpus])
        kubernetes.use_secret_as_env(task, self.auth_secret, {"token": "ROLECAST_TOKEN"}, optional=True)
        if keys:
            kubernetes.use_secret_as_env(task, self.externals_secret, {key: key for key in keys}, optional=True)
        return self._overridden(task)

    def launching(self, task: dsl.PipelineTask) -> dsl.PipelineTask:
        """The Workflow of the step owns the job that it launches, and says when the step is told to end whether the job goes too."""
        self._step(task, self.image, "control")
        kubernetes.use_field_path_as_env(task, "ROLECAST_WORKFLOW", "metadata.labels['workflows.argoproj.io/workflow']")
        kubernetes.use_field_path_as_env(task, "ROLECAST_NAMESPACE", "metadata.namespace")
        return self._overridden(task)

    def telling(self, task: dsl.PipelineTask) -> dsl.PipelineTask:
        """The step that comes at the end, however the others ended; it is not tried again."""
        self._step(task, self.image, "control", tries=1)
        kubernetes.use_secret_as_env(task, self.notify_secret, {"url": "ROLECAST_NOTIFY_URL"}, optional=True)
        return self._overridden(task)

    def _overridden(self, task: dsl.PipelineTask) -> dsl.PipelineTask:
        """The last thing that is done to a step: what it has by then is ours."""
        apply(task, self.overrides)
        return task

    def _step(self, task: dsl.PipelineTask, image: Any, kind: str, tries: int = TRIES) -> dsl.PipelineTask:
        """`kind`: the prefix of the amounts that it asks for and may take. Nothing is cached: a step finds finished work by its committed artifacts, which a cache cannot verify.

        KFP tries a step again whatever it ended with; one that a named end would meet again says so at once (`stages.ends`).
        """
        task.set_container_image(image).set_caching_options(False)
        cpu, memory = getattr(self, f"{kind}_cpu"), getattr(self, f"{kind}_memory")
        ask_cpu, ask_memory = getattr(self, f"{kind}_cpu_request"), getattr(self, f"{kind}_memory_request")
        task.set_cpu_request(ask_cpu).set_cpu_limit(cpu).set_memory_request(ask_memory).set_memory_limit(memory)
        # kfp hands what stands in resources into an exit handler's part of the pipeline only if it is told.
        task.register_pipeline_channels([ask_cpu, cpu, ask_memory, memory])
        if tries > 1:
            task.set_retry(tries - 1, backoff_duration="30s", backoff_factor=2.0, backoff_max_duration=LONGEST)
        kubernetes.use_secret_as_env(task, self.s3_secret, S3_KEYS, optional=True)
        kubernetes.use_config_map_as_volume(task, self.s3_ca, str(S3_CA.parent), optional=True)
        kubernetes.use_config_map_as_env(task, self.endpoints, {key: key for key in ENDPOINTS}, optional=True)
        kubernetes.add_node_selector_json(task, self.node_selector)
        kubernetes.add_toleration_json(task, self.tolerations)
        return kubernetes.set_image_pull_secrets(task, [self.pull_secret])


def keys_of(config: RunConfig) -> tuple[str, ...]:
    """Variables with the keys of the config's endpoints, each once."""
    return tuple(dict.fromkeys(of.key_env for of in config.externals.values() if of.key_env))
