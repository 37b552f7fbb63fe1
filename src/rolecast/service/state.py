"""What a service process knows of itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import Scope

from rolecast.service.errors import ShapeOf, always_ours
from rolecast.service.settings import ServiceSettings
from rolecast.service.tokens import Tokens

log = logging.getLogger(__name__)


class Service:
    """State and metrics of one service process. It answers while `status` is ready; probes and metrics answer always.

    `shape_of`: in which shape the clients of a path read errors. `tokens`: without them everybody may ask. `follows_callers`: what a
    request started is cancelled when its caller leaves.
    """

    def __init__(
        self, name: str, max_body_bytes: int = 8 * 2**20, *, tokens: Tokens | None = None, shape_of: ShapeOf = always_ours,
        follows_callers: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.max_body_bytes = max_body_bytes
        self.tokens, self.shape_of, self.follows_callers = tokens, shape_of, follows_callers
        self.pages: frozenset[str] = frozenset()  # paths that are answered always, and hold nothing but what everybody may see
        self.unlocked: Callable[[Scope], bool] = lambda scope: False  # requests that need no token, since their route checks them
        self.metrics_port: int | None = None  # where metrics and the schema are, if not among the other routes
        self.status: Literal["starting", "ready", "draining"] = "starting"
        self.failure: BaseException | None = None  # why it could not start: the server stops and raises it
        self.told: dict[str, str] = {}  # what /readyz says beside the status
        self.in_flight = 0
        self.draining_since = 0.0
        self.registry = CollectorRegistry()
        self.requests = Counter("rolecast_http_requests", "Requests by route and status.", ["route", "status"], registry=self.registry)
        self.seconds = Histogram("rolecast_http_request_seconds", "Seconds to answer.", ["route"], registry=self.registry)
        Gauge("rolecast_http_in_flight", "Requests being answered.", registry=self.registry).set_function(lambda: self.in_flight)
        Gauge("rolecast_ready", "1 while requests are taken.", registry=self.registry).set_function(lambda: self.status == "ready")

    @classmethod
    def of(cls, name: str, settings: ServiceSettings, *, shape_of: ShapeOf = always_ours, follows_callers: bool = False) -> Self:
        """`InputError` if there should be tokens and are none."""
        tokens = Tokens(Path(settings.tokens_file)) if settings.tokens_file else None
        return cls(name, settings.max_body_bytes, tokens=tokens, shape_of=shape_of, follows_callers=follows_callers)

    def drain(self) -> None:
        """Takes no further request; those in flight are finished."""
        if self.status != "draining":
            log.info("draining: %d requests in flight", self.in_flight)
            self.status, self.draining_since = "draining", time.monotonic()
