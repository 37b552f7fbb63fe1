"""Puts an InferenceService in the place of the one of its name, waits until its pods serve, and puts the old one back if they do not.

KServe's own conditions stay ready while pods are replaced, and its observedGeneration counts another object's changes. So what is
looked at is the predictor's Deployment: its pods carry the label `rolecast.dev/version`, which tells what they were made from.
"""

# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import copy
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rolecast.errors import InputError, RolecastError
from rolecast.launching.inferenceservice import ServingSpec, render
from rolecast.launching.learner_pod import Manifest
from rolecast.store.uri import open_store

VERSION = "rolecast.dev/version"
GROUP, API_VERSION, PLURAL = "serving.kserve.io", "v1beta1", "inferenceservices"
CALL_SECONDS = (10, 30)  # to connect, to read
LOOK_SECONDS = 5.0
BLIPS = 60  # looks in a row without an answer of the API server


class DeployError(RolecastError):
    """A service could not be deployed, or does not come up. `again`: the API server may answer otherwise in a moment."""

    def __init__(self, message: str, again: bool = False) -> None:
        super().__init__(message)
        self.again = again


@dataclass(frozen=True, slots=True)
class Address:
    """Of the team that a deployment serves."""

    run: str
    stage: str


class Deployments(Protocol):
    def current(self, spec: ServingSpec) -> Address | None:
        """What is deployed under the spec's name; None where nothing is."""
        ...

    def deploy(self, spec: ServingSpec) -> str:
        """Blocks until it serves; says where. `DeployError` if it does not, and the one before serves on."""
        ...


def address_in(manifest: Manifest, where: str) -> Address:
    """The team of an agent's service, as its container is told it."""
    try:
        arguments = manifest["spec"]["predictor"]["containers"][0]["args"]
        return Address(arguments[2], arguments[arguments.index("--stage") + 1])
    except (KeyError, IndexError, ValueError, TypeError):
        raise InputError(f"{where} is no agent of ours, so nothing can be compared with it; take another name") from None


def versioned(spec: ServingSpec) -> tuple[Manifest, str]:
    """The service with a label on its pods that tells this one from others of its name."""
    manifest = copy.deepcopy(render(spec))
    version = hashlib.sha256(json.dumps(manifest["spec"], sort_keys=True).encode()).hexdigest()[:16]
    manifest["spec"]["predictor"]["labels"] = {**manifest["spec"]["predictor"].get("labels", {}), VERSION: version}
    return manifest, version


class Recorded:
    """Where nothing is to be deployed from here: the manifest is kept beside others, for whoever applies it (a GitOps tool, a person)."""

    def __init__(self, place: str) -> None:
        self._place = place

    def current(self, spec: ServingSpec) -> Address | None:
        data = open_store(self._place).get(self._key(spec))
        return address_in(json.loads(data), f"{self._place}/{self._key(spec)}") if data is not None else None

    def deploy(self, spec: ServingSpec) -> str:
        open_store(self._place).put(self._key(spec), json.dumps(render(spec), indent=1).encode())
        return f"{self._place}/{self._key(spec)}"

    @staticmethod
    def _key(spec: ServingSpec) -> str:
        return f"deployed/{spec.service_name}.json"


class KServe:
    """`custom`, `apps`: the `kubernetes` client's APIs."""

    def __init__(
        self, custom: Any, apps: Any, say: Callable[[str], object] = print, sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._custom, self._apps, self._say, self._sleep, self._clock = custom, apps, say, sleep, clock

    def current(self, spec: ServingSpec) -> Address | None:
        found = self._get(spec)
        return address_in(found, _named(spec)) if found is not None else None

    def deploy(self, spec: ServingSpec) -> str:
        before = self._get(spec)
        manifest, version = versioned(spec)
        self._put(spec, manifest, before)
        why = self._wait(spec, version)
        if not why:
            return _named(spec)
        if before is None:
            raise DeployError(f"{_named(spec)} does not come up: {why}; look at its pods, delete it or deploy another version")
        self._put(spec, before, self._get(spec))
        raise DeployError(f"{_named(spec)} does not come up: {why}; the version before was put back")

    def _wait(self, spec: ServingSpec, version: str) -> str:
        """Why it does not serve; "" once it does."""
        deadline, told, missed = self._clock() + spec.start_seconds, "", 0
        while True:
            try:
                state, missed = self._state(spec, version), 0
            except DeployError as error:
                missed += 1
                if not error.again or missed > BLIPS:
                    raise
                state = str(error)
            if not state:
                return ""
            if state != told:
                self._say(f"{_named(spec)}: {state}")
                told = state
            if self._clock() >= deadline:
                return f"after {spec.start_seconds} s {state}"
            self._sleep(LOOK_SECONDS)

    def _state(self, spec: ServingSpec, version: str) -> str:
        """What is still missing."""
        name = f"{spec.service_name}-predictor"
        found = self._call(
            f"read deployments/{name}",
            lambda: self._apps.list_namespaced_deployment(
                spec.namespace, field_selector=f"metadata.name={name}", _preload_content=False, _request_timeout=CALL_SECONDS
            ),
        )
        items = json.loads(found.data)["items"]
        if not items:
            return f"KServe has not made the Deployment {name} yet"
        deployment, status = items[0], items[0].get("status", {})
        if deployment["spec"]["template"]["metadata"].get("labels", {}).get(VERSION) != version:
            return f"KServe has not taken the new version into the Deployment {name} yet"
        if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
            return f"the Deployment {name} is not acted on yet"
        wanted = deployment["spec"].get("replicas", 1)
        new, ready, all_ = (status.get(key, 0) for key in ("updatedReplicas", "availableReplicas", "replicas"))
        if new >= wanted and ready >= wanted and all_ == new:
            return ""
        failed = [c["message"] for c in status.get("conditions", []) if c.get("type") == "ReplicaFailure" and c.get("status") == "True"]
        return f"{new} of {wanted} pods are of the new version, {ready} are available{': ' + failed[0] if failed else ''}"

    def _get(self, spec: ServingSpec) -> Manifest | None:
        found = self._call(
            f"read {_named(spec)}",
            lambda: self._custom.list_namespaced_custom_object(
                GROUP,
                API_VERSION,
                spec.namespace,
                PLURAL,
                field_selector=f"metadata.name={spec.service_name}",
                _request_timeout=CALL_SECONDS,
            ),
        )
        return next(iter(found["items"]), None)

    def _put(self, spec: ServingSpec, manifest: Manifest, before: Manifest | None) -> None:
        """A replacement names the version that it replaces: what somebody else changes meanwhile is not overwritten."""
        if before is None:
            self._call(
                f"create {_named(spec)}",
                lambda: self._custom.create_namespaced_custom_object(
                    GROUP, API_VERSION, spec.namespace, PLURAL, manifest, _request_timeout=CALL_SECONDS
                ),
            )
            return
        metadata = {**before["metadata"], **{key: manifest["metadata"].get(key) or {} for key in ("labels", "annotations")}}
        body = {**manifest, "metadata": metadata}
        self._call(
            f"replace {_named(spec)}",
            lambda: self._custom.replace_namespaced_custom_object(
                GROUP, API_VERSION, spec.namespace, PLURAL, spec.service_name, body, _request_timeout=CALL_SECONDS
            ),
        )

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return call()
        except ApiException as error:
            try:
                message = json.loads(error.body)["message"]
            except (TypeError, ValueError, KeyError):
                message = error.reason
            hint = {
                403: "; the step's ServiceAccount lacks a right",
                404: "; is KServe installed?",
                409: "; somebody else changed it: try again",
            }
            again = error.status == 429 or error.status >= 500
            raise DeployError(f"cannot {what}: HTTP {error.status} {message}{hint.get(error.status, '')}", again) from None
        except (HTTPError, OSError) as error:
            raise DeployError(f"cannot {what}: the API server does not answer ({type(error).__name__})", again=True) from None


def _named(spec: ServingSpec) -> str:
    return f"{PLURAL}/{spec.service_name} in namespace {spec.namespace}"


def make_deployments(target: str, place: str) -> Deployments:
    """`target`: kserve, or record, which keeps manifests below `place`."""
    if target == "record":
        return Recorded(place)
    if target != "kserve":
        raise InputError(f"no target {target!r}; there are kserve and record")
    from kubernetes import client

    from rolecast.launching.cluster import api_client

    api = api_client()
    return KServe(client.CustomObjectsApi(api), client.AppsV1Api(api))
