"""What a learner's pod is made of, whichever operator starts it, and the Service in front of rank 0."""

from __future__ import annotations

import re
from typing import Any

from rolecast.coordinator.tokens import RELEASE_KEY
from rolecast.errors import InputError
from rolecast.launching import overrides, s3_access
from rolecast.launching.spec import TrainingJobSpec
from rolecast.processes import TERMINATION_LOG
from rolecast.service.tokens import TOKEN
from rolecast.store.announcements import ADDRESS, COORDINATORS, LET_THROUGH, PORT

Manifest = dict[str, Any]

SPEC_HASH = "rolecast.dev/spec-hash"
RUN = "rolecast.dev/run-address"  # which no label can hold
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
USER = 10001
COORDINATOR_LABEL = "rolecast.dev/coordinator"
END_SECONDS = 10  # of a pod's grace, for ranks that have not saved in time to be killed and to be told of
# What the container says of its end; the last lines of its log where it could not say anything.
TERMINATION: Manifest = {"terminationMessagePath": TERMINATION_LOG, "terminationMessagePolicy": "FallbackToLogsOnError"}

POD_SECURITY: Manifest = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",  # not every file of a large volume at every start
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
}
# A sidecar never ends, so the pod would not either. Istio reads the label, and in older releases the annotation.
NO_SIDECAR = {"sidecar.istio.io/inject": "false"}

REQUIRED_ENDPOINTS = ("ROLECAST_STORE", "ROLECAST_S3_ENDPOINT")
OPTIONAL_ENDPOINTS = ("ROLECAST_S3_REGION", "ROLECAST_RETRIEVER_URL", "ROLECAST_JUDGE_URL")
RELEASE_ENTRY = "key"  # of the release's Secret


def check_reachable(spec: TrainingJobSpec) -> None:
    if "://" not in spec.run:
        raise InputError(f"run {spec.run} is a folder, which pods do not share; give a URI like s3://bucket/prefix, or launch locally")
    if not re.fullmatch(r"s3://[a-z0-9][-.a-z0-9]*(/(?!\.\.?(/|$))[^/\s]+)+/?", spec.run):
        raise InputError(f"run {spec.run} is no place that a job's pods can reach; write s3://bucket/prefix/NAME")


def job_labels(spec: TrainingJobSpec) -> dict[str, str]:
    """Of the job and of its pods."""
    return {
        **spec.labels,
        "app.kubernetes.io/name": "rolecast",
        "app.kubernetes.io/instance": spec.job_name,
        "app.kubernetes.io/component": "learner",
        "app.kubernetes.io/part-of": "rolecast",
        "app.kubernetes.io/managed-by": "rolecast-launcher",
        "rolecast.dev/run": spec.run_label,
        "rolecast.dev/stage": spec.stage,
    }


def job_metadata(spec: TrainingJobSpec) -> Manifest:
    """Kueue reads queue and priority from the job's labels, and from no other place."""
    labels = job_labels(spec)
    if spec.queue:
        labels[QUEUE] = spec.queue
    if spec.priority:
        labels[PRIORITY] = spec.priority
    return {"name": spec.job_name, "namespace": spec.namespace, "labels": labels, "annotations": {SPEC_HASH: spec.digest, RUN: spec.run}}


def pod_labels(spec: TrainingJobSpec) -> dict[str, str]:
    """Policies let rollout workers through to pods that may run a coordinator."""
    return {**spec.overrides.labels, **job_labels(spec), **NO_SIDECAR, **({COORDINATOR_LABEL: "true"} if spec.samples else {})}


def pod_annotations(spec: TrainingJobSpec) -> dict[str, str]:
    return overrides.pod_annotations(NO_SIDECAR, spec.overrides)


def command(spec: TrainingJobSpec) -> list[str]:
    """Given in full so that a pod's listing says what runs. Which node this is, and where the first one is, stands in the PET_ variables
    that both operators set."""
    return [
        "python",
        "-m",
        "rolecast.launching.ranks",
        spec.stage,
        spec.run,
        f"--nodes={spec.nodes}",
        f"--procs={spec.procs_per_node}",
        f"--save-seconds={spec.grace_seconds - END_SECONDS}",
    ]


def environment(spec: TrainingJobSpec) -> list[Manifest]:
    """Each variable by name: a TrainJob takes no envFrom, and both kinds of job must see the same. PYTHONUNBUFFERED is the image's, and the
    training operator's, which would warn of a second one."""
    env: list[Manifest] = [
        {"name": "ROLECAST_WORKDIR", "value": "/work"},
        {"name": "GOMP_SPINCOUNT", "value": "1000"},
        {"name": "KMP_BLOCKTIME", "value": "0"},
    ]
    if spec.zero_stage is not None:
        env.append({"name": "ROLECAST_ZERO_STAGE", "value": str(spec.zero_stage)})
    if spec.samples:
        env.append({"name": ADDRESS, "value": spec.coordinator_url})
        env.append({"name": PORT, "value": str(spec.coordinator.port)})
        env.append({"name": LET_THROUGH, "valueFrom": {"configMapKeyRef": {"name": spec.endpoints, "key": PORT, "optional": True}}})
    for key in REQUIRED_ENDPOINTS:
        env.append({"name": key, "valueFrom": {"configMapKeyRef": {"name": spec.endpoints, "key": key}}})
    for key in (*OPTIONAL_ENDPOINTS, *([COORDINATORS] if spec.samples else [])):
        env.append({"name": key, "valueFrom": {"configMapKeyRef": {"name": spec.endpoints, "key": key, "optional": True}}})
    env += s3_access.env(spec)
    if spec.samples and spec.release_secret:
        env.append({"name": RELEASE_KEY, "valueFrom": {"secretKeyRef": {"name": spec.release_secret, "key": RELEASE_ENTRY}}})
    for key in spec.externals_keys:
        env.append({"name": key, "valueFrom": {"secretKeyRef": {"name": spec.externals_secret, "key": key}}})
    if spec.auth_secret:
        env.append({"name": TOKEN, "valueFrom": {"secretKeyRef": {"name": spec.auth_secret, "key": "token"}}})
    return overrides.env(env, spec.overrides)


def resources(spec: TrainingJobSpec) -> Manifest:
    """Requests equal limits: a learner that is throttled or evicted holds up all its peers. /dev/shm counts as memory. On a small node it may
    ask for less, and take what the others leave."""
    return spec.resources(overrides.devices(spec.gpus_per_node, spec.overrides))


def volumes(spec: TrainingJobSpec) -> list[Manifest]:
    """The root is read-only. A container's own /dev/shm holds 64 MiB, too little for NCCL and for data loaders."""
    own: list[Manifest] = [
        {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": spec.shm_size}},
        {"name": "tmp", "emptyDir": {"sizeLimit": spec.scratch_size}},
        {"name": "work", "emptyDir": {"sizeLimit": spec.scratch_size}},
    ]
    return overrides.volumes(own + s3_access.volumes(spec), spec.overrides)


def volume_mounts(spec: TrainingJobSpec) -> list[Manifest]:
    own: list[Manifest] = [
        {"name": "dshm", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "work", "mountPath": "/work"},
    ]
    return overrides.mounts(own + s3_access.mounts(spec), spec.overrides)


def pod_security(spec: TrainingJobSpec) -> Manifest:
    return overrides.security(POD_SECURITY, spec.overrides.pod_security_context)


def container_security(spec: TrainingJobSpec) -> Manifest:
    return overrides.security(CONTAINER_SECURITY, spec.overrides.security_context)


def placement(spec: TrainingJobSpec) -> Manifest:
    """What decides the node and who may pull the image; empty parts are left out."""
    parts = overrides.placement(spec.overrides, spec.node_selector, spec.tolerations)
    if spec.image_pull_secrets:
        parts["imagePullSecrets"] = [{"name": name} for name in spec.image_pull_secrets]
    return parts


def coordinator_service(spec: TrainingJobSpec, selector: dict[str, str]) -> Manifest:
    """`selector` finds the pod of rank 0. The Service outlives no job: the launcher makes the job its owner."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": spec.coordinator_service,
            "namespace": spec.namespace,
            "labels": {**job_labels(spec), "app.kubernetes.io/component": "coordinator"},
        },
        "spec": {
            "selector": selector,
            "ports": [{"name": "http", "port": spec.coordinator.port, "targetPort": spec.coordinator.port, "protocol": "TCP"}],
        },
    }
