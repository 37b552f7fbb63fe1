"""What a learner's pod is made of, whichever operator starts it, and the Service in front of rank 0."""

from __future__ import annotations

import re
from typing import Any

from rolecast.coordinator.tokens import RELEASE_KEY
from rolecast.errors import InputError
from rolecast.launching.spec import TrainingJobSpec
from rolecast.service.tokens import TOKEN
from rolecast.store.announcements import ADDRESS, COORDINATORS
from rolecast.threads import CHOSEN, COUNT

Manifest = dict[str, Any]

SPEC_HASH = "rolecast.dev/spec-hash"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"
USER = 10001
COORDINATOR_LABEL = "rolecast.dev/coordinator"
GRACE_SECONDS = 120  # a learner that is told to stop saves a checkpoint first

POD_SECURITY: Manifest = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
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
S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
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
    return {"name": spec.job_name, "namespace": spec.namespace, "labels": labels, "annotations": {SPEC_HASH: spec.digest}}


def pod_labels(spec: TrainingJobSpec) -> dict[str, str]:
    """Policies let rollout workers through to pods that may run a coordinator."""
    return {**job_labels(spec), **NO_SIDECAR, **({COORDINATOR_LABEL: "true"} if spec.samples else {})}


def command(spec: TrainingJobSpec) -> list[str]:
    """torchrun reads master address and node rank from the PET_ variables that both operators set, and makes RANK and
    WORLD_SIZE itself. It is given in full here so that a pod's listing says what runs."""
    return [
        "torchrun",
        f"--nnodes={spec.nodes}",
        f"--nproc-per-node={spec.procs_per_node}",
        "-m",
        "rolecast.learner.main",
        spec.stage,
        spec.run,
    ]


def environment(spec: TrainingJobSpec) -> list[Manifest]:
    """Each variable by name: a TrainJob takes no envFrom, and both kinds of job must see the same."""
    env: list[Manifest] = [
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        {"name": "ROLECAST_WORKDIR", "value": "/work"},
        {"name": "GOMP_SPINCOUNT", "value": "1000"},
        {"name": "KMP_BLOCKTIME", "value": "0"},
    ]
    if spec.procs_per_node > 1:
        # Else torchrun says 1, as if the user had: each process is to take its share of the pod's cores.
        env += [{"name": name, "value": "1"} for name in (COUNT, CHOSEN)]
    if spec.zero_stage is not None:
        env.append({"name": "ROLECAST_ZERO_STAGE", "value": str(spec.zero_stage)})
    if spec.samples:
        env.append({"name": ADDRESS, "value": spec.coordinator_url})
        env.append({"name": "ROLECAST_COORDINATOR_PORT", "value": str(spec.coordinator.port)})
    for key in REQUIRED_ENDPOINTS:
        env.append({"name": key, "valueFrom": {"configMapKeyRef": {"name": spec.endpoints, "key": key}}})
    for key in (*OPTIONAL_ENDPOINTS, *([COORDINATORS] if spec.samples else [])):
        env.append({"name": key, "valueFrom": {"configMapKeyRef": {"name": spec.endpoints, "key": key, "optional": True}}})
    for key in S3_KEYS:
        env.append({"name": key, "valueFrom": {"secretKeyRef": {"name": spec.s3_secret, "key": key}}})
    if spec.samples and spec.release_secret:
        env.append({"name": RELEASE_KEY, "valueFrom": {"secretKeyRef": {"name": spec.release_secret, "key": RELEASE_ENTRY}}})
    for key in spec.externals_keys:
        env.append({"name": key, "valueFrom": {"secretKeyRef": {"name": spec.externals_secret, "key": key}}})
    if spec.auth_secret:
        env.append({"name": TOKEN, "valueFrom": {"secretKeyRef": {"name": spec.auth_secret, "key": "token"}}})
    return env


def resources(spec: TrainingJobSpec) -> Manifest:
    """Requests equal limits: a learner that is throttled or evicted holds up all its peers. /dev/shm counts as memory."""
    amount = {"cpu": spec.cpu, "memory": spec.memory}
    if spec.gpus_per_node:
        amount["nvidia.com/gpu"] = str(spec.gpus_per_node)
    return {"requests": dict(amount), "limits": dict(amount)}


def volumes(spec: TrainingJobSpec) -> list[Manifest]:
    """The root is read-only. A container's own /dev/shm holds 64 MiB, too little for NCCL and for data loaders."""
    return [
        {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": spec.shm_size}},
        {"name": "tmp", "emptyDir": {"sizeLimit": spec.scratch_size}},
        {"name": "work", "emptyDir": {"sizeLimit": spec.scratch_size}},
    ]


def volume_mounts() -> list[Manifest]:
    return [
        {"name": "dshm", "mountPath": "/dev/shm"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "work", "mountPath": "/work"},
    ]


def placement(spec: TrainingJobSpec) -> Manifest:
    """What decides the node and who may pull the image; empty parts are left out."""
    parts: Manifest = {}
    if spec.node_selector:
        parts["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        parts["tolerations"] = [toleration.manifest() for toleration in spec.tolerations]
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
