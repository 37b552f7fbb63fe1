"""What every pod that a chart renders keeps to. Each rule yields faults: which object, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from rolecast.coordinator.tokens import RELEASE_KEY
from rolecast.service.settings import ServiceSettings
from tests.charts.rendering import Object, Pod, of_kind, pods, title

Faults = Iterator[str]
SELECTOR = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
SECRET_NAME = re.compile(r"SECRET|PASSWORD|CREDENTIAL|TOKEN$|KEY$|KEY_ID$")
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}  # of the restricted level


def service_links_are_off(objects: list[Object]) -> Faults:
    """K35."""
    for pod in pods(objects):
        if pod.spec.get("enableServiceLinks") is not False:
            yield f"{pod.owner}: enableServiceLinks is not false"


def selectors_never_change(objects: list[Object]) -> Faults:
    """K37: name, instance and component, all three, and nothing that varies between versions. A coordinator's instance is its job."""
    for item in objects:
        if item["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "PodDisruptionBudget", "ServiceMonitor"):
            found = item["spec"]["selector"].get("matchLabels", {})
        elif item["kind"] == "Service":
            found = item["spec"]["selector"]
        else:
            continue
        if set(found) != SELECTOR - (
            {"app.kubernetes.io/instance"} if found.get("app.kubernetes.io/component") == "coordinator" else set()
        ):
            yield f"{title(item)}: selects by {sorted(found)}"


def secrets_are_referred_to(objects: list[Object]) -> Faults:
    """K38: no Secret is made, and a name that holds a secret has no value here."""
    for item in of_kind(objects, "Secret"):
        yield f"{title(item)}: is made from values"
    for pod in pods(objects):
        for container in pod.containers:
            for variable in container.get("env", []):
                if SECRET_NAME.search(variable["name"]) and "secretKeyRef" not in variable.get("valueFrom", {}):
                    yield f"{pod.owner}: {variable['name']} is not from a Secret"


def pods_are_restricted(objects: list[Object]) -> Faults:
    """K39: the restricted Pod Security level, and a root file system that is read-only beside it."""
    for pod in pods(objects):
        yield from (f"{pod.owner}: {fault}" for fault in _pod_faults(pod))
        for container in pod.containers:
            yield from (f"{pod.owner}, container {container['name']}: {fault}" for fault in _container_faults(container))


def _pod_faults(pod: Pod) -> Faults:
    security = pod.spec.get("securityContext", {})
    if security.get("runAsNonRoot") is not True:
        yield "runAsNonRoot is not true"
    user = security.get("runAsUser", 10001)  # where an override takes ours away, the cluster assigns one
    if not isinstance(user, int) or user < 1000:
        yield "runAsUser is no numeric user"
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "seccompProfile is not RuntimeDefault"
    yield from (f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.spec.get(key))
    for volume in pod.spec.get("volumes", []):
        if not VOLUMES & set(volume):
            yield f"volume {volume['name']} is of a kind that the level refuses"
        if "emptyDir" in volume and not volume["emptyDir"].get("sizeLimit"):
            yield f"volume {volume['name']} has no sizeLimit"


def _container_faults(container: Object) -> Faults:
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    if security.get("capabilities", {}) != {"drop": ["ALL"]}:
        yield "capabilities are not all dropped"
    if security.get("readOnlyRootFilesystem") is not True:
        yield "readOnlyRootFilesystem is not true"
    if (
        security.get("privileged")
        or security.get("runAsNonRoot") is False
        or security.get("runAsUser") == 0
        or "seccompProfile" in security
    ):
        yield "loosens what the pod says"
    yield from (f"port {port['containerPort']} is the host's" for port in container.get("ports", []) if "hostPort" in port)
    resources = container.get("resources", {})
    if not {"cpu", "memory"} <= set(resources.get("requests", {})) or "memory" not in resources.get("limits", {}):
        yield "requests or the memory limit are missing"


def tokens_are_off(objects: list[Object]) -> Faults:
    """K40: on the pod, and on its account too, so that a pod that someone adds by hand has none either."""
    for pod in pods(objects):
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.owner}: automountServiceAccountToken is not false"
        if pod.spec.get("serviceAccountName", "default") in ("default", "rolecast-launcher"):
            yield f"{pod.owner}: has no account of its own"
    for item in of_kind(objects, "ServiceAccount"):
        if item["metadata"]["name"] != "rolecast-launcher" and item.get("automountServiceAccountToken") is not False:
            yield f"{title(item)}: automountServiceAccountToken is not false"


def traffic_is_denied(objects: list[Object]) -> Faults:
    """K41: a policy without rules selects every pod, in both directions."""
    walls = [
        item["spec"]["podSelector"].get("matchLabels", {})
        for item in of_kind(objects, "NetworkPolicy")
        if set(item["spec"]["policyTypes"]) == {"Ingress", "Egress"} and not item["spec"].get("ingress") and not item["spec"].get("egress")
    ]
    for pod in pods(objects):
        if not any(wall.items() <= pod.labels.items() for wall in walls):
            yield f"{pod.owner}: no default-deny policy selects its labels"


def budgets_fit(objects: list[Object]) -> Faults:
    """K42."""
    scaled = {item["spec"]["scaleTargetRef"]["name"]: item["spec"]["minReplicas"] for item in of_kind(objects, "HorizontalPodAutoscaler")}
    scaled |= {item["spec"]["scaleTargetRef"]["name"]: item["spec"]["minReplicaCount"] for item in of_kind(objects, "ScaledObject")}
    replicas = {}
    for item in of_kind(objects, "Deployment"):
        name = item["metadata"]["name"]
        if name in scaled and "replicas" in item["spec"]:
            yield f"{title(item)}: has replicas, which an upgrade would set back, under an autoscaler"
        replicas[name] = scaled.get(name, item["spec"].get("replicas", 1))
    for item in of_kind(objects, "PodDisruptionBudget"):
        if replicas[item["metadata"]["name"]] < 2:
            yield f"{title(item)}: with one replica it only keeps nodes from being drained"


def gpus_are_not_doubled(objects: list[Object]) -> Faults:
    """K43."""
    for item in of_kind(objects, "Deployment"):
        gpu = any(name.endswith("/gpu") for pod in pods([item]) for c in pod.containers for name in c["resources"].get("limits", {}))
        strategy = item["spec"]["strategy"]
        if gpu and strategy["type"] != "Recreate" and strategy["rollingUpdate"]["maxSurge"] != 0:
            yield f"{title(item)}: a surge pod would wait for a GPU that the old one holds"


def disk_is_counted(objects: list[Object]) -> Faults:
    """What lies in scratch folders is the node's disk: a pod that does not ask for it is the first to be evicted, one whose limit is
    below its folders is evicted while it does what it may."""
    for pod in pods(objects):
        folders = sum(
            size(v["emptyDir"]["sizeLimit"]) for v in pod.spec.get("volumes", []) if v.get("emptyDir", {"medium": 1}).get("medium") is None
        )
        for container in pod.containers:
            resources = container.get("resources", {})
            if "ephemeral-storage" not in resources.get("requests", {}):
                yield f"{pod.owner}: asks for no disk"
            if size(resources.get("limits", {}).get("ephemeral-storage", "0M")) <= folders:
                yield f"{pod.owner}: may use less disk than its folders hold"


def size(quantity: str) -> int:
    found = re.fullmatch(r"(\d+)(M|G|T|Mi|Gi|Ti)", quantity)
    assert found, quantity
    power = "MGT".index(found[2][0]) + 2
    return int(found[1]) * (1024 if found[2].endswith("i") else 1000) ** power


def names_are_told_once(objects: list[Object]) -> Faults:
    """A variable, volume or folder that is there twice: the API server warns or refuses, and one of the two is not what was meant."""
    for pod in pods(objects):
        lists = {"volumes": [volume["name"] for volume in pod.spec.get("volumes", [])]}
        for container in pod.containers:
            lists |= {
                f"{container['name']}: env": [variable["name"] for variable in container.get("env", [])],
                f"{container['name']}: mounts": [mount["mountPath"] for mount in container.get("volumeMounts", [])],
            }
        for what, names in lists.items():
            yield from (f"{pod.owner}: {what} has {name} twice" for name in sorted({name for name in names if names.count(name) > 1}))


def configuration_is_summed(objects: list[Object]) -> Faults:
    """K44: a pod that reads a ConfigMap changes with it."""
    for pod in pods(objects):
        reads = any("configMapRef" in source for container in pod.containers for source in container.get("envFrom", []))
        reads |= any("configMap" in volume for volume in pod.spec.get("volumes", []))
        if reads and not any(key.startswith("checksum/") for key in pod.metadata.get("annotations", {})):
            yield f"{pod.owner}: reads a ConfigMap without a checksum of it"


def probes_are_apart(objects: list[Object]) -> Faults:
    """K30 and K31, for what serves: three probes, of which readiness asks something else, and a drain that fits in the grace."""
    for item in of_kind(objects, "Deployment"):
        for pod in pods([item]):
            for container in pod.containers:
                paths = {
                    kind: container.get(f"{kind}Probe", {}).get("httpGet", {}).get("path") for kind in ("startup", "readiness", "liveness")
                }
                if paths != {"startup": "/healthz", "readiness": "/readyz", "liveness": "/healthz"}:
                    yield f"{pod.owner}: probes are {paths}"
                drain = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
                if not 0 < drain < pod.spec.get("terminationGracePeriodSeconds", 0):
                    yield f"{pod.owner}: preStop sleeps {drain} s of its grace"


def services_drain_within_the_grace(objects: list[Object]) -> Faults:
    """What a service ends or a worker gives back after SIGTERM, it does before SIGKILL, with some seconds to spare for ending itself."""
    for item in of_kind(objects, "Deployment"):
        for pod in pods([item]):
            for container in pod.containers:
                given = {variable["name"]: variable.get("value") for variable in container["env"]}
                drain = float(given.get("ROLECAST_DRAIN_SECONDS") or ServiceSettings.model_fields["drain_seconds"].default)
                hook = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
                if not 10 <= drain <= pod.spec.get("terminationGracePeriodSeconds", 30) - hook - 5:
                    yield f"{pod.owner}: drains for {drain:g} s after {hook} s of a hook, in a grace of {pod.spec.get('terminationGracePeriodSeconds')} s"


def rollouts_wait_for_slow_starts(objects: list[Object]) -> Faults:
    """A Deployment counts as failed when nothing moved for this long; a pod that pulls its image and starts as slowly as it may, moves."""
    for item in of_kind(objects, "Deployment"):
        for pod in pods([item]):
            for container in pod.containers:
                probe = container.get("startupProbe", {})
                start = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)
                if item["spec"].get("progressDeadlineSeconds", 600) < start + 300:
                    yield f"{title(item)}: may start for {start} s, and has failed after {item['spec'].get('progressDeadlineSeconds', 600)} s"


def services_go_before_workers(objects: list[Object]) -> Faults:
    """A pod without a class has priority 0: once workers have one, they would take the places of services that have none."""
    classes = {
        item["metadata"]["name"].rsplit("-", 1)[-1]: pod.spec.get("priorityClassName")
        for item in of_kind(objects, "Deployment")
        for pod in pods([item])
    }
    if classes.get("rollout"):
        yield from (f"Deployment of {part}: has no class, and workers are {classes['rollout']}" for part in classes if not classes[part])


def folders_are_writable(objects: list[Object]) -> Faults:
    """What the images write to while their root is read-only."""
    for item in of_kind(objects, "Deployment"):
        for pod in pods([item]):
            for container in pod.containers:
                if not {"/tmp", "/work"} <= {mount["mountPath"] for mount in container.get("volumeMounts", [])}:
                    yield f"{pod.owner}: /tmp or /work is not mounted"


def workers_have_the_release_key(objects: list[Object]) -> Faults:
    """Without it a worker refuses to start, and no coordinator would let it in."""
    for item in of_kind(objects, "Deployment"):
        for pod in pods([item]):
            for container in pod.containers:
                keys = [variable for variable in container.get("env", []) if variable["name"] == RELEASE_KEY]
                if container.get("args", [])[:1] == ["rollout"] and not (keys and "secretKeyRef" in keys[0].get("valueFrom", {})):
                    yield f"{pod.owner}: {RELEASE_KEY} is not from a Secret"


RULES: list[Callable[[list[Object]], Faults]] = [
    service_links_are_off,
    selectors_never_change,
    secrets_are_referred_to,
    pods_are_restricted,
    tokens_are_off,
    traffic_is_denied,
    budgets_fit,
    gpus_are_not_doubled,
    disk_is_counted,
    names_are_told_once,
    configuration_is_summed,
    probes_are_apart,
    services_drain_within_the_grace,
    rollouts_wait_for_slow_starts,
    services_go_before_workers,
    folders_are_writable,
    workers_have_the_release_key,
]
