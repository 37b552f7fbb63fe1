"""How long to wait between tries of something that may pass: for every client of ours, synchronous or not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds between tries, doubling


@dataclass(slots=True)
class Tries:
    """The tries of one request, for at most `patience` seconds since it `begun`. After each that failed, `pause` says how long to sleep."""

    patience: float
    clock: Callable[[], float] = time.monotonic
    begun: float | None = None  # by default now
    count: int = 1
    _wait: float = FIRST_WAIT
    _deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self._deadline = (self.clock() if self.begun is None else self.begun) + self.patience

    def pause(self, asked: float = 0.0) -> float | None:
        """Seconds until the next try, at least those `asked` for; None once patience would be over by then."""
        wait, left = max(self._wait, asked), self._deadline - self.clock()
        if wait > left:
            return None
        self.count += 1
        self._wait = min(2 * wait, LONGEST_WAIT)
        return min(wait * random.uniform(1.0, 1.5), left)  # so that clients do not return all at once
