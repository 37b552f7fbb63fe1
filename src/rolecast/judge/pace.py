"""How fast an endpoint may be asked: requests and tokens a second, spread evenly, so that no burst meets its limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """`requests`, `tokens`: at most so many a second; None is no limit. Turns are taken in the order in which they are asked for.

    A process that was held up sends what it missed at once. What a request will take is not known before it is answered: a turn is given for a guess, and `correct` puts right what follows.
    """

    requests: float | None = None
    tokens: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    _next: float = 0.0  # when the next request may be sent
    _paid: float = 0.0  # when the tokens of those before it are paid off

    async def turn(self, tokens: int) -> float:
        """Waits for a turn of a request of about so many tokens; how long that took, in seconds."""
        now = self.clock()
        at = max(now, self._next, self._paid)
        if self.requests:
            self._next = at + 1 / self.requests
        if self.tokens:
            self._paid = at + tokens / self.tokens
        if at > now:
            await self.sleep(at - now)
        return max(0.0, self.clock() - now)

    def correct(self, guessed: int, took: int) -> None:
        """`took`: what the endpoint says that a request took for which so many were `guessed`."""
        if self.tokens:
            self._paid += (took - guessed) / self.tokens
