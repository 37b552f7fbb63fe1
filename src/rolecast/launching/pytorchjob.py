"""A training job as a PyTorchJob of the Kubeflow training operator (v1)."""

from __future__ import annotations

from rolecast.launching import overrides
from rolecast.launching.learner_pod import (
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


def render(spec: TrainingJobSpec) -> list[Manifest]:
    """The job, and for RL the Service in front of its coordinator."""
    check_reachable(spec)
    job = _job(spec)
    return [job, coordinator_service(spec, rank_zero(spec))] if spec.samples else [job]


def rank_zero(spec: TrainingJobSpec) -> dict[str, str]:
    """Labels that the operator puts on the master's pod."""
    return {"training.kubeflow.org/job-name": spec.job_name, "training.kubeflow.org/replica-type": "master"}


def _job(spec: TrainingJobSpec) -> Manifest:
    replicas = {"Master": _replicas(spec, 1)}
    if spec.nodes > 1:
        replicas["Worker"] = _replicas(spec, spec.nodes - 1)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": job_metadata(spec),
        "spec": {
            # Without it the operator writes "auto", which counts all GPUs or all cores of the node.
            "nprocPerNode": str(spec.procs_per_node),
            "runPolicy": {
                "cleanPodPolicy": "Running",  # pods that ended stay, and with them their logs and exit codes
                "backoffLimit": 0,
                "ttlSecondsAfterFinished": spec.ttl_seconds,
                # A net for the case that no launcher watches any more; the launcher's own deadlines come first.
                "activeDeadlineSeconds": spec.deadlines.pending + spec.deadlines.running,
            },
            "pytorchReplicaSpecs": replicas,
        },
    }


def _replicas(spec: TrainingJobSpec, count: int) -> Manifest:
    return {
        "replicas": count,
        # A pod that restarts alone meets peers that wait in a collective of the old world; the whole job is submitted again.
        "restartPolicy": "Never",
        "template": {
            "metadata": {"labels": pod_labels(spec), "annotations": pod_annotations(spec)},
            "spec": {
                "serviceAccountName": spec.service_account,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": spec.grace_seconds,
                "securityContext": pod_security(spec),
                **placement(spec),
                **overrides.pod_fields(spec.overrides),
                "containers": [_container(spec)],
                "volumes": volumes(spec),
            },
        },
    }


def _container(spec: TrainingJobSpec) -> Manifest:
    container: Manifest = {
        "name": "pytorch",  # the operator looks for this name
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": command(spec),
        **TERMINATION,
        **overrides.env_from(spec.overrides),
        "env": environment(spec),
        "resources": resources(spec),
        "securityContext": container_security(spec),
        "volumeMounts": volume_mounts(spec),
    }
    if spec.samples:
        container["ports"] = [{"name": "coordinator", "containerPort": spec.coordinator.port, "protocol": "TCP"}]
    return container
