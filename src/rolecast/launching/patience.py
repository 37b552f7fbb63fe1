"""How long the launcher tries again, and how it waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rolecast.launching.api_errors import Blip
from rolecast.launching.failure import LaunchError
from rolecast.launching.spec import Backoff

T = TypeVar("T")
RETRY = Backoff(base=0.5, limit=30.0)
SUBMIT_ATTEMPTS = 8
COURTESY_ATTEMPTS = 6


@dataclass(frozen=True, slots=True)
class Patience:
    """`clock` and `sleep` in seconds; `say` gets a line for people."""

    say: Callable[[str], None]
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def insist(self, call: Callable[[], T]) -> T:
        """For what must be done: a `LaunchError` once the API server has been away for too long."""
        for attempt in range(SUBMIT_ATTEMPTS):
            try:
                return call()
            except Blip as blip:
                if attempt == SUBMIT_ATTEMPTS - 1:
                    raise LaunchError(f"{blip}, {SUBMIT_ATTEMPTS} times; is the API server reachable?") from None
                self.say(f"{blip}; trying again")
                self.sleep(RETRY.delay(attempt))
        raise AssertionError("the last attempt returns or raises")

    def courtesy(self, call: Callable[[], T], attempts: int = COURTESY_ATTEMPTS) -> T | None:
        """For what helps but must not fail the run: None after some attempts."""
        for attempt in range(attempts):
            try:
                return call()
            except Blip:
                self.sleep(RETRY.delay(attempt))
            except LaunchError as error:
                self.say(str(error))
                return None
        return None
