"""A service in the place of another, against an API server that does what KServe and the Deployment controller do when told to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from sdk_models import unknown_fields
from test_role import DEPLOYING

from rolecast.errors import InputError
from rolecast.launching.deployments import VERSION, Address, DeployError, KServe, Recorded, make_deployments, versioned
from rolecast.launching.inferenceservice import ServingSpec

Object = dict[str, Any]
VERBS = {"GET": "list", "POST": "create", "PUT": "update"}


class Server(ThreadingHTTPServer):
    """`reconcile` runs at each look at Deployments."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.services: dict[str, Object] = {}
        self.deployments: dict[str, Object] = {}
        self.faults: list[int] = []
        self.puts: list[Object] = []
        self.asked: set[tuple[str, str, str]] = set()  # group, resource and verb
        self.reconcile: Callable[[Server], None] = comes_up
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None: ...

    def _handle(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or "null")
        server, path = self.server, self.path.partition("?")[0]
        _, _, group, _, _, _, resource, *_ = path.split("/")
        server.asked.add((group, resource, VERBS[self.command]))
        if server.faults:
            return self._answer(server.faults.pop(0), {"message": "scripted"})
        if path.endswith("/deployments"):
            server.reconcile(server)
            return self._answer(200, {"items": list(server.deployments.values())})
        if self.command == "GET":
            return self._answer(200, {"items": list(server.services.values())})
        name, before = body["metadata"]["name"], server.services.get(body["metadata"]["name"])
        if self.command == "PUT":
            assert before is not None
            if body["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
                return self._answer(409, {"message": "the object has been modified"})
        server.puts.append(body)
        version = int(before["metadata"]["resourceVersion"]) + 1 if before else 1
        server.services[name] = {**body, "metadata": {**body["metadata"], "resourceVersion": str(version), "uid": "u"}}
        return self._answer(200, server.services[name])

    do_GET = do_POST = do_PUT = _handle  # noqa: N815 (the names that http.server calls)

    def _answer(self, status: int, body: Object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def deployment(server: Server, **status: int) -> None:
    """What KServe makes of the service."""
    (service,) = server.services.values()
    name = f"{service['metadata']['name']}-predictor"
    labels = service["spec"]["predictor"]["labels"]
    server.deployments = {
        name: {
            "metadata": {"name": name, "generation": 3},
            "spec": {"replicas": 2, "template": {"metadata": {"labels": labels}}},
            "status": {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, **status},
        }
    }


def comes_up(server: Server) -> None:
    deployment(server)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def kserve(server: Server) -> KServe:
    from kubernetes import client

    configuration = client.Configuration()
    configuration.host, configuration.retries = server.url, False
    api = client.ApiClient(configuration)
    now = iter(range(10**6))
    return KServe(client.CustomObjectsApi(api), client.AppsV1Api(api), lambda text: None, lambda seconds: None, lambda: 5.0 * next(now))


def spec(run: str = "s3://b/runs/new", **more: Any) -> ServingSpec:
    return ServingSpec(kind="agent", uri=run, stage="rl", image="agent:1", name="demo", replicas=2, start_seconds=60, **more)


OLD = spec("s3://b/runs/old")


def test_a_first_service_is_made_and_waited_for(server: Server, kserve: KServe) -> None:
    assert kserve.current(spec()) is None
    assert kserve.deploy(spec()) == "inferenceservices/demo in namespace rolecast"
    assert kserve.current(spec()) == Address("s3://b/runs/new", "rl")


def test_a_service_is_replaced_and_what_others_wrote_of_it_stays(server: Server, kserve: KServe) -> None:
    kserve.deploy(OLD)
    server.services["demo"]["metadata"]["finalizers"] = ["inferenceservice.finalizers"]
    kserve.deploy(spec())
    assert kserve.current(spec()) == Address("s3://b/runs/new", "rl")
    assert server.services["demo"]["metadata"]["finalizers"] == ["inferenceservice.finalizers"]
    assert server.asked == DEPLOYING  # that is all that the launcher's Role allows, and all that is asked for


@pytest.mark.parametrize(
    "states",
    [
        [{"updatedReplicas": 1, "replicas": 3}, {"replicas": 3}, {"availableReplicas": 1}, {}],
        [{"observedGeneration": 2}, {}],
    ],
)
def test_it_is_there_only_when_its_pods_are_all_new_and_serve(server: Server, kserve: KServe, states: list[dict[str, int]]) -> None:
    kserve.deploy(OLD)
    left = list(states)
    server.reconcile = lambda running: deployment(running, **left.pop(0))
    kserve.deploy(spec())
    assert not left


def test_pods_of_the_old_version_do_not_count(server: Server, kserve: KServe) -> None:
    """While KServe has not acted yet, the Deployment is whole, and KServe says that the service is ready."""
    kserve.deploy(OLD)
    looks = []

    def late(running: Server) -> None:
        looks.append(1)
        if len(looks) == 4:
            deployment(running)

    server.reconcile = late
    kserve.deploy(spec())
    assert len(looks) == 4


def test_what_does_not_come_up_is_taken_back(server: Server, kserve: KServe) -> None:
    kserve.deploy(OLD)
    before = server.services["demo"]["spec"]
    server.reconcile = lambda running: deployment(running, availableReplicas=1)
    with pytest.raises(DeployError, match="2 of 2 pods are of the new version, 1 are available; the version before was put back"):
        kserve.deploy(spec())
    assert server.services["demo"]["spec"] == before
    assert kserve.current(spec()) == Address("s3://b/runs/old", "rl")


def test_a_first_one_that_does_not_come_up_is_said(server: Server, kserve: KServe) -> None:
    server.reconcile = lambda running: None
    with pytest.raises(DeployError, match="KServe has not made the Deployment demo-predictor yet; look at its pods"):
        kserve.deploy(spec())


def test_a_blip_while_waiting_is_borne_and_a_missing_right_is_not(server: Server, kserve: KServe) -> None:
    kserve.deploy(OLD)
    faults = [503, 500]

    def blips(running: Server) -> None:
        deployment(running, **({"availableReplicas": 0} if faults else {}))
        if faults:
            running.faults.append(faults.pop())

    server.reconcile = blips
    kserve.deploy(spec())
    server.faults = [403]
    with pytest.raises(DeployError, match="HTTP 403 scripted; the step's ServiceAccount lacks a right"):
        kserve.deploy(OLD)


def test_what_somebody_else_changed_meanwhile_is_not_overwritten(server: Server, kserve: KServe, monkeypatch: pytest.MonkeyPatch) -> None:
    kserve.deploy(OLD)
    stale = json.loads(json.dumps(server.services["demo"]))
    server.services["demo"]["metadata"]["resourceVersion"] = "9"
    monkeypatch.setattr(kserve, "_get", lambda spec: stale)
    with pytest.raises(DeployError, match=r"HTTP 409.*somebody else changed it"):
        kserve.deploy(spec())


def test_a_service_of_another_make_is_refused(server: Server, kserve: KServe) -> None:
    server.services["demo"] = {"metadata": {"name": "demo"}, "spec": {"predictor": {"model": {}}}}
    with pytest.raises(InputError, match="is no agent of ours"):
        kserve.current(spec())


def test_versions_are_told_apart_by_a_label_that_kserve_knows() -> None:
    (new, one), (old, other) = versioned(spec()), versioned(OLD)
    assert one != other
    assert new["spec"]["predictor"]["labels"][VERSION] == one
    assert unknown_fields(new) == unknown_fields(old) == []


def test_a_record_is_kept_beside_the_run(tmp_path: Path) -> None:
    place = Recorded(str(tmp_path))
    assert place.current(spec()) is None
    assert place.deploy(spec()) == f"{tmp_path}/deployed/demo.json"
    assert place.current(spec()) == Address("s3://b/runs/new", "rl")
    with pytest.raises(InputError, match="no target 'helm'"):
        make_deployments("helm", str(tmp_path))
