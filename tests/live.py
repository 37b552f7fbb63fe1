"""A service behind a real uvicorn on a free port, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from rolecast.service.server import Server, listening
from rolecast.service.state import Service


@contextmanager
def serving(app: FastAPI, service: Service, port: int = 0, drain_seconds: float = 5.0) -> Iterator[str]:
    """The address of the service, once it is ready; it is drained and stopped at the end."""
    with listening("127.0.0.1", port) as sock:
        server = Server(app, service, drain_seconds)
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + 30
            while service.status != "ready":
                if service.failure is not None:
                    raise service.failure
                assert time.monotonic() < deadline, f"{service.name} is {service.status} after 30 s"
                time.sleep(0.005)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            service.drain()
            thread.join(30)
            assert not thread.is_alive()
