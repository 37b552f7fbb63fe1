"""The coordinator from the other side of HTTP: as a worker sees it, and as the learner does.

Every call may be made again: leases, submissions and acknowledgements are idempotent, so a lost answer is asked for anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
from pydantic import BaseModel

from rolecast.coordinator.leases import Group, Handshake, Lease, Refused, Stopped, TeamVersion
from rolecast.errors import RolecastError
from rolecast.types import Trajectory
from rolecast.wire import coordinator as wire


class _Http:
    def __init__(self, url: str, headers: Mapping[str, str], patience: float, sleep: Callable[[float], None]) -> None:
        self._client = httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(60.0, connect=5.0))
        self._patience = patience
        self._sleep = sleep

    def post(self, path: str, body: BaseModel | bytes, params: Mapping[str, Any] | None = None) -> Any:
        content = body if isinstance(body, bytes) else body.model_dump_json().encode()
        kind = "application/gzip" if isinstance(body, bytes) else "application/json"
        return self._call("POST", path, content=content, headers={"Content-Type": kind}, params=params)

    def answers(self) -> bool:
        """Whether it is there and takes us for its learner: what else listens on the port is not it."""
        try:
            return self._client.get("/v1/control/ready").is_success
        except httpx.TransportError:
            return False

    def get(self, path: str) -> Any:
        return self._call("GET", path)

    def _call(self, method: str, path: str, **options: Any) -> Any:
        """Tries again, ever more slowly, while the server is away; gives up after `patience` seconds."""
        deadline = time.monotonic() + self._patience
        delay = 0.1
        while True:
            try:
                answer = self._client.request(method, path, **options)
                problem = f"{answer.status_code}"
            except httpx.TransportError as error:
                answer, problem = None, f"{type(error).__name__}: {error}"
            if answer is not None and answer.status_code < 500:
                return self._read(answer, path)
            if time.monotonic() + delay > deadline:
                raise RolecastError(
                    f"the coordinator at {self._client.base_url} does not answer {path} ({problem}); is its learner running?"
                )
            self._sleep(delay)
            delay = min(2 * delay, 5.0)

    def _read(self, answer: httpx.Response, path: str) -> Any:
        if answer.status_code == 409:
            raise Refused(answer.json()["detail"])
        if answer.status_code == 410:
            raise Stopped(answer.json()["detail"])
        if answer.is_error:
            raise RolecastError(f"the coordinator refused {path} with {answer.status_code}: {answer.text[:300]}")
        return answer.json()


class HttpCoordinator:
    """What `rollout.worker` needs of a coordinator. `patience`: seconds to wait for one that is away."""

    def __init__(self, url: str, patience: float = 300.0, sleep: Callable[[float], None] = time.sleep) -> None:
        self._http = _Http(url, {}, patience, sleep)

    def run_info(self) -> wire.RunInfo:
        return wire.RunInfo.model_validate(self._http.get("/v1/run"))

    def lease(self, worker: str, handshake: Handshake, capacity: int) -> list[Lease]:
        offer = wire.Offer(worker=worker, handshake=handshake, capacity=capacity)
        return wire.Leases.model_validate(self._http.post("/v1/lease", offer)).leases

    def extend(self, lease_ids: Sequence[str]) -> list[str]:
        return wire.Heartbeat.model_validate(self._http.post("/v1/heartbeat", wire.Heartbeat(leases=list(lease_ids)))).leases

    def complete(self, lease_id: str, attempt: int, trajectories: Sequence[Trajectory]) -> bool:
        answer = self._http.post("/v1/groups", wire.pack(trajectories), {"lease": lease_id, "attempt": attempt})
        return wire.Accepted.model_validate(answer).accepted

    def fail(self, lease_id: str, reason: str, version: str | None = None) -> None:
        self._http.post("/v1/failure", wire.Failure(lease=lease_id, reason=reason[:500], version=version))


class HttpControl:
    """What the learner needs of its coordinator, which is a child process of it."""

    def __init__(self, url: str, token: str, patience: float = 60.0, sleep: Callable[[float], None] = time.sleep) -> None:
        self._http = _Http(url, {"Authorization": f"Bearer {token}"}, patience, sleep)
        self.counts: Mapping[str, int] = {}

    def wait_until_ready(self, check: Callable[[], None], seconds: float = 30.0) -> None:
        """`check` raises when there is nothing left to wait for."""
        deadline = time.monotonic() + seconds
        while not self._http.answers():
            check()
            if time.monotonic() > deadline:
                raise RolecastError(f"the coordinator does not answer after {seconds:.0f} s; is its port taken?")
            time.sleep(0.1)

    def publish(self, version: TeamVersion) -> None:
        self._http.post("/v1/control/version", wire.Published(version=version))

    def add(self, groups: Sequence[Group]) -> None:
        self._http.post("/v1/control/groups", wire.Work(groups=list(groups)))

    def collected(self, received: Sequence[str] = ()) -> tuple[dict[str, list[Trajectory]], dict[str, str]]:
        answer = self._http.post("/v1/control/collected", wire.Received(groups=list(received), wait=10.0))
        found = wire.Collected.model_validate(answer)
        self.counts = found.counts
        done: dict[str, list[Trajectory]] = {}
        for trajectory in wire.unpack(found.done):
            done.setdefault(trajectory.group, []).append(trajectory)
        return done, found.abandoned
