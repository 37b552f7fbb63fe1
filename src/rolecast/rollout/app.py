"""`rolecast rollout serve`: a worker that leases groups from a coordinator, with the probes and metrics of every service."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from prometheus_client import Counter

from rolecast.coordinator.client import HttpCoordinator
from rolecast.coordinator.tokens import release_key
from rolecast.errors import EngineError, InputError, RolecastError
from rolecast.installed import needing
from rolecast.leasing import Refused
from rolecast.rollout.remote import RemoteTeam
from rolecast.rollout.settings import RolloutSettings
from rolecast.rollout.worker import Worker
from rolecast.service.app import make_app
from rolecast.service.state import Service

log = logging.getLogger(__name__)
NAP = 1.0  # seconds between questions to a coordinator that has no work, or is not there yet


def make_rollout(settings: RolloutSettings) -> tuple[FastAPI, Service]:
    service = Service("rollout", settings.max_body_bytes)
    loop = _Loop(settings, service, release_key(os.environ))
    return make_app(service, loop.live), service


class _Loop:
    """The worker's loop, in a thread of its own: playing blocks, and probes must be answered meanwhile."""

    def __init__(self, settings: RolloutSettings, service: Service, key: str) -> None:
        self.settings, self.service, self.key = settings, service, key
        self.over = threading.Event()
        self.said = ""  # the last reason to wait: asked every second, an answer is told once
        self.groups = Counter("rolecast_rollout_groups", "Groups played.", registry=service.registry)

    @asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        thread = threading.Thread(target=self._run, name="rollout", daemon=True)
        thread.start()
        yield
        self.over.set()
        await asyncio.to_thread(thread.join, self.settings.drain_seconds)

    def _run(self) -> None:
        s = self.settings
        name = s.name or f"{os.uname().nodename}-{uuid.uuid4().hex[:6]}"
        work = Path(s.workdir or os.environ.get("ROLECAST_WORKDIR") or tempfile.mkdtemp(prefix="rolecast-rollout-")) / name
        coordinator = HttpCoordinator(s.coordinator_url, self.key, patience=0)
        while not self._stopping():
            try:
                with ExitStack() as stack:
                    worker = self._join(coordinator, name, work, stack)
                    while worker is not None and not self._stopping():
                        if not worker.work():
                            self.over.wait(NAP)
            except (Refused, InputError) as error:  # another run or attempt, or a mismatch: ask anew what the run is
                self._say(logging.ERROR, error)
                self.over.wait(5 * NAP)
            except EngineError as error:  # nothing here mends it: the service says that it is broken, and is started again
                self.service.failure = error
                raise
            except RolecastError as error:  # the coordinator is away: its learner may be between two jobs
                self._say(logging.INFO, error)
                self.over.wait(NAP)
            except Exception as error:
                self.service.failure = error
                raise

    def _join(self, coordinator: HttpCoordinator, name: str, work: Path, stack: ExitStack) -> Worker | None:
        """A worker for the run that the coordinator serves now; None while it has no version yet."""
        info = coordinator.run_info()
        if info.version is None:
            self.over.wait(NAP)
            return None
        with needing("rollout"):
            team = RemoteTeam.of(info, self.settings.retriever_url, self.settings.judge_url, work)
            stack.callback(team.close)
            team.meet()
            team.load(info.version)
        self.said = ""
        log.info("worker %s serves run %s, attempt %d", name, info.run, info.attempt)
        return Worker(name, coordinator, team, self.settings.capacity, stopping=self._stopping, submitted=self.groups.inc)

    def _say(self, level: int, reason: Exception) -> None:
        if str(reason) != self.said:
            self.said = str(reason)
            log.log(level, "%s", reason)

    def _stopping(self) -> bool:
        return self.over.is_set() or self.service.status == "draining"
