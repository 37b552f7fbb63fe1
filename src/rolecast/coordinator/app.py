"""The coordinator over HTTP: `/v1/*` for workers, `/v1/control/*` for the learner that owns the run.

It is a child process of the learner's rank 0 and imports no torch, so that it answers while the trainer computes.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from rolecast.coordinator.leases import Coordinator, Refused, Stopped
from rolecast.wire import coordinator as wire

LONGEST_WAIT = 20.0  # seconds that the learner's long poll may hang
_TICK = 0.05


def make_app(coordinator: Coordinator, config: str, stage: str, store: str, token: str) -> FastAPI:
    """`config`: the run's config as JSON, `stage`: which one samples, `store`: where versions are. `token`: what the learner authenticates with."""
    app = FastAPI(title=f"Rolecast coordinator of {coordinator.run}", docs_url=None, redoc_url=None)
    registry = _metrics(coordinator)

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 409)

    @app.exception_handler(Stopped)
    async def stopped(_: Request, error: Stopped) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 410)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/run")
    async def run() -> wire.RunInfo:
        return wire.RunInfo(
            run=coordinator.run, attempt=coordinator.attempt, config=config, stage=stage, store=store, version=coordinator.version
        )

    @app.post("/v1/lease")
    async def lease(offer: wire.Offer) -> wire.Leases:
        return wire.Leases(leases=coordinator.lease(offer.worker, offer.handshake, offer.capacity))

    @app.post("/v1/heartbeat")
    async def heartbeat(beat: wire.Heartbeat) -> wire.Heartbeat:
        return wire.Heartbeat(leases=coordinator.extend(beat.leases))

    @app.post("/v1/groups")
    async def groups(request: Request, lease: str, attempt: int) -> wire.Accepted:
        try:
            trajectories = wire.unpack(await request.body())
        except ValueError as error:
            raise HTTPException(422, f"lease {lease}: no list of trajectories: {str(error)[:300]}") from None
        return wire.Accepted(accepted=coordinator.complete(lease, attempt, trajectories))

    @app.post("/v1/failure")
    async def failure(told: wire.Failure) -> dict[str, str]:
        coordinator.fail(told.lease, told.reason, told.version)
        return {"status": "ok"}

    def learner(authorization: Annotated[str, Header()] = "") -> None:
        if not secrets.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "the control interface is the learner's")

    control = [Depends(learner)]

    @app.get("/v1/control/ready", dependencies=control)
    async def ready() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/control/version", dependencies=control)
    async def version(published: wire.Published) -> dict[str, str]:
        coordinator.publish(published.version)
        return {"status": "ok"}

    @app.post("/v1/control/groups", dependencies=control)
    async def work(added: wire.Work) -> dict[str, str]:
        coordinator.add(added.groups)
        return {"status": "ok"}

    @app.post("/v1/control/collected", dependencies=control)
    async def collected(received: wire.Received) -> wire.Collected:
        done, abandoned = coordinator.collected(received.groups)
        for _ in range(int(min(received.wait, LONGEST_WAIT) / _TICK)):
            if done or abandoned:
                break
            await asyncio.sleep(_TICK)
            done, abandoned = coordinator.collected()
        packed = base64.b64encode(wire.pack([t for group in done.values() for t in group]))
        return wire.Collected(done=packed, abandoned=abandoned, counts=dict(coordinator.counts))

    return app


def _metrics(coordinator: Coordinator) -> CollectorRegistry:
    """What a coordinator knows, read when it is asked for."""
    registry = CollectorRegistry()
    gauges: dict[str, tuple[str, Callable[[], float]]] = {
        "groups_waiting": ("Groups that no worker holds.", lambda: coordinator.waiting),
        "leases_held": ("Leases that have not ended.", lambda: coordinator.held),
        "workers": ("Workers heard of lately.", lambda: len(coordinator.workers(2 * coordinator.lease_seconds))),
        **{
            f"{name}_total": (f"Groups or leases {name} in this attempt.", partial(coordinator.counts.__getitem__, name))
            for name in ("leased", "accepted", "expired", "duplicates", "fenced", "abandoned")
        },
    }
    for name, (text, read) in gauges.items():
        Gauge(f"rolecast_coordinator_{name}", text, registry=registry).set_function(read)
    return registry
