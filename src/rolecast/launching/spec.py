"""What a training job is, apart from who runs it: a child process here, a PyTorchJob or a TrainJob on a cluster."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, Field, StringConstraints, ValidationError, model_validator

from rolecast.errors import InputError
from rolecast.launching.fields import OWN_LABELS, Amounts, Closed, Label, LabelKey, Name, Quantity, Toleration, Variable
from rolecast.launching.overrides import Overrides
from rolecast.launching.s3_access import S3Identity
from rolecast.types import StageKind

M = TypeVar("M", bound=BaseModel)

# Of Kubernetes.
StageName = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9_]*[a-z0-9])?$", max_length=24)]  # also a label's value
Image = Annotated[str, StringConstraints(pattern=r"^\S+$", min_length=1)]
Seconds = Annotated[int, Field(ge=1)]

# Pods, headless Services, the coordinator's Service and child Jobs get the job's name with a suffix, and all of them are DNS labels of
# 63 characters.
MAX_NAME = 44
COORDINATOR = "-coordinator"  # the suffix of its Service
BY_PIPELINE = frozenset({"run", "stage", "kind"})  # keys of a training job that a pipeline's steps set


def require_externals_secret(keys: tuple[str, ...], secret: str | None) -> None:
    if keys and secret is None:
        raise ValueError(f"externals_keys names {keys[0]}, and externals_secret no Secret that has it; set both")


class Deadlines(Closed):
    """Seconds that a job may stay in one state; the count starts anew whenever it enters the state again."""

    queued: Seconds = 7 * 86400
    pending: Seconds = 1800
    running: Seconds = 2 * 86400


class Backoff(Closed):
    """How often a job that failed is submitted again, and the seconds before it: `base` · 2ⁿ, at most `limit`."""

    retries: int = Field(1, ge=0, le=10)
    base: float = Field(10.0, gt=0)
    limit: float = Field(300.0, gt=0)

    def delay(self, attempt: int) -> float:
        return min(self.base * 2.0 ** min(attempt, 30), self.limit)


class CoordinatorService(Closed):
    """Of the coordinator that rank 0 of a job runs whose stage has episodes played. Its Service is named after the job, so that no two
    jobs share one; rollout workers find it where it is announced.
    """

    port: int = Field(8300, ge=1024, le=65535)


class TrainingRuntime(Closed):
    """What a TrainJob refers to. A TrainingRuntime that is missing is created, a ClusterTrainingRuntime is not."""

    name: Name = "rolecast-learner"
    kind: Literal["TrainingRuntime", "ClusterTrainingRuntime"] = "TrainingRuntime"


class TrainingJobSpec(Amounts):
    """One stage of one run. `run` is an opaque URI that every process of the job can reach."""

    run: str = Field(min_length=1)
    stage: StageName
    kind: StageKind | None = None  # of the stage; by default the stage is called after it
    image: Image
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    name: Name | None = None  # by default made from run and stage
    namespace: Name = "rolecast"
    nodes: int = Field(1, ge=1)
    procs_per_node: int = Field(1, ge=1)
    gpus_per_node: int = Field(0, ge=0)
    memory: Quantity = "8Gi"
    shm_size: Quantity = "2Gi"
    scratch_size: Quantity = "20Gi"
    grace_seconds: int = Field(120, ge=30, le=3600)  # of a pod that is told to end: its ranks save first, at the end of their step
    zero_stage: int | None = Field(None, ge=0, le=3)  # of DeepSpeed, in place of what the run's config says; 0 is the plain engine
    node_selector: dict[LabelKey, Label] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    queue: Name | None = None  # Kueue's LocalQueue
    priority: Name | None = None  # Kueue's WorkloadPriorityClass
    service_account: Name = "rolecast-learner"
    endpoints: Name = "rolecast-endpoints"  # a ConfigMap
    s3_secret: Name | None = "rolecast-s3"  # null: by the identity of the account
    s3_identity: S3Identity | None = None
    s3_ca: Name | None = None  # a ConfigMap with key `ca.crt`, of a private certificate authority
    release_secret: Name | None = "rolecast-release"  # with key `key`, for stages that sample; null where rollouts are local
    auth_secret: Name | None = None  # with key `token`, which retriever and judge ask for
    externals_secret: Name | None = None  # with `externals_keys`, of the endpoints that roles speak through
    externals_keys: tuple[Variable, ...] = ()  # each becomes the variable of its name (a config's key_env)
    labels: dict[LabelKey, Label] = Field(default_factory=dict)
    deadlines: Deadlines = Deadlines()
    backoff: Backoff = Backoff()
    ttl_seconds: Seconds = 86400  # how long a finished job stays to be looked at
    coordinator: CoordinatorService = CoordinatorService()
    runtime: TrainingRuntime = TrainingRuntime()
    overrides: Overrides = Overrides()

    @model_validator(mode="before")
    @classmethod
    def _kind_by_name(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("kind") is None and data.get("stage") in get_args(StageKind):
            return {**data, "kind": data["stage"]}
        return data

    @model_validator(mode="after")
    def _fits_together(self) -> TrainingJobSpec:
        if self.kind is None:
            raise ValueError(f"kind of stage {self.stage} is not known; set kind to {', '.join(get_args(StageKind))}")
        if self.gpus_per_node and self.procs_per_node != self.gpus_per_node:
            raise ValueError(
                f"procs_per_node is {self.procs_per_node} and gpus_per_node {self.gpus_per_node}: each process drives one GPU; make them equal"
            )
        if self.priority and not self.queue:
            raise ValueError("priority orders jobs of a Kueue queue: set queue too, or remove priority")
        require_externals_secret(self.externals_keys, self.externals_secret)
        if self.name and len(self.name) > MAX_NAME:
            raise ValueError(f"name has {len(self.name)} characters, but pods get suffixes: at most {MAX_NAME}")
        for label in self.labels:
            if label.startswith(OWN_LABELS):
                raise ValueError(f"label {label} is set by Rolecast or an operator; choose another prefix")
        return self

    @property
    def job_name(self) -> str:
        """The same for the same run and stage, so that a second launcher finds the first one's job."""
        if self.name:
            return self.name
        suffix = "-" + hashlib.sha256(self.run.encode()).hexdigest()[:8]
        head = f"rolecast-{self.stage.replace('_', '-')}-"
        return head + self.run_label.lower().replace(".", "-").replace("_", "-")[: MAX_NAME - len(head) - len(suffix)].strip("-") + suffix

    @property
    def coordinator_service(self) -> str:
        """Of this job alone: a Service that two jobs shared would lead one's workers to the other."""
        return self.job_name + COORDINATOR

    @property
    def coordinator_url(self) -> str:
        """Also from another namespace."""
        return f"http://{self.coordinator_service}.{self.namespace}.svc:{self.coordinator.port}"

    @property
    def samples(self) -> bool:
        """Whether the stage has episodes played: then rank 0 runs a coordinator for rollout workers."""
        return self.kind != "sft"

    @property
    def run_label(self) -> str:
        """The last part of the run's URI as a label value."""
        last = self.run.rstrip("/").rsplit("/", 1)[-1]
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", last)[:63].strip("-_.") or "run"

    @property
    def digest(self) -> str:
        """Tells a job of this spec from a job of another one with the same name. How often to retry is the launcher's affair."""
        canonical = json.dumps(self.model_dump(mode="json", exclude={"backoff"}), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def read_spec(values: dict[str, Any], source: str = "job") -> TrainingJobSpec:
    """A spec from parsed YAML or JSON. Errors name the key and `source`."""
    return validated(TrainingJobSpec, values, source)


def validated(model: type[M], values: dict[str, Any], source: str) -> M:
    """A model from parsed values; an `InputError` lists every fault with its key."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = [
            ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"].removeprefix("Value error, "))))
            for fault in error.errors()
        ]
        if any(fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1 for fault in error.errors()):
            keys = sorted(model.model_fields, key=lambda name: not model.model_fields[name].is_required())  # first what must be given
            faults.append(f"the keys are {', '.join(model.model_fields[name].alias or name for name in keys)}")
        raise InputError(f"{source}: {'; '.join(faults)}") from None
