"""What a service logs, as it would stand on its stderr."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rolecast.service.logs import configure_logging


@contextmanager
def logged(level: str) -> Iterator[io.StringIO]:
    """The root logger has its handlers and its level back at the end."""
    root = logging.getLogger()
    handlers, before = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging(level, stream)
    yield stream
    root.handlers, root.level = handlers, before
