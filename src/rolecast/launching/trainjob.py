"""A training job as a TrainJob of Kubeflow Trainer (v2), and the runtime that it refers to.

A TrainJob may patch only some fields of its pods. What never changes between jobs (no restarts, no token, no service links)
therefore lives in the runtime, which the first launcher in a namespace creates and the others find.
"""

from __future__ import annotations

import hashlib
import json

from rolecast.errors import InputError
from rolecast.launching import overrides
from rolecast.launching.learner_pod import (
    NO_SIDECAR,
    TERMINATION,
    Manifest,
    check_reachable,
    command,
    container_security,
    coordinator_service,
    environment,
    job_metadata,
    placement,
    pod_annotations,
    pod_labels,
    pod_security,
    resources,
    volume_mounts,
    volumes,
)
from rolecast.launching.spec import TrainingJobSpec

NODE = "node"  # what Trainer calls both the replicated job and the container that train
MANAGER = "rolecast.dev/launcher"
GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PULL_POLICY = "IfNotPresent"  # of the runtime that jobs share


def render(spec: TrainingJobSpec) -> list[Manifest]:
    """The job, and for RL the Service in front of its coordinator."""
    check_reachable(spec)
    job = _job(spec)
    return [job, coordinator_service(spec, rank_zero(spec))] if spec.samples else [job]


def rank_zero(spec: TrainingJobSpec) -> dict[str, str]:
    """Labels of JobSet and of the indexed Job on the first node's pod."""
    return {
        "jobset.sigs.k8s.io/jobset-name": spec.job_name,
        "jobset.sigs.k8s.io/replicatedjob-name": NODE,
        "batch.kubernetes.io/job-completion-index": "0",
    }


def _job(spec: TrainingJobSpec) -> Manifest:
    python, *arguments = command(spec)
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainJob",
        "metadata": job_metadata(spec),
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": spec.runtime.kind, "name": runtime_name(spec)},
            "activeDeadlineSeconds": spec.deadlines.pending + spec.deadlines.running,
            "trainer": {
                "image": spec.image,
                "command": [python],
                "args": arguments,
                "env": environment(spec),
                "numNodes": spec.nodes,
                "numProcPerNode": spec.procs_per_node,
                "resourcesPerNode": resources(spec),
            },
            "runtimePatches": [{"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [_patch(spec)]}}}}],
        },
    }


def _patch(spec: TrainingJobSpec) -> Manifest:
    pod = {
        "metadata": {"labels": pod_labels(spec), "annotations": pod_annotations(spec)},
        "spec": {
            "serviceAccountName": spec.service_account,
            "terminationGracePeriodSeconds": spec.grace_seconds,
            "securityContext": pod_security(spec),
            **placement(spec),
            "containers": [{"name": NODE, "securityContext": container_security(spec), "volumeMounts": volume_mounts(spec)}],
            "volumes": volumes(spec),
        },
    }
    return {"name": NODE, "template": {"spec": {"template": pod}}}


def _unpatched(spec: TrainingJobSpec) -> Manifest:
    """What a TrainJob cannot patch, or could only add to."""
    given = spec.overrides
    return {
        **({"imagePullPolicy": spec.image_pull_policy} if spec.image_pull_policy != PULL_POLICY else {}),
        **overrides.pod_fields(given),
        **overrides.env_from(given),
        **{
            key: value
            for key, value in {"pod": given.pod_security_context.manifest(), "node": given.security_context.manifest()}.items()
            if value
        },
    }


def runtime_name(spec: TrainingJobSpec) -> str:
    """What only a runtime can say makes one of its own; the others share the namespace's."""
    unpatched = _unpatched(spec)
    if not unpatched:
        return spec.runtime.name
    if spec.runtime.kind == "ClusterTrainingRuntime":
        raise InputError(
            f"ClusterTrainingRuntime {spec.runtime.name} is the administrator's, and a TrainJob cannot patch {', '.join(unpatched)}: "
            "have it said there, or leave runtime.kind out"
        )
    digest = hashlib.sha256(json.dumps(unpatched, sort_keys=True).encode()).hexdigest()[:8]
    return f"{spec.runtime.name[:54].rstrip('-')}-{digest}"


def own_runtime(spec: TrainingJobSpec) -> Manifest | None:
    """The namespace's runtime; a cluster's is the administrator's. Its image runs only if a TrainJob names none."""
    if spec.runtime.kind == "ClusterTrainingRuntime":
        return None
    pod = {
        "metadata": {"labels": dict(NO_SIDECAR), "annotations": dict(NO_SIDECAR)},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": pod_security(spec),
            **overrides.pod_fields(spec.overrides),
            "containers": [
                {
                    "name": NODE,
                    "image": spec.image,
                    "imagePullPolicy": spec.image_pull_policy,
                    **TERMINATION,
                    **overrides.env_from(spec.overrides),
                    "securityContext": container_security(spec),
                }
            ],
        },
    }
    job = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}, "spec": {"backoffLimit": 0, "template": pod}}
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRuntime",
        "metadata": {
            "name": runtime_name(spec),
            "namespace": spec.namespace,
            "labels": {"trainer.kubeflow.org/framework": "torch", "app.kubernetes.io/part-of": "rolecast"},
        },
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {"spec": {"failurePolicy": {"maxRestarts": 0}, "replicatedJobs": [{"name": NODE, "template": job}]}},
        },
    }
