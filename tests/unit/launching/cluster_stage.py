"""A launcher in front of the fake API server, and the moves that an operator makes there."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from fake_api import FakeApi
from kubernetes import client

from rolecast.launching.adoption import result_of
from rolecast.launching.cluster import KINDS, Cluster
from rolecast.launching.kubernetes import KubernetesLauncher
from rolecast.launching.spec import TrainingJobSpec, read_spec
from rolecast.launching.workflow import Workflow
from rolecast.store.local import LocalStore

SPEC: dict[str, Any] = {
    "run": "s3://store/runs/tiny",
    "stage": "sft",
    "image": "rolecast-learner:test",
    "deadlines": {"queued": 300, "pending": 100, "running": 200},
    "backoff": {"retries": 0},
}


class Clock:
    """Stands still except while someone sleeps, or when a test moves it."""

    def __init__(self) -> None:
        self.now, self.limit = 1000.0, 700.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Threads that follow logs do not make time pass."""
        if threading.current_thread() is threading.main_thread():
            self.now += seconds
            assert self.now < 1000 + self.limit, "the launcher waits for ever"
        else:
            time.sleep(0.01)


class Stage:
    """Each `then` is one step of the script, played when the launcher's next watch begins."""

    def __init__(self, api: FakeApi, kind: str = "pytorchjob", /, **changes: Any) -> None:
        self.api, self.kind, self.clock = api, KINDS[kind], Clock()
        self.spec: TrainingJobSpec = read_spec({**SPEC, **changes})
        self.said: list[str] = []
        self.store = LocalStore(api.stores / self.spec.run_label)
        self.store.put("run.json", b"{}", absent=True)
        self.launcher = self.launch()

    def launch(self, workflow: Workflow | None = None) -> KubernetesLauncher:
        """Another launcher of the same job."""
        arguments = (cluster(self.api), self.kind, self.said.append, self.clock, self.clock.sleep, lambda run: self.store)
        return KubernetesLauncher(*arguments, workflow or Workflow())

    def commit(self) -> None:
        """What the stage ends with, as far as a launcher can see it."""
        self.store.put(f"{result_of(self.spec)}/manifest.json", b"{}")

    @property
    def job(self) -> dict[str, Any]:
        return self.api.objects[self.kind.plural][self.spec.job_name]

    def then(self, *steps: Callable[[], Any]) -> None:
        def play() -> None:
            for step in steps:
                step()

        self.api.script.append(play)

    def condition(self, kind: str, reason: str = "", message: str = "") -> Callable[[], None]:
        def put() -> None:
            if kind in ("Succeeded", "Complete"):
                self.commit()
            job = self.job
            job.setdefault("status", {})["conditions"] = [{"type": kind, "status": "True", "reason": reason, "message": message}]
            self.api.put(self.kind.plural, job)

        return put

    def suspend(self, on: bool) -> Callable[[], None]:
        def put() -> None:
            self.job["spec"]["runPolicy"]["suspend"] = on
            self.api.put(self.kind.plural, self.job)

        return put

    def pod(self, phase: str, name: str = "master-0", **status: Any) -> Callable[[], None]:
        labels = {"app.kubernetes.io/instance": self.spec.job_name}

        def put() -> None:
            full = f"{self.spec.job_name}-{name}"
            uid = self.api.objects.get("pods", {}).get(full, {}).get("metadata", {}).get("uid", f"pod-{name}")
            self.api.put("pods", {"metadata": {"name": full, "uid": uid, "labels": labels}, "status": {"phase": phase, **status}})

        return put

    def warning(self, reason: str, message: str, about: str = "") -> Callable[[], None]:
        """An event; `about`: what follows the job's name in the object's."""

        def put() -> None:
            item = {
                "metadata": {"name": f"event-{reason}-{about}"},
                "type": "Warning",
                "reason": reason,
                "message": message,
                "involvedObject": {"name": self.spec.job_name + about},
                "lastTimestamp": "2026-01-01T00:00:00Z",
            }
            self.api.put("events", item)

        return put

    def workflow(self, **spec: Any) -> Workflow:
        """A Workflow that runs, in the jobs' namespace."""
        item = {"metadata": {"name": "demo-x7", "uid": "uid-of-demo-x7"}, "spec": spec, "status": {"phase": "Running"}}
        self.api.put("workflows", item)
        return Workflow("demo-x7", self.spec.namespace)

    def heard(self, text: str) -> Callable[[], None]:
        """Waits until the launcher said it: logs are read by threads of their own."""

        def wait() -> None:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and not any(text in line for line in self.said):
                time.sleep(0.02)

        return wait

    def later(self, seconds: float) -> Callable[[], None]:
        def move() -> None:
            self.clock.now += seconds

        return move

    def existing(self, **changes: Any) -> dict[str, Any]:
        """A job of the same name that was there before."""
        manifest = self.kind.render(self.spec.model_copy(update=changes))[0]
        manifest["metadata"]["name"] = self.spec.job_name
        return self.api.put(self.kind.plural, manifest, "ADDED")


def cluster(api: FakeApi) -> Cluster:
    configuration = client.Configuration()
    configuration.host, configuration.retries = api.url, False
    return Cluster(client.ApiClient(configuration))


def terminated(code: int, reason: str = "Error", message: str = "", finished: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    state = {"exitCode": code, "reason": reason, "message": message, "finishedAt": finished}
    return {"containerStatuses": [{"name": "pytorch", "state": {"terminated": state}}]}
