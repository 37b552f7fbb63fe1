"""SIGTERM asks a training stage to end: it saves at the next step and says how to go on."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from rolecast.learner.ranks import Ranks


class Stopping:
    """Whether this process, or any other rank of its job, was told to end."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._told = False

    def tell(self, signum: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        self._told = True

    def asked(self) -> bool:
        """The same answer on every rank; every rank asks at the same step."""
        return any(self._ranks.gather(self._told))


@contextlib.contextmanager
def stopping(ranks: Ranks) -> Iterator[Stopping]:
    """While a stage trains, SIGTERM is taken note of. Only a process's main thread may do that; elsewhere nothing changes."""
    stop = Stopping(ranks)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGTERM, stop.tell)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)
