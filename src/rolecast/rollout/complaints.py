"""What a worker that waits says of it: each reason at once when it is new, and again after pauses that double."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

FIRST, LONGEST = 60.0, 3600.0  # seconds until the same is said again
MOST = 100  # reasons that are remembered


@dataclass(slots=True)
class Complaints:
    """`clock` in seconds."""

    log: logging.Logger
    clock: Callable[[], float] = time.monotonic
    _said: dict[Hashable, tuple[float, float]] = field(default_factory=dict)  # by topic: when again, and how long that will be

    def say(self, topic: Hashable, level: int, text: str) -> None:
        """`topic`: what makes it the same as before; its wording may vary."""
        again, pause = self._said.get(topic, (0.0, FIRST))
        if topic in self._said and self.clock() < again:
            return
        if len(self._said) >= MOST:
            self._said.clear()
        self._said[topic] = (self.clock() + pause, min(2 * pause, LONGEST))
        self.log.log(level, "%s", text)

    def forget(self) -> None:
        """What is said next is new: the worker had work meanwhile."""
        self._said.clear()
