"""What the time of playing episodes went to: every moment is divided evenly among what live episodes wait for."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Waits:
    """`seconds` by what was waited for ("sample", "search", "judge"). They add up to the time in which anything was waited for, however
    many episodes waited at once."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._now: Counter[str] = Counter()
        self._clock, self._since = clock, 0.0

    @property
    def searching(self) -> float:
        """What share of it went to searches: how long a rollout waits for its tool."""
        whole = sum(list(self.seconds.values()))  # it may be asked from another thread
        return self.seconds.get("search", 0.0) / whole if whole else 0.0

    @contextmanager
    def on(self, kind: str) -> Iterator[None]:
        self._pass()
        self._now[kind] += 1
        try:
            yield
        finally:
            self._pass()
            self._now[kind] -= 1

    def _pass(self) -> None:
        now, waiting = self._clock(), self._now.total()
        if waiting:
            for kind, count in self._now.items():
                self.seconds[kind] += (now - self._since) * count / waiting
        self._since = now
