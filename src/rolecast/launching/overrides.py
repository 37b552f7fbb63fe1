"""What a cluster's operators may say of every pod of ours: jobs, InferenceServices, the chart's services and a pipeline's steps alike.

One closed model under one key, `overrides`, in Kubernetes' own spelling, so that one block of YAML fits all of them. Its JSON schema
is the one that Helm checks (charts/write_schemas.py). What Rolecast needs stays its own: labels and annotations that select pods,
variables, volumes and folders that it sets itself, and the restricted Pod Security level as far as no operator can lift it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from rolecast.errors import InputError
from rolecast.launching.fields import OWN_LABELS, Given, Label, LabelKey, ObjectName, Quantity, Toleration, Variable
from rolecast.launching.volumes import Mount, Reference, Volume

Manifest = dict[str, Any]

GPU = "nvidia.com/gpu"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
OWN_ANNOTATIONS = (*OWN_LABELS, "checksum/", "serving.kserve.io/", "kubectl.kubernetes.io/", SAFE_TO_EVICT)
OWN_VARIABLES = (
    r"^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PET_.*|TORCHELASTIC_.*)$"  # torchrun's and the operators'
)
SECRET_VARIABLE = r"(SECRET|PASSWORD|CREDENTIAL|TOKEN$|KEY$|KEY_ID$)"

User = Annotated[int, Field(ge=1)]
ResourceName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*$|^hugepages-[0-9]+[MG]i$")]


class SeccompProfile(Given):
    type: Literal["RuntimeDefault", "Localhost"]
    localhost_profile: str | None = None


class SELinuxOptions(Given):
    level: str | None = None
    role: str | None = None
    type: str | None = None
    user: str | None = None


class PodSecurity(Given):
    """Over ours; null takes one of ours away, say `runAsUser: null` where OpenShift assigns the user."""

    run_as_user: User | None = None
    run_as_group: int | None = Field(None, ge=0)
    run_as_non_root: Literal[True] | None = None
    fs_group: int | None = Field(None, ge=0)
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    supplemental_groups: tuple[int, ...] | None = None
    seccomp_profile: SeccompProfile | None = None
    se_linux_options: SELinuxOptions | None = None


class Capabilities(Given):
    """ALL are dropped; RDMA wants IPC_LOCK, profilers SYS_PTRACE. Only the privileged Pod Security level takes them."""

    add: tuple[Literal["IPC_LOCK", "SYS_NICE", "SYS_PTRACE"], ...]


class ContainerSecurity(Given):
    """Over ours. No root, no privileges: nothing of ours needs them."""

    run_as_user: User | None = None
    run_as_group: int | None = Field(None, ge=0)
    run_as_non_root: Literal[True] | None = None
    read_only_root_filesystem: bool | None = None
    capabilities: Capabilities | None = None
    seccomp_profile: SeccompProfile | None = None
    se_linux_options: SELinuxOptions | None = None


class KeyOf(Given):
    name: ObjectName
    key: str
    optional: bool | None = None


class FieldOf(Given):
    field_path: str


class Source(Given):
    """Where a variable's value comes from; one of them."""

    secret_key_ref: KeyOf | None = None
    config_map_key_ref: KeyOf | None = None
    field_ref: FieldOf | None = None

    @model_validator(mode="after")
    def _one(self) -> Source:
        if len(self.said) != 1:
            raise ValueError("a variable comes from one of secretKeyRef, configMapKeyRef and fieldRef")
        return self


class EnvFrom(Given):
    prefix: str | None = None
    config_map_ref: Reference | None = None
    secret_ref: Reference | None = None

    @model_validator(mode="after")
    def _one(self) -> EnvFrom:
        if len(self.said - {"prefix"}) != 1:
            raise ValueError("envFrom takes one of configMapRef and secretRef")
        return self


class Expression(Given):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: tuple[str, ...] | None = None


class Selector(Given):
    match_labels: dict[LabelKey, Label] | None = None
    match_expressions: tuple[Expression, ...] | None = None


class NodeTerm(Given):
    match_expressions: tuple[Expression, ...] | None = None
    match_fields: tuple[Expression, ...] | None = None


class NodeTerms(Given):
    node_selector_terms: tuple[NodeTerm, ...]


class PreferredNodes(Given):
    weight: int = Field(ge=1, le=100)
    preference: NodeTerm


class NodeAffinity(Given):
    required_during_scheduling_ignored_during_execution: NodeTerms | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredNodes, ...] | None = None


class PodTerm(Given):
    topology_key: str
    label_selector: Selector | None = None
    namespaces: tuple[ObjectName, ...] | None = None
    namespace_selector: Selector | None = None


class PreferredPods(Given):
    weight: int = Field(ge=1, le=100)
    pod_affinity_term: PodTerm


class PodAffinity(Given):
    required_during_scheduling_ignored_during_execution: tuple[PodTerm, ...] | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[PreferredPods, ...] | None = None


class Affinity(Given):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Spread(Given):
    max_skew: int = Field(ge=1)
    topology_key: str
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"]
    label_selector: Selector | None = None
    min_domains: int | None = Field(None, ge=1)


class Overrides(Given):
    """Over what Rolecast renders. Lists replace lists, mappings are merged by key."""

    pod_security_context: PodSecurity = PodSecurity()
    security_context: ContainerSecurity = ContainerSecurity()
    labels: dict[LabelKey, Label] = Field(default_factory=dict)  # of pods
    annotations: dict[LabelKey, str] = Field(default_factory=dict)  # of pods
    safe_to_evict: bool | None = None  # what the cluster autoscaler may do with the pod
    env: dict[Variable, str | Source] = Field(default_factory=dict)
    env_from: tuple[EnvFrom, ...] = ()
    volumes: tuple[Volume, ...] = ()
    volume_mounts: tuple[Mount, ...] = ()
    affinity: Affinity | None = None
    topology_spread_constraints: tuple[Spread, ...] | None = None
    priority_class_name: ObjectName | None = None
    runtime_class_name: ObjectName | None = None
    gpu_resource: ResourceName = GPU  # what a GPU is called here: amd.com/gpu, nvidia.com/mig-3g.40gb
    extra_resources: dict[ResourceName, Quantity] = Field(default_factory=dict)  # requested and limited, say rdma/hca: 1
    node_selector: dict[LabelKey, Label] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()

    @model_validator(mode="after")
    def _keeps_what_is_ours(self) -> Overrides:
        for kind, keys, own in (("label", self.labels, OWN_LABELS), ("annotation", self.annotations, OWN_ANNOTATIONS)):
            for key in keys:
                if key.startswith(own):
                    where = "set safeToEvict" if key == SAFE_TO_EVICT else "choose another prefix"
                    raise ValueError(f"{kind} {key} is set by Rolecast or an operator; {where}")
        for name, value in self.env.items():
            if re.search(OWN_VARIABLES, name):
                raise ValueError(f"variable {name} is set by torchrun or the operator; remove it")
            if isinstance(value, str) and re.search(SECRET_VARIABLE, name):
                raise ValueError(f"variable {name} looks like a secret; give it by secretKeyRef")
        given = [volume.name for volume in self.volumes]
        for mount in self.volume_mounts:
            if mount.name not in given:
                raise ValueError(f"volumeMounts names {mount.name}, and volumes does not; add it there")
        for name in self.extra_resources:
            if name == self.gpu_resource:
                raise ValueError(f"extraResources names the GPU, {name}; say how many by the number of GPUs")
        return self


def security(own: Mapping[str, Any], given: Given) -> Manifest:
    """Ours with what is given over it; what is null is taken away."""
    return _merged(own, given.manifest())


def _merged(own: Mapping[str, Any], given: Mapping[str, Any]) -> Manifest:
    merged = dict(own)
    for key, value in given.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _merged(merged[key], value)
        else:
            merged[key] = value
    return merged


def pod_annotations(own: Mapping[str, str], overrides: Overrides) -> dict[str, str]:
    evict = {} if overrides.safe_to_evict is None else {SAFE_TO_EVICT: str(overrides.safe_to_evict).lower()}
    return {**overrides.annotations, **own, **evict}


def env(own: Sequence[Manifest], overrides: Overrides) -> list[Manifest]:
    """Ours, and those that are given. One of ours gives way if it is neither named after Rolecast or AWS nor from a Secret: threads,
    buffering, caches."""
    for variable in own:
        name = variable["name"]
        if name in overrides.env and (name.startswith(("ROLECAST_", "AWS_")) or "valueFrom" in variable):
            raise InputError(f"overrides.env: variable {name} is set by Rolecast; it has a key of its own, or remove it")
    more = [
        {"name": name, "value": value} if isinstance(value, str) else {"name": name, "valueFrom": value.manifest()}
        for name, value in overrides.env.items()
    ]
    return [variable for variable in own if variable["name"] not in overrides.env] + more


def devices(gpus: int, overrides: Overrides) -> dict[str, str]:
    """GPUs under their name here, and the extra resources."""
    return {**({overrides.gpu_resource: str(gpus)} if gpus else {}), **overrides.extra_resources}


def placement(overrides: Overrides, node_selector: Mapping[str, str], tolerations: Iterable[Toleration]) -> Manifest:
    """What decides the node, a pod's own keys and those of the overrides; empty parts are left out."""
    parts: Manifest = {
        "nodeSelector": {**node_selector, **overrides.node_selector},
        "tolerations": [toleration.manifest() for toleration in (*tolerations, *overrides.tolerations)],
        "affinity": overrides.affinity.manifest() if overrides.affinity else None,
    }
    return {key: value for key, value in parts.items() if value}


def pod_fields(overrides: Overrides) -> Manifest:
    """Further fields of a pod's spec; a TrainJob takes these from its runtime alone."""
    parts: Manifest = {
        "topologySpreadConstraints": [spread.manifest() for spread in overrides.topology_spread_constraints or ()],
        "priorityClassName": overrides.priority_class_name,
        "runtimeClassName": overrides.runtime_class_name,
    }
    return {key: value for key, value in parts.items() if value}


def env_from(overrides: Overrides) -> Manifest:
    return {"envFrom": [source.manifest() for source in overrides.env_from]} if overrides.env_from else {}


def volumes(own: Sequence[Manifest], overrides: Overrides) -> list[Manifest]:
    return [*own, *(volume.manifest() for volume in overrides.volumes)]


def mounts(own: Sequence[Manifest], overrides: Overrides) -> list[Manifest]:
    return [*own, *(mount.manifest() for mount in overrides.volume_mounts)]
