"""The coordinator from the other side of HTTP: as a worker sees it, and as the learner does.

Every call may be made again: leases, submissions and acknowledgements are idempotent, so a lost answer is asked for anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from rolecast.coordinator.tokens import worker_token
from rolecast.errors import RolecastError
from rolecast.leasing import Blame, Group, Handshake, Lease, Malformed, Refused, Stopped, TeamVersion, Ticket
from rolecast.retries import Tries
from rolecast.types import Trajectory
from rolecast.wire import coordinator as wire

M = TypeVar("M", bound=BaseModel)
READ_SECONDS = 60.0  # for one answer, which may be long in coming
_ERRORS = {400: Malformed, 401: Refused, 409: Refused, 410: Stopped, 413: Malformed}


def _nothing() -> None: ...


class _Http:
    """`check`, asked after every try that failed, raises when there is nothing left to wait for."""

    def __init__(
        self, url: str, patience: float, sleep: Callable[[float], None], check: Callable[[], None] = _nothing, seconds: float = READ_SECONDS
    ) -> None:
        # A transport of its own takes no proxy from the environment: the coordinator is in this cluster.
        self._client = httpx.Client(base_url=url, timeout=httpx.Timeout(seconds, connect=5.0), transport=httpx.HTTPTransport())
        self._patience, self._sleep, self._check = patience, sleep, check

    def show(self, token: str | None) -> None:
        """From now on calls carry the token."""
        self._client.headers.pop("Authorization", None)
        if token is not None:
            self._client.headers["Authorization"] = f"Bearer {token}"

    def post(
        self, path: str, body: BaseModel | bytes, params: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        content = body if isinstance(body, bytes) else body.model_dump_json().encode()
        kind = "application/gzip" if isinstance(body, bytes) else "application/json"
        return self._call("POST", path, content=content, headers={"Content-Type": kind, **(headers or {})}, params=params)

    def answers(self) -> bool:
        """Whether it is there and takes us for its learner: what else listens on the port is not it."""
        try:
            return self._client.get("/v1/control/ready").is_success
        except httpx.TransportError:
            return False

    def get(self, path: str, model: type[M]) -> M:
        answer = self._call("GET", path)
        try:
            return model.model_validate(answer)
        except ValidationError:
            raise Refused(f"the coordinator at {self._client.base_url} answers {path} as another release does; deploy the same") from None

    def close(self) -> None:
        self._client.close()

    def _call(self, method: str, path: str, **options: Any) -> Any:
        """Tries again, ever more slowly, while the server is away; gives up after `patience` seconds."""
        tries = Tries(self._patience)
        while True:
            try:
                answer = self._client.request(method, path, **options)
                problem = f"{answer.status_code}"
            except httpx.TransportError as error:
                answer, problem = None, f"{type(error).__name__}: {error}"
            if answer is not None and answer.status_code < 500:
                return self._read(answer, path)
            self._check()
            pause = tries.pause()
            if pause is None:
                raise RolecastError(
                    f"the coordinator at {self._client.base_url} does not answer {path} ({problem}); is its learner running?"
                )
            self._sleep(pause)

    def _read(self, answer: httpx.Response, path: str) -> Any:
        if answer.is_success:
            return answer.json()
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = answer.text[:300]
        said = f"the coordinator at {self._client.base_url} refused {path} with {answer.status_code}: {detail}"
        raise _ERRORS.get(answer.status_code, RolecastError)(said)


class HttpCoordinator:
    """What `rollout.worker` needs of a coordinator. `key`: the release's. `patience`: seconds to wait for one that is away, `seconds`:
    for an answer of one that is not."""

    def __init__(
        self, url: str, key: str, patience: float = 300.0, sleep: Callable[[float], None] = time.sleep, seconds: float = READ_SECONDS
    ) -> None:
        self._http = _Http(url, patience, sleep, seconds=seconds)
        self._key = key
        self._attempt: wire.Attempt | None = None
        self._badges: dict[str, wire.Badge] = {}

    def run_info(self) -> wire.RunInfo:
        """What the run is now. It comes first: leases are of the attempt that it found."""
        self._meet()
        return self._http.get("/v1/run", wire.RunInfo)

    def load(self) -> wire.Load:
        """How many work for it, and how much it has to do."""
        self._meet()
        return self._http.get("/v1/load", wire.Load)

    def _meet(self) -> None:
        self._http.show(None)
        found = self._http.get("/v1/run", wire.Attempt)
        if found != self._attempt:
            self._attempt = found
            self._badges.clear()
        self._http.show(worker_token(self._key, found.run, found.attempt, found.session))

    def join(self, worker: str) -> wire.Badge:
        """Under a name that the coordinator gives, once for each attempt: a worker that comes back is known again."""
        if worker not in self._badges:
            self._badges[worker] = wire.Badge.model_validate(self._http.post("/v1/join", wire.Join(name=worker)))
        return self._badges[worker]

    def leave(self, worker: str) -> None:
        if worker in self._badges:
            self._http.post("/v1/leave", self._badges[worker])

    def close(self) -> None:
        self._http.close()

    def lease(self, worker: str, handshake: Handshake, capacity: int) -> list[Lease]:
        offer = wire.Offer(badge=self.join(worker), handshake=handshake, capacity=capacity)
        return wire.Leases.model_validate(self._http.post("/v1/lease", offer)).leases

    def extend(self, tickets: Sequence[Ticket]) -> list[str]:
        beat = wire.Heartbeat(leases=[_ticket(ticket) for ticket in tickets])
        return wire.Held.model_validate(self._http.post("/v1/heartbeat", beat)).leases

    def complete(self, ticket: Ticket, trajectories: Sequence[Trajectory]) -> bool:
        named = {"lease": ticket.id, "attempt": ticket.attempt}
        answer = self._http.post("/v1/groups", wire.pack(trajectories), named, {wire.SECRET: ticket.secret})
        return wire.Accepted.model_validate(answer).accepted

    def dropped(self, tickets: Sequence[Ticket]) -> list[str]:
        held = wire.Heartbeat(leases=[_ticket(ticket) for ticket in tickets])
        return wire.Dropped.model_validate(self._http.post("/v1/dropped", held)).leases

    def spend(self, ticket: Ticket, trajectories: Sequence[Trajectory]) -> None:
        named = {"lease": ticket.id, "attempt": ticket.attempt}
        self._http.post("/v1/spent", wire.pack(trajectories), named, {wire.SECRET: ticket.secret})

    def fail(self, ticket: Ticket, reason: str, blame: Blame = "group") -> None:
        self._http.post("/v1/failure", wire.Failure(lease=_ticket(ticket), reason=reason[:500], blame=blame))


def _ticket(ticket: Ticket) -> Ticket:
    """Without the rest of a lease: its group need not travel."""
    return Ticket(ticket.id, ticket.attempt, ticket.secret)


class HttpControl:
    """What the learner needs of its coordinator, which is a child process of it. `check` raises once that has ended."""

    def __init__(
        self,
        url: str,
        token: str,
        patience: float = 60.0,
        sleep: Callable[[float], None] = time.sleep,
        check: Callable[[], None] = _nothing,
    ) -> None:
        self._http = _Http(url, patience, sleep, check)
        self._http.show(token)
        self._check = check
        self.counts: Mapping[str, int] = {}

    def wait_until_ready(self, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not self._http.answers():
            self._check()
            if time.monotonic() > deadline:
                raise RolecastError(f"the coordinator does not answer after {seconds:.0f} s; is its port taken?")
            time.sleep(0.1)

    def publish(self, version: TeamVersion) -> None:
        self._http.post("/v1/control/version", wire.Published(version=version))

    def add(self, groups: Sequence[Group]) -> None:
        self._http.post("/v1/control/groups", wire.Work(groups=list(groups)))

    def collected(self, received: Sequence[str] = ()) -> tuple[dict[str, list[Trajectory]], dict[str, str]]:
        """Waits for something to tell."""
        found = wire.Collected.model_validate(self._http.post("/v1/control/collected", wire.Received(groups=list(received))))
        self.counts = found.counts
        done: dict[str, list[Trajectory]] = {}
        for trajectory in wire.unpack(found.done):
            done.setdefault(trajectory.group, []).append(trajectory)
        return done, found.abandoned

    def cancel(self, ids: Sequence[str]) -> None:
        self._http.post("/v1/control/cancelled", wire.Received(groups=list(ids)))

    def spent(self, received: Sequence[str] = ()) -> tuple[dict[str, list[Trajectory]], int]:
        found = wire.Spent.model_validate(self._http.post("/v1/control/spent", wire.Received(groups=list(received))))
        rest = iter(wire.unpack(found.done))
        return {name: list(islice(rest, count)) for name, count in found.parts.items()}, found.untold

    def acknowledge(self, received: Sequence[str]) -> None:
        answer = self._http.post("/v1/control/acknowledged", wire.Received(groups=list(received)))
        self.counts = wire.Counted.model_validate(answer).counts
