"""The API server as the launcher sees it: the few calls it makes."""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rolecast.errors import InputError
from rolecast.launching import pytorchjob, trainjob
from rolecast.launching.api_errors import Accepted, Later
from rolecast.launching.failure import Denied
from rolecast.launching.learner_pod import Manifest
from rolecast.launching.spec import TrainingJobSpec

Resource = dict[str, Any]
CALL_SECONDS = (10, 30)  # to connect, to read
QUIET_SECONDS = 300  # a log that says nothing for so long is opened again: its connection may be dead
MOST_EVENTS = 500
WORKFLOWS = ("argoproj.io", "v1alpha1", "workflows")


@dataclass(frozen=True, slots=True)
class JobKind:
    """A custom resource that runs a training job. `runtime`: what it refers to, if it is ours to create. `environments`: the lists of
    variables of its containers, of a manifest that `render` made."""

    group: str
    version: str
    plural: str
    render: Callable[[TrainingJobSpec], list[Manifest]]
    environments: Callable[[Manifest], list[list[Manifest]]]
    runtime: Callable[[TrainingJobSpec], Manifest | None] = lambda spec: None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


def _of_replicas(job: Manifest) -> list[list[Manifest]]:
    pods = [replicas["template"]["spec"] for replicas in job["spec"]["pytorchReplicaSpecs"].values()]
    return [container["env"] for pod in pods for container in pod["containers"] if "env" in container]


KINDS = {
    "pytorchjob": JobKind("kubeflow.org", "v1", "pytorchjobs", pytorchjob.render, _of_replicas),
    "trainjob": JobKind(
        trainjob.GROUP,
        trainjob.VERSION,
        "trainjobs",
        trainjob.render,
        lambda job: [job["spec"]["trainer"]["env"]],
        trainjob.own_runtime,
    ),
}


class Cluster:
    """All calls are made once and raise the errors of `api_errors` or `LaunchError`; who calls decides about trying again."""

    def __init__(self, api: Any) -> None:
        """`api`: a `kubernetes.client.ApiClient`."""
        from kubernetes import client

        self._api = api
        self._custom = client.CustomObjectsApi(api)
        self._core = client.CoreV1Api(api)
        self._called = Accepted()

    def create_job(self, kind: JobKind, manifest: Manifest) -> Resource:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        with self._called(f"create {kind.plural}", f"cannot create {kind.plural}/{name} in namespace {namespace}"):
            created: Resource = self._custom.create_namespaced_custom_object(
                kind.group, kind.version, namespace, kind.plural, manifest, _request_timeout=CALL_SECONDS
            )
            return created

    def create_runtime(self, manifest: Manifest) -> None:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        with self._called("create trainingruntimes", f"cannot create trainingruntimes/{name} in namespace {namespace}"):
            self._custom.create_namespaced_custom_object(
                trainjob.GROUP, trainjob.VERSION, namespace, "trainingruntimes", manifest, _request_timeout=CALL_SECONDS
            )

    def list_job(self, kind: JobKind, namespace: str, name: str) -> tuple[Resource | None, str]:
        """The job, or None if there is none, and the version of the list to watch from."""
        with self._called(f"list {kind.plural}", f"cannot read {kind.plural}/{name} in namespace {namespace}"):
            found = self._custom.list_namespaced_custom_object(
                kind.group, kind.version, namespace, kind.plural, field_selector=f"metadata.name={name}", _request_timeout=CALL_SECONDS
            )
        return next(iter(found["items"]), None), found["metadata"]["resourceVersion"]

    def list_jobs(self, kind: JobKind, namespace: str) -> list[Resource]:
        """All training jobs of ours."""
        with self._called(f"list {kind.plural}", f"cannot list {kind.plural} in namespace {namespace}"):
            found = self._custom.list_namespaced_custom_object(
                kind.group,
                kind.version,
                namespace,
                kind.plural,
                label_selector="app.kubernetes.io/part-of=rolecast",
                _request_timeout=CALL_SECONDS,
            )
            jobs: list[Resource] = found["items"]
            return jobs

    def watch_job(self, kind: JobKind, namespace: str, name: str, version: str, seconds: int) -> Iterator[tuple[str, Resource]]:
        """(ADDED | MODIFIED | DELETED | BOOKMARK, object), for at most `seconds`."""
        from kubernetes import watch

        with self._called(f"watch {kind.plural}", f"cannot watch {kind.plural}/{name} in namespace {namespace}"):
            for event in watch.Watch().stream(
                self._custom.list_namespaced_custom_object,
                kind.group,
                kind.version,
                namespace,
                kind.plural,
                field_selector=f"metadata.name={name}",
                resource_version=version,
                timeout_seconds=seconds,
                _request_timeout=(CALL_SECONDS[0], seconds + CALL_SECONDS[1]),
            ):
                yield event["type"], event["raw_object"]

    def patch_job(self, kind: JobKind, namespace: str, name: str, uid: str, metadata: dict[str, Any]) -> Resource:
        """Merges `metadata` into the job's. `Later` if it is gone, or another job has the name by now."""
        return self._patch(f"/apis/{kind.api_version}", namespace, kind.plural, name, uid, metadata)

    def delete_job(self, kind: JobKind, namespace: str, name: str, uid: str) -> None:
        """Foreground: the job is gone only after its pods. A job that is already gone, or another one of its name, is left alone."""
        with self._called(f"delete {kind.plural}", f"cannot delete {kind.plural}/{name} in namespace {namespace}"):
            self._delete(
                lambda options: self._custom.delete_namespaced_custom_object(
                    kind.group, kind.version, namespace, kind.plural, name, body=options, _request_timeout=CALL_SECONDS
                ),
                uid,
                "Foreground",
            )

    def create_service(self, manifest: Manifest) -> Resource:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        with self._called("create services", f"cannot create services/{name} in namespace {namespace}"):
            made = self._core.create_namespaced_service(namespace, manifest, _preload_content=False, _request_timeout=CALL_SECONDS)
            created: Resource = json.loads(made.data)
            return created

    def service(self, namespace: str, name: str) -> Resource | None:
        with self._called("list services", f"cannot read services/{name} in namespace {namespace}"):
            found = self._core.list_namespaced_service(
                namespace, field_selector=f"metadata.name={name}", _preload_content=False, _request_timeout=CALL_SECONDS
            )
            return next(iter(json.loads(found.data)["items"]), None)

    def patch_service(self, namespace: str, name: str, uid: str, metadata: dict[str, Any]) -> None:
        """As `patch_job`."""
        self._patch("/api/v1", namespace, "services", name, uid, metadata)

    def delete_service(self, namespace: str, name: str, uid: str) -> None:
        """A Service that is already gone, or another one of its name, is left alone."""
        with self._called("delete services", f"cannot delete services/{name} in namespace {namespace}"):
            self._delete(
                lambda options: self._core.delete_namespaced_service(
                    name, namespace, body=options, _preload_content=False, _request_timeout=CALL_SECONDS
                ),
                uid,
            )

    def _patch(self, api: str, namespace: str, plural: str, name: str, uid: str, metadata: dict[str, Any]) -> Resource:
        """By hand: of which kind the generated client says a patch is depends on its release and on the kind of object."""
        try:
            with self._called(f"patch {plural}", f"cannot change {plural}/{name} in namespace {namespace}"):
                patched: Resource = self._api.call_api(
                    f"{api}/namespaces/{namespace}/{plural}/{name}",
                    "PATCH",
                    header_params={"Content-Type": "application/merge-patch+json", "Accept": "application/json"},
                    body={"metadata": {**metadata, "uid": uid}},
                    response_type="object",
                    auth_settings=["BearerToken"],
                    _return_http_data_only=True,
                    _request_timeout=CALL_SECONDS,
                )
                return patched
        except Denied as error:
            if error.status != 404:
                raise
            raise Later(f"{plural}/{name} in namespace {namespace} was deleted meanwhile") from None

    def _delete(self, call: Callable[[Any], object], uid: str, propagation: str | None = None) -> None:
        from kubernetes import client
        from kubernetes.client.exceptions import ApiException

        try:
            call(client.V1DeleteOptions(propagation_policy=propagation, preconditions=client.V1Preconditions(uid=uid)))
        except ApiException as error:
            if error.status not in (404, 409):
                raise

    def pods(self, namespace: str, job: str) -> list[Resource]:
        """A job's pods as JSON: what the client's models make of them, and drop, is of no use here."""
        with self._called("list pods", f"cannot list the pods of {job} in namespace {namespace}"):
            found = self._core.list_namespaced_pod(
                namespace, label_selector=f"app.kubernetes.io/instance={job}", _preload_content=False, _request_timeout=CALL_SECONDS
            )
            pods: list[Resource] = json.loads(found.data)["items"]
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    def pod_uid(self, namespace: str, name: str) -> str | None:
        """None if there is no such pod."""
        from kubernetes.client.exceptions import ApiException

        with self._called("get pods", f"cannot read pods/{name} in namespace {namespace}"):
            try:
                found = self._core.read_namespaced_pod(name, namespace, _preload_content=False, _request_timeout=CALL_SECONDS)
            except ApiException as error:
                if error.status == 404:
                    return None
                raise
            return str(json.loads(found.data)["metadata"]["uid"])

    def warnings(self, namespace: str) -> list[Resource]:
        """Events of the namespace that tell of trouble; a server keeps them for an hour."""
        with self._called("list events", f"cannot list the events of namespace {namespace}"):
            found = self._core.list_namespaced_event(
                namespace, field_selector="type=Warning", limit=MOST_EVENTS, _preload_content=False, _request_timeout=CALL_SECONDS
            )
            events: list[Resource] = json.loads(found.data)["items"]
            return events

    def workflow(self, namespace: str, name: str) -> Resource | None:
        """An Argo Workflow, None if there is none."""
        from kubernetes.client.exceptions import ApiException

        with self._called("get workflows", f"cannot read workflows/{name} in namespace {namespace}"):
            try:
                found: Resource = self._custom.get_namespaced_custom_object(
                    *WORKFLOWS[:2], namespace, WORKFLOWS[2], name, _request_timeout=CALL_SECONDS
                )
            except ApiException as error:
                if error.status == 404:
                    return None
                raise
            return found

    def log_lines(self, namespace: str, pod: str, *, tail: int | None = None, since: int | None = None) -> Iterator[str]:
        """With `tail` the last lines that there are now; else lines after their timestamps, until the pod ends, and not older
        than `since` seconds."""
        with self._called("get pods/log", f"cannot read the log of {pod} in namespace {namespace}"):
            options: dict[str, Any] = {"follow": True, "timestamps": True} if tail is None else {"tail_lines": tail}
            if since is not None:
                options["since_seconds"] = since
            reply = self._core.read_namespaced_pod_log(
                pod,
                namespace,
                **options,
                _preload_content=False,
                _request_timeout=(CALL_SECONDS[0], QUIET_SECONDS if tail is None else CALL_SECONDS[1]),
            )
            try:
                rest = b""
                for chunk in reply.stream(amt=4096, decode_content=False):
                    *lines, rest = (rest + chunk).split(b"\n")
                    yield from (line.decode(errors="replace") for line in lines)
                if rest:
                    yield rest.decode(errors="replace")
            finally:
                reply.close()


def api_client() -> Any:
    """Inside a pod by its ServiceAccount, elsewhere by the kubeconfig's current context."""
    from kubernetes import client, config

    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        try:
            config.load_kube_config(client_configuration=configuration)
        except (config.ConfigException, OSError) as error:
            raise InputError(
                f"no cluster to talk to: this is no pod, and the kubeconfig cannot be used ({error}); set KUBECONFIG"
            ) from None
    configuration.retries = False  # the launcher tries again itself, and tells
    return client.ApiClient(configuration)


def connect() -> Cluster:
    return Cluster(api_client())
