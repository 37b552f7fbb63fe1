"""SIGTERM and Ctrl-C ask a training stage to end: it saves at the end of the step."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rolecast.errors import Interrupted
from rolecast.learner.ranks import Ranks
from rolecast.signals import Told, handled

SAVING = b"told to end: saving at the end of this step; again to stop now\n"


class Stopping:
    """Whether this process, or any other rank of its job, was told to end."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._told = Told()

    def tell(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        if self._told.first(number) and self._ranks.first:
            os.write(2, SAVING)  # at once: the step may take minutes, and print would not do inside a print

    def asked(self) -> int:
        """The signal, or 0. The same answer on every rank; every rank asks at the same step."""
        return max(self._ranks.gather(self._told.number))

    def leave(self, said: str) -> None:
        """Raises `Interrupted` if this process was told to end. `said`: what is saved."""
        if told := self.asked():
            raise Interrupted(said, told)


@contextmanager
def stopping(ranks: Ranks) -> Iterator[Stopping]:
    """While a stage trains, and while its model is written, the first signal is taken note of and a second one ends it at once."""
    stop = Stopping(ranks)
    with handled(stop.tell):
        yield stop
