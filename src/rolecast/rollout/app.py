"""`rolecast rollout serve`: a worker that leases groups from open coordinators, with the probes and metrics of every service."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from prometheus_client import Counter, Gauge

from rolecast.coordinator.client import HttpCoordinator
from rolecast.coordinator.tokens import release_key
from rolecast.rollout.loop import Loop
from rolecast.rollout.search import Search
from rolecast.rollout.settings import RolloutSettings
from rolecast.rollout.waits import Waits
from rolecast.service.app import make_app
from rolecast.service.state import Service
from rolecast.store.announcements import Board, Opening
from rolecast.store.uri import open_store

ASKED_SECONDS = 5.0  # for a coordinator to say how it stands


def make_rollout(settings: RolloutSettings) -> tuple[FastAPI, Service]:
    service = Service("rollout", settings.max_body_bytes)
    loop = make_loop(settings, service, release_key(os.environ))

    @asynccontextmanager
    async def live() -> AsyncIterator[None]:
        thread = threading.Thread(target=loop.run, name="rollout", daemon=True)
        thread.start()
        yield
        loop.over.set()
        await asyncio.to_thread(thread.join, settings.drain_seconds)

    return make_app(service, live), service


def make_loop(settings: RolloutSettings, service: Service, key: str) -> Loop:
    """`InputError` where the store of the announcements cannot be spoken to."""
    board = None if settings.coordinator_url else Board(open_store(settings.coordinators, os.environ), key)
    search = Search(
        board.read if board else lambda: [Opening("", "", 0, settings.coordinator_url, 0.0)],
        lambda url: HttpCoordinator(url, key, patience=0, seconds=ASKED_SECONDS),
    )
    groups = Counter("rolecast_rollout_groups", "Groups played.", registry=service.registry)
    Gauge(
        "rolecast_rollout_coordinators", "Coordinators that are announced; -1 where that cannot be read.", registry=service.registry
    ).set_function(lambda: -1 if search.announced is None else len(search.announced))
    waits = Waits()
    spent = Gauge("rolecast_rollout_wait_seconds", "Seconds of playing by what episodes waited for.", ["on"], registry=service.registry)
    for kind in ("sample", "search", "judge"):
        spent.labels(kind).set_function(partial(waits.seconds.__getitem__, kind))
    Gauge("rolecast_rollout_search_share", "Share of playing that went to searches.", registry=service.registry).set_function(
        lambda: waits.searching
    )
    return Loop(
        settings, service, search, lambda url: HttpCoordinator(url, key, patience=0), lambda: board.foreign if board else 0, groups.inc, waits
    )  # fmt: skip
