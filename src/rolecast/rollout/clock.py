"""How long an episode took to its answer, and whom it waited for. Beside the trajectory, which is the same whenever it is played again."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

ANSWER: Final = "answer"  # from the episode's start to its answer, without probes and judges
SEARCH: Final = "search"


class Clock:
    """`seconds` by role, of searches, and to the answer. An episode's branches and its probes share it; probes are left out. Seconds of a role
    add up over its replies, those of branches that are played at once too."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._now = now

    @contextmanager
    def on(self, part: str, counts: bool = True) -> Iterator[None]:
        began = self._now()
        try:
            yield
        finally:
            if counts:
                self.seconds[part] += self._now() - began
