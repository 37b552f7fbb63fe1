"""Runs a service under uvicorn until SIGTERM or SIGINT, then drains: /readyz turns 503, requests in flight finish, exit 0."""

from __future__ import annotations

import errno
import logging
import socket
import time
from contextlib import ExitStack
from types import FrameType

import uvicorn
from fastapi import FastAPI

from rolecast.errors import InputError
from rolecast.service import tracing
from rolecast.service.logs import configure_logging
from rolecast.service.settings import ServiceSettings
from rolecast.service.state import Service

log = logging.getLogger(__name__)
ANY = "::"
NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


class Server(uvicorn.Server):
    """uvicorn closes its port at once on a signal and then raises it again; here the port stays open while requests are in flight."""

    def __init__(self, app: FastAPI, service: Service, drain_seconds: float) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="on", server_header=False, timeout_keep_alive=30,
                timeout_graceful_shutdown=max(1, round(drain_seconds)),
            )
        )  # fmt: skip
        self._service, self._drain_seconds = service, drain_seconds

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._service.status == "draining":  # asked twice
            super().handle_exit(sig, frame)
        self._service.drain()

    async def on_tick(self, counter: int) -> bool:
        service = self._service
        if service.failure is not None:
            return True
        if service.status == "draining":
            late = time.monotonic() - service.draining_since > self._drain_seconds
            if late or not service.in_flight:
                return True
        return await super().on_tick(counter)


def serve(app: FastAPI, service: Service, settings: ServiceSettings) -> None:
    """Returns after a drained stop; raises what kept the service from starting."""
    configure_logging(settings.log_level)
    tracing.start(f"rolecast-{service.name}")
    with ExitStack() as stack:
        sockets = [stack.enter_context(listening(settings.host, settings.port))]
        if settings.metrics_port is not None:
            sockets.append(stack.enter_context(listening(settings.host, settings.metrics_port, "--metrics-port")))
            service.metrics_port = sockets[1].getsockname()[1]
        if service.pages:
            log.info("ask and watch in a browser at %s", address(settings.host, sockets[0].getsockname()[1]))
        Server(app, service, settings.drain_seconds).run(sockets=sockets)
    if service.failure is not None:
        raise service.failure


def address(host: str, port: int) -> str:
    """Where a browser on this machine finds a service that listens on `host`."""
    shown = "localhost" if host in (ANY, "0.0.0.0") else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/"


def listening(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A socket bound to the address; port 0 takes a free one. "::" takes IPv4 too, and is only that where there is no IPv6."""
    try:
        if host == ANY:
            try:
                return socket.create_server((host, port), family=socket.AF_INET6, backlog=2048, dualstack_ipv6=True)
            except (OSError, ValueError) as error:  # ValueError: this platform has no such sockets
                if isinstance(error, OSError) and error.errno not in NO_IPV6:
                    raise
                host = "0.0.0.0"
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048)
    except OSError as error:
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise InputError(f"cannot listen on {place} ({error.strerror or error}); choose another --host or {flag}") from None
