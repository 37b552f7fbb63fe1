"""Who is let in, decided before a byte of a request's body is read.

Probes, metrics and a run's name and attempt are open. The learner shows the token that it started the coordinator with; a
worker shows the token of `coordinator.tokens` and, once it has joined, the badge that it was given.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from itertools import count

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from rolecast.coordinator.tokens import same
from rolecast.leasing import Refused
from rolecast.wire.coordinator import Badge

OPEN = frozenset({"/healthz", "/metrics"})
RUN = "/v1/run"  # open too, but says less
CONTROL = "/v1/control/"


@dataclass(slots=True)
class Door:
    """ASGI middleware. `learner`, `worker`: the tokens that are right."""

    app: ASGIApp
    learner: str
    worker: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (fault := self._fault(scope["path"], Headers(scope=scope))):
            await JSONResponse({"detail": fault}, 401, headers={"WWW-Authenticate": "Bearer", "Connection": "close"})(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _fault(self, path: str, headers: Headers) -> str:
        shown = headers.get("authorization", "")
        if path in OPEN or (path == RUN and not shown):
            return ""
        if path.startswith(CONTROL):
            return "" if same(shown, f"Bearer {self.learner}") else "the control interface is the learner's"
        if same(shown, f"Bearer {self.worker}"):
            return ""
        return "this is no token of this attempt's workers; give worker and learner the same ROLECAST_RELEASE_KEY, and ask anew what the attempt is"


@dataclass(slots=True)
class Badges:
    """Names for workers, each with a proof that only this coordinator can make, so that nobody speaks for another."""

    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def give(self, name: str) -> Badge:
        worker = f"{name[:180]}.{next(self._numbers)}"
        return Badge(worker=worker, proof=self._proof(worker))

    def worker(self, badge: Badge) -> str:
        if not same(badge.proof, self._proof(badge.worker)):
            raise Refused(f"{badge.worker} is no name that this coordinator gave; join it first")
        return badge.worker

    def _proof(self, worker: str) -> str:
        return hmac.new(self._key, worker.encode(), hashlib.sha256).hexdigest()
