"""What a cluster's operators say of every pod, on a pipeline's steps: the block `overrides` that charts, jobs and services take.

KFP's server makes the pods of what kfp-kubernetes writes beside a step, so the block is fixed when a pipeline is compiled, and what
kfp-kubernetes has no way for is refused then.
"""

from collections.abc import Iterator
from typing import Any

from kfp import dsl, kubernetes

from rolecast.errors import InputError
from rolecast.launching import overrides as shared
from rolecast.launching.overrides import Overrides

NOTHING = Overrides()
OF_KFP = (
    "pipelines.kubeflow.org/",
    "pipeline/",
    "workflows.argoproj.io/",
)  # labels and annotations by which KFP knows its pods, and policies do
IDENTITY = {"runAsUser": "run_as_user", "runAsGroup": "run_as_group", "runAsNonRoot": "run_as_non_root"}
NO_WAY = {
    "envFrom": "name each variable under env",
    "topologySpreadConstraints": "leave them to charts and jobs",
    "priorityClassName": "leave it to charts and jobs",
    "runtimeClassName": "leave it to charts and jobs",
    "extraResources": "leave them to charts and jobs",
}
OF_VOLUMES = {  # what is said of a volume of each kind, and of its mount beside name and path
    "configMap": ({"name", "optional"}, {"readOnly"}),  # which nobody can write to
    "secret": ({"secretName", "optional"}, {"readOnly"}),
    "persistentVolumeClaim": ({"claimName"}, {"subPath"}),
    "emptyDir": ({"sizeLimit", "medium"}, set()),
    "ephemeral": ({"volumeClaimTemplate"}, set()),
}


def require_expressible(overrides: Overrides) -> None:
    """`InputError` for the first thing that kfp-kubernetes has no way for. `null`, an empty list and `false` ask for what steps have anyway:
    nothing of ours is there to be taken away."""
    given = _said(overrides.manifest())
    for key, advice in _without_a_way(given):
        raise InputError(f"overrides.{key}: a step of Kubeflow Pipelines cannot be given this; {advice}")
    for kind in ("labels", "annotations"):
        for key in given.get(kind, {}):
            if key.startswith(OF_KFP):
                raise InputError(f"overrides.{kind}: {key} is set by Kubeflow Pipelines; choose another prefix")


def apply(task: dsl.PipelineTask, overrides: Overrides) -> None:
    """Onto a step that has all of ours. Node selectors are defaults of the pipeline's parameter: kfp-kubernetes takes no second ones."""
    _variables(task, overrides)
    for key, value in overrides.labels.items():
        kubernetes.add_pod_label(task, key, value)
    for key, value in shared.pod_annotations({}, overrides).items():
        kubernetes.add_pod_annotation(task, key, value)
    # The pod's user is the container's where that has none of its own.
    given = {**_said(overrides.pod_security_context.manifest()), **_said(overrides.security_context.manifest())}
    if given:
        kubernetes.set_security_context(task, **{IDENTITY[key]: value for key, value in given.items()})
    for toleration in overrides.tolerations:
        kubernetes.add_toleration(task, **toleration.model_dump(exclude_none=True))
    if overrides.affinity and overrides.affinity.node_affinity:
        nodes = overrides.affinity.node_affinity.model_dump(mode="json", by_alias=True, exclude_none=True)
        kubernetes.add_node_affinity_json(task, nodes)
    said = _said(overrides.manifest())
    volumes = {volume["name"]: volume for volume in said.get("volumes", [])}
    for mount in said.get("volumeMounts", []):
        _mount(task, volumes[mount["name"]], mount)


def _said(given: Any) -> Any:
    """Without what says nothing."""
    if isinstance(given, dict):
        return {key: kept for key, value in given.items() if not _nothing(kept := _said(value))}
    return [_said(value) for value in given] if isinstance(given, list) else given


def _nothing(value: Any) -> bool:
    return value is None or value is False or value in ([], {})


def _without_a_way(given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys of the block, each with what to do instead."""
    yield from ((key, advice) for key, advice in NO_WAY.items() if key in given)
    for context in ("podSecurityContext", "securityContext"):
        for key in given.get(context, {}):
            if key not in IDENTITY:
                yield f"{context}.{key}", f"its identity alone can: {', '.join(IDENTITY)}"
    for key in given.get("affinity", {}):
        if key != "nodeAffinity":
            yield f"affinity.{key}", "nodeAffinity can"
    yield from _volumes_without_a_way(given.get("volumes", []), given.get("volumeMounts", []))


def _volumes_without_a_way(volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    held: dict[str, str] = {}
    for volume in volumes:
        name, kind = volume["name"], next((key for key in volume if key != "name"), "emptyDir")
        if kind not in OF_VOLUMES:
            yield f"volumes.{name}.{kind}", f"the kinds are {', '.join(OF_VOLUMES)}"
            return
        of_volume, of_mount = OF_VOLUMES[kind]
        yield from ((f"volumes.{name}.{kind}.{key}", "remove it") for key in volume[kind] if key not in of_volume)
        found = [mount for mount in mounts if mount["name"] == name]
        if len(found) != 1:  # KFP makes a volume of each mount
            yield f"volumes.{name}", f"it is mounted {len(found)} times, and can be once"
        for mount in found:
            yield from ((f"volumeMounts.{name}.{key}", "remove it") for key in mount if key not in {"name", "mountPath", *of_mount})
        # KFP names volumes after what they hold, and a pod with two of one name is refused.
        holds = volume[kind].get("name") or volume[kind].get("secretName") or volume[kind].get("claimName") or name
        if holds in held:
            yield f"volumes.{name}", f"it would have the name of volume {held[holds]}, {holds}; give what it holds another name"
        held[holds] = name


def _variables(task: dsl.PipelineTask, overrides: Overrides) -> None:
    said = task.platform_config["kubernetes"]
    own = [key["envVar"] for kind in ("secretAsEnv", "configMapAsEnv") for of in said.get(kind, []) for key in of["keyToEnv"]]
    own += [field["name"] for field in said.get("fieldPathAsEnv", [])]
    shared.env([{"name": name, "valueFrom": {}} for name in own], overrides)  # refuses one of ours
    for name, value in overrides.env.items():
        if isinstance(value, str):
            task.set_env_variable(name, value)
        elif value.field_ref:
            kubernetes.use_field_path_as_env(task, name, value.field_ref.field_path)
        elif value.secret_key_ref:
            of = value.secret_key_ref
            kubernetes.use_secret_as_env(task, of.name, {of.key: name}, optional=bool(of.optional))
        elif value.config_map_key_ref:
            of = value.config_map_key_ref
            kubernetes.use_config_map_as_env(task, of.name, {of.key: name}, optional=bool(of.optional))


def _mount(task: dsl.PipelineTask, volume: dict[str, Any], mount: dict[str, Any]) -> None:
    name, path = mount["name"], mount["mountPath"]
    if of := volume.get("configMap"):
        kubernetes.use_config_map_as_volume(task, of["name"], path, optional=of.get("optional", False))
    elif of := volume.get("secret"):
        kubernetes.use_secret_as_volume(task, of["secretName"], path, optional=of.get("optional", False))
    elif of := volume.get("persistentVolumeClaim"):
        kubernetes.mount_pvc(task, of["claimName"], path, mount.get("subPath", ""))
    elif of := volume.get("emptyDir"):
        kubernetes.empty_dir_mount(task, name, path, of.get("medium") or None, of["sizeLimit"])
    else:
        claim = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
        size = claim["resources"]["requests"]["storage"]
        kubernetes.add_ephemeral_volume(task, name, path, claim["accessModes"], size, claim.get("storageClassName"))
