"""Which coordinator a worker works for.

Several may be open at once, one for each run that has episodes played. A worker goes to the one with the fewest workers, and stays with it
until it ends. It moves on before that in two cases: it had no lease for some time while another has groups that wait, or another has
groups that wait and at least two workers fewer, so that the move makes both more alike. Who does not answer, or refuses, is left alone for
a while that doubles.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rolecast.errors import InputError, RolecastError
from rolecast.leasing import Refused
from rolecast.store.announcements import Opening
from rolecast.wire.coordinator import Load

AWAY = (1.0, 30.0)  # seconds before a coordinator that does not answer is asked again: at first, and at most
REFUSES = (5.0, 300.0)  # one that refuses: that takes another release or key, or a new attempt, which is announced anew


class Asked(Protocol):
    """A coordinator, of which a worker asks no more than how it stands."""

    def load(self) -> Load: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Pause:
    until: float
    seconds: float  # how long the next one is
    reason: RolecastError


@dataclass(slots=True)
class Search:
    """`read`: the open coordinators, of a run the last attempt first. `connect`: a client of the one at an address.

    `best` and `better` are asked by one thread at a time, the rest by any.
    """

    read: Callable[[], list[Opening]]
    connect: Callable[[str], Asked]
    clock: Callable[[], float] = time.monotonic
    announced: list[Opening] | None = None  # when last read; None where that could not be read
    _pauses: dict[Opening, _Pause] = field(default_factory=dict)
    _clients: dict[str, Asked] = field(default_factory=dict)

    def best(self) -> Opening | None:
        """Whom to go to; None while nobody answers who may be asked now."""
        answers = self._ask()
        return min(answers, key=lambda opening: (answers[opening].workers, random.random())) if answers else None

    def better(self, mine: Opening, idle: bool) -> Opening | None:
        """Whom to leave `mine` for, if anybody. `idle`: without a lease for long."""
        answers = self._ask()
        own = answers.pop(mine, None)
        if own is None:  # its run's next attempt has taken its place; whether it has ended otherwise is found out by working for it
            return next((opening for opening in answers if opening.run == mine.run), None)
        others = [opening for opening, load in answers.items() if load.waiting and (idle or load.workers + 1 < own.workers)]
        return min(others, key=lambda opening: (answers[opening].workers, random.random())) if others else None

    def listed(self, opening: Opening) -> bool:
        """Whether it is still announced: at its end a learner takes that back. One that cannot be looked up counts as listed."""
        try:
            return opening in self.read()
        except RolecastError:
            return True

    def put_off(self, opening: Opening, reason: RolecastError) -> None:
        """Leaves it alone for a while, each time for longer."""
        first, most = REFUSES if isinstance(reason, (Refused, InputError)) else AWAY
        before = self._pauses.get(opening)
        seconds = min(max(before.seconds if before else 0.0, first), most)
        self._pauses[opening] = _Pause(self.clock() + seconds * random.uniform(1.0, 1.5), min(2 * seconds, most), reason)

    def worked(self, opening: Opening) -> None:
        """It gave work, so whatever it is put off for next is new."""
        self._pauses.pop(opening, None)

    @property
    def reasons(self) -> dict[Opening, RolecastError]:
        """Why each that is announced and put off is."""
        return {opening: pause.reason for opening, pause in list(self._pauses.items())}

    def _listed(self) -> list[Opening]:
        try:
            found = self.announced = self.read()
        except RolecastError:
            self.announced = None
            raise
        for opening in list(self._pauses):
            if opening not in found:
                self._pauses.pop(opening, None)
        for url in self._clients.keys() - {opening.url for opening in found}:
            self._clients.pop(url).close()
        return found

    def _ask(self) -> dict[Opening, Load]:
        """How those stand who answer: of a run the newest attempt alone, since it took the place of those before."""
        answers: dict[Opening, Load] = {}
        for opening in self._listed():
            paused = self._pauses.get(opening)
            if any(opening.run == other.run for other in answers) or (paused is not None and self.clock() < paused.until):
                continue
            try:
                answers[opening] = self._client(opening.url).load()
            except RolecastError as error:
                self.put_off(opening, error)
        return answers

    def _client(self, url: str) -> Asked:
        if url not in self._clients:
            self._clients[url] = self.connect(url)
        return self._clients[url]
