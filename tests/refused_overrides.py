"""Overrides that jobs, InferenceServices and charts refuse alike."""

from __future__ import annotations

from typing import Any

# What is Rolecast's own: told in the same words everywhere.
OURS: list[tuple[dict[str, Any], str]] = [
    ({"labels": {"app.kubernetes.io/component": "x"}}, "label app.kubernetes.io/component is set by Rolecast or an operator"),
    ({"labels": {"kueue.x-k8s.io/queue-name": "x"}}, "label kueue.x-k8s.io/queue-name is set by Rolecast"),
    ({"annotations": {"sidecar.istio.io/inject": "true"}}, "annotation sidecar.istio.io/inject is set by Rolecast"),
    ({"annotations": {"rolecast.dev/rotation": "x"}}, "annotation rolecast.dev/rotation is set by Rolecast"),
    ({"annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}}, "set safeToEvict"),
    ({"env": {"RANK": "0"}}, "variable RANK is set by torchrun or the operator"),
    ({"env": {"PET_NNODES": "0"}}, "variable PET_NNODES is set by torchrun"),
    ({"env": {"HF_TOKEN": "hunter2"}}, "variable HF_TOKEN looks like a secret; give it by secretKeyRef"),
    ({"volumes": [{"name": "work", "emptyDir": {"sizeLimit": "1Gi"}}]}, "volume work is Rolecast's own"),
    ({"volumes": [{"name": "vol"}]}, "volume vol is of one kind"),
    ({"volumeMounts": [{"name": "vol", "mountPath": "/v"}]}, "volumeMounts names vol, and volumes does not"),
    (
        {"volumes": [{"name": "vol", "emptyDir": {"sizeLimit": "1Gi"}}], "volumeMounts": [{"name": "vol", "mountPath": "/work/v"}]},
        "mountPath /work/v is Rolecast's own",
    ),
    ({"extraResources": {"nvidia.com/gpu": 1}}, "extraResources names the GPU"),
]

# What no pod takes, or no pod of ours: the key is told.
MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"annotations": {"a": 1}}, "annotations"),
    ({"labels": {"a b": "c"}}, "a b"),
    ({"env": {"nccl": "x"}}, "nccl"),
    ({"env": {"AA": {"value": "x"}}}, "AA"),
    ({"envFrom": [{"secretRef": {}}]}, "name"),
    ({"volumes": [{"name": "vol", "hostPath": {"path": "/"}}]}, "hostPath"),
    ({"volumes": [{"name": "vol", "emptyDir": {}}]}, "sizeLimit"),
    ({"volumes": [{"name": "vol", "emptyDir": {"sizeLimit": "lots"}}]}, "sizeLimit"),
    ({"podSecurityContext": {"runAsUser": 0}}, "runAsUser"),
    ({"podSecurityContext": {"runAsNonRoot": False}}, "runAsNonRoot"),
    ({"podSecurityContext": {"sysctls": []}}, "sysctls"),
    ({"securityContext": {"privileged": True}}, "privileged"),
    ({"securityContext": {"allowPrivilegeEscalation": True}}, "allowPrivilegeEscalation"),
    ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "capabilities"),
    ({"extraResources": {"memory": "1Gi"}}, "memory"),
    ({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "Maybe"}]}, "whenUnsatisfiable"),
    ({"affinity": {"nodeAffinty": {}}}, "nodeAffinty"),
    ({"pod_security_context": {}}, "pod_security_context"),
    ({"hostNetwork": True}, "hostNetwork"),
    ({"tolerations": [{"key": "a", "effect": "Never"}]}, "effect"),
    ({"safeToEvict": "maybe"}, "safeToEvict"),
]
