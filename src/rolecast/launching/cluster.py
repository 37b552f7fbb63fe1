"""The API server as the launcher sees it: the few calls it makes, and errors sorted by what can be done about them."""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rolecast.errors import InputError
from rolecast.launching import pytorchjob, trainjob
from rolecast.launching.failure import LaunchError
from rolecast.launching.learner_pod import Manifest
from rolecast.launching.spec import TrainingJobSpec

Resource = dict[str, Any]
TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
CALL_SECONDS = (10, 30)  # to connect, to read
QUIET_SECONDS = 300  # a log that says nothing for so long is opened again: its connection may be dead


class Blip(Exception):
    """The API server did not answer, or asked for patience: the same call may succeed later."""


class Gone(Exception):
    """A watch asked for history that the server no longer has: list again."""


class Conflict(Exception):
    """An object of this name exists."""


@dataclass(frozen=True, slots=True)
class JobKind:
    """A custom resource that runs a training job. `runtime`: what it refers to, if it is ours to create."""

    group: str
    version: str
    plural: str
    render: Callable[[TrainingJobSpec], list[Manifest]]
    runtime: Callable[[TrainingJobSpec], Manifest | None] = lambda spec: None


KINDS = {
    "pytorchjob": JobKind("kubeflow.org", "v1", "pytorchjobs", pytorchjob.render),
    "trainjob": JobKind(trainjob.GROUP, trainjob.VERSION, "trainjobs", trainjob.render, trainjob.own_runtime),
}


@contextmanager
def _sorted_errors(what: str) -> Iterator[None]:
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        if error.status == 410:
            raise Gone(what) from None
        if error.status == 409:
            raise Conflict(what) from None
        if error.status in TRANSIENT:
            raise Blip(f"{what}: HTTP {error.status}") from None
        raise LaunchError(f"{what}: {_explain(error)}") from None
    except (HTTPError, OSError, json.JSONDecodeError) as error:  # no connection, cut off, or cut off inside an event
        raise Blip(f"{what}: {error.__class__.__name__}") from None


def _explain(error: Any) -> str:
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        message = error.reason
    hint = {
        401: "; the token is not accepted: log in again",
        403: "; the ServiceAccount lacks a right: see the launcher's Role",
        404: "; is the operator installed, and does the namespace exist?",
        422: "; the manifest was refused: look at `rolecast deploy render`",
    }
    return f"HTTP {error.status} {message}{hint.get(error.status, '')}"


class Cluster:
    """All calls are made once and raise `Blip`, `Gone`, `Conflict` or `LaunchError`; who calls decides about trying again."""

    def __init__(self, api: Any) -> None:
        """`api`: a `kubernetes.client.ApiClient`."""
        from kubernetes import client

        self._custom = client.CustomObjectsApi(api)
        self._core = client.CoreV1Api(api)

    def create_job(self, kind: JobKind, manifest: Manifest) -> Resource:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        with _sorted_errors(f"cannot create {kind.plural}/{name} in namespace {namespace}"):
            created: Resource = self._custom.create_namespaced_custom_object(
                kind.group, kind.version, namespace, kind.plural, manifest, _request_timeout=CALL_SECONDS
            )
            return created

    def create_runtime(self, manifest: Manifest) -> None:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        with _sorted_errors(f"cannot create trainingruntimes/{name} in namespace {namespace}"):
            self._custom.create_namespaced_custom_object(
                trainjob.GROUP, trainjob.VERSION, namespace, "trainingruntimes", manifest, _request_timeout=CALL_SECONDS
            )

    def list_job(self, kind: JobKind, namespace: str, name: str) -> tuple[Resource | None, str]:
        """The job, or None if there is none, and the version of the list to watch from."""
        with _sorted_errors(f"cannot read {kind.plural}/{name} in namespace {namespace}"):
            found = self._custom.list_namespaced_custom_object(
                kind.group, kind.version, namespace, kind.plural, field_selector=f"metadata.name={name}", _request_timeout=CALL_SECONDS
            )
        return next(iter(found["items"]), None), found["metadata"]["resourceVersion"]

    def watch_job(self, kind: JobKind, namespace: str, name: str, version: str, seconds: int) -> Iterator[tuple[str, Resource]]:
        """(ADDED | MODIFIED | DELETED | BOOKMARK, object), for at most `seconds`."""
        from kubernetes import watch

        with _sorted_errors(f"cannot watch {kind.plural}/{name} in namespace {namespace}"):
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

    def delete_job(self, kind: JobKind, namespace: str, name: str, uid: str) -> None:
        """Foreground: the job is gone only after its pods. A job that is already gone, or another one of its name, is left alone."""
        from kubernetes import client
        from kubernetes.client.exceptions import ApiException

        options = client.V1DeleteOptions(propagation_policy="Foreground", preconditions=client.V1Preconditions(uid=uid))
        with _sorted_errors(f"cannot delete {kind.plural}/{name} in namespace {namespace}"):
            try:
                self._custom.delete_namespaced_custom_object(
                    kind.group, kind.version, namespace, kind.plural, name, body=options, _request_timeout=CALL_SECONDS
                )
            except ApiException as error:
                if error.status not in (404, 409):
                    raise

    def create_service(self, manifest: Manifest) -> None:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        with _sorted_errors(f"cannot create services/{name} in namespace {namespace}"):
            self._core.create_namespaced_service(namespace, manifest, _request_timeout=CALL_SECONDS)

    def service(self, namespace: str, name: str) -> Resource | None:
        with _sorted_errors(f"cannot read services/{name} in namespace {namespace}"):
            found = self._core.list_namespaced_service(
                namespace, field_selector=f"metadata.name={name}", _preload_content=False, _request_timeout=CALL_SECONDS
            )
            return next(iter(json.loads(found.data)["items"]), None)

    def pods(self, namespace: str, job: str) -> list[Resource]:
        """A job's pods as JSON: what the client's models make of them, and drop, is of no use here."""
        with _sorted_errors(f"cannot list the pods of {job} in namespace {namespace}"):
            found = self._core.list_namespaced_pod(
                namespace, label_selector=f"app.kubernetes.io/instance={job}", _preload_content=False, _request_timeout=CALL_SECONDS
            )
            pods: list[Resource] = json.loads(found.data)["items"]
        return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))

    def log_lines(self, namespace: str, pod: str, *, tail: int | None = None, since: int | None = None) -> Iterator[str]:
        """With `tail` the last lines that there are now; else lines after their timestamps, until the pod ends, and not older
        than `since` seconds."""
        with _sorted_errors(f"cannot read the log of {pod} in namespace {namespace}"):
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
