"""The coordinator over HTTP: `/v1/*` for workers, `/v1/control/*` for the learner that owns the run.

It is a child process of the learner's rank 0 and imports no torch, so that it answers while the trainer computes.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from pydantic import ValidationError

from rolecast.coordinator.door import Badges, Door
from rolecast.coordinator.leases import Coordinator
from rolecast.leasing import Malformed, Refused, Stopped, Ticket
from rolecast.service.app import add_error_handlers
from rolecast.service.guard import Guard
from rolecast.service.state import Service
from rolecast.types import Trajectory
from rolecast.wire import coordinator as wire

LONG_POLL = 10.0  # seconds that the learner's question may wait for something to tell
MOST_BODY = 32 * 2**20  # bytes of a request: a step's groups with their questions, or one group's trajectories, compressed
_TICK = 0.05


def make_app(coordinator: Coordinator, config: str, stage: str, store: str, learner: str, worker: str) -> FastAPI:
    """`config`: the run's config as JSON, `stage`: which one samples, `store`: where versions are. `learner`, `worker`: the tokens of either."""
    app = FastAPI(title=f"Rolecast coordinator of {coordinator.run}", docs_url=None, redoc_url=None, openapi_url=None)
    service = Service("coordinator", MOST_BODY)
    service.status = "ready"
    _add_gauges(coordinator, service.registry)
    app.add_middleware(Guard, service=service)
    app.add_middleware(Door, learner=learner, worker=worker)  # the last one is the outermost
    add_error_handlers(app)
    for error, status in ((Refused, 409), (Malformed, 400), (Stopped, 410), (wire.TooLarge, 413)):
        app.add_exception_handler(error, partial(_told, status))
    _add_routes_of_workers(app, coordinator, config, stage, store)
    _add_routes_of_the_learner(app, coordinator)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(service.registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def _told(status: int, _: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, status)


def _add_routes_of_workers(app: FastAPI, coordinator: Coordinator, config: str, stage: str, store: str) -> None:
    badges, unpacking = Badges(), asyncio.Lock()

    @app.get("/v1/run")
    async def run(request: Request) -> wire.RunInfo | wire.Attempt:
        """All of it for whom the door knows; it lets nobody in with a wrong token."""
        if not request.headers.get("authorization"):
            return wire.Attempt(run=coordinator.run, attempt=coordinator.attempt, session=coordinator.session)
        return wire.RunInfo(
            run=coordinator.run, attempt=coordinator.attempt, config=config, stage=stage, store=store, version=coordinator.version
        )

    @app.post("/v1/join")
    async def join(asked: wire.Join) -> wire.Badge:
        badge = badges.give(asked.name)
        coordinator.join(badge.worker)
        return badge

    @app.post("/v1/leave")
    async def leave(gone: wire.Badge) -> dict[str, str]:
        coordinator.leave(badges.worker(gone))
        return {"status": "ok"}

    @app.get("/v1/load")
    async def load() -> wire.Load:
        return wire.Load(workers=_lately(coordinator), waiting=coordinator.waiting)

    @app.post("/v1/lease")
    async def lease(offer: wire.Offer) -> wire.Leases:
        return wire.Leases(leases=coordinator.lease(badges.worker(offer.badge), offer.handshake, offer.capacity))

    @app.post("/v1/heartbeat")
    async def heartbeat(beat: wire.Heartbeat) -> wire.Held:
        return wire.Held(leases=coordinator.extend(beat.leases))

    @app.post("/v1/dropped")
    async def dropped(held: wire.Heartbeat) -> wire.Dropped:
        return wire.Dropped(leases=coordinator.dropped(held.leases))

    async def submitted(request: Request, lease: str) -> list[Trajectory]:
        body = await request.body()
        async with unpacking:  # one at a time: unpacked, a body may take a hundred times its size
            return await asyncio.to_thread(_unpack, lease, body)

    @app.post("/v1/groups")
    async def groups(request: Request, lease: str, attempt: int) -> wire.Accepted:
        ticket = Ticket(lease, attempt, request.headers.get(wire.SECRET, ""))
        coordinator.lease_of(ticket)  # before anything is unpacked for it
        return wire.Accepted(accepted=coordinator.complete(ticket, await submitted(request, lease)))

    @app.post("/v1/spent")
    async def spent(request: Request, lease: str, attempt: int) -> dict[str, str]:
        ticket = Ticket(lease, attempt, request.headers.get(wire.SECRET, ""))
        if not coordinator.dropped([ticket]):
            raise Refused(f"lease {lease} is not one that was dropped, or not yours")
        coordinator.spend(ticket, await submitted(request, lease))
        return {"status": "ok"}

    @app.post("/v1/failure")
    async def failure(told: wire.Failure) -> dict[str, str]:
        coordinator.fail(told.lease, told.reason, told.blame)
        return {"status": "ok"}


def _unpack(lease: str, body: bytes) -> list[Trajectory]:
    try:
        return [replace(t, states={}) for t in wire.unpack(body, wire.MOST_INFLATED)]
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise HTTPException(400, f"lease {lease}: no list of trajectories: {f'{where}: ' if where else ''}{first['msg'][:300]}") from None
    except ValueError as error:
        raise HTTPException(400, f"lease {lease}: no list of trajectories: {error}") from None


def _add_routes_of_the_learner(app: FastAPI, coordinator: Coordinator) -> None:
    @app.get("/v1/control/ready")
    async def ready() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/control/version")
    async def version(published: wire.Published) -> dict[str, str]:
        coordinator.publish(published.version)
        return {"status": "ok"}

    @app.post("/v1/control/groups")
    async def work(added: wire.Work) -> dict[str, str]:
        coordinator.add(added.groups)
        return {"status": "ok"}

    @app.post("/v1/control/cancelled")
    async def cancelled(unneeded: wire.Received) -> dict[str, str]:
        coordinator.cancel(unneeded.groups)
        return {"status": "ok"}

    @app.post("/v1/control/spent")
    async def spent(received: wire.Received) -> wire.Spent:
        told, untold = coordinator.spent(received.groups)
        packed = base64.b64encode(wire.pack([t for one in told.values() for t in one]))
        return wire.Spent(done=packed, parts={name: len(one) for name, one in told.items()}, untold=untold)

    @app.post("/v1/control/collected")
    async def collected(received: wire.Received) -> wire.Collected:
        """Waits for something to tell."""
        done, abandoned = coordinator.collected(received.groups)
        for _ in range(int(LONG_POLL / _TICK)):
            if done or abandoned:
                break
            await asyncio.sleep(_TICK)
            done, abandoned = coordinator.collected()
        packed = base64.b64encode(wire.pack([t for group in done.values() for t in group]))
        return wire.Collected(done=packed, abandoned=abandoned, counts=dict(coordinator.counts))

    @app.post("/v1/control/acknowledged")
    async def acknowledged(received: wire.Received) -> wire.Counted:
        coordinator.acknowledge(received.groups)
        return wire.Counted(counts=dict(coordinator.counts))


def _lately(coordinator: Coordinator) -> int:
    return len(coordinator.workers(2 * coordinator.lease_seconds))


def _add_gauges(coordinator: Coordinator, registry: CollectorRegistry) -> None:
    """What a coordinator knows, read when it is asked for."""
    gauges: dict[str, tuple[str, Callable[[], float]]] = {
        "groups_waiting": ("Groups that no worker holds.", lambda: coordinator.waiting),
        "leases_held": ("Leases that have not ended.", lambda: coordinator.held),
        "workers": ("Workers heard of lately.", lambda: _lately(coordinator)),
        **{
            f"{name}_total": (f"Groups or leases {name} in this attempt.", partial(coordinator.counts.__getitem__, name))
            for name in ("leased", "accepted", "expired", "duplicates", "fenced", "abandoned")
        },
    }
    for name, (text, read) in gauges.items():
        Gauge(f"rolecast_coordinator_{name}", text, registry=registry).set_function(read)
