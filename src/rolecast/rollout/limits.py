"""What an episode may take, and what happens to a call that takes longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from rolecast.errors import StuckError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """None bounds nothing.

    `search`, `judge`: seconds of one call to the retriever or the judge, with the time that it waits for its turn. `tokens`: what all roles of
    an episode may sample together, probes excepted.
    """

    search: float | None = None
    judge: float | None = None
    tokens: int | None = None


async def within(seconds: float | None, call: Awaitable[T], asked: str, setting: str) -> T:
    """The call's result. `StuckError` if it takes longer: it is cancelled then, and who awaits it goes on without it.

    `asked`: who was asked for what; `setting`: what bounds it. A call that blocks its event loop cannot be cut short.
    """
    if seconds is None:
        return await call
    try:
        async with asyncio.timeout(seconds) as limit:
            return await call
    except TimeoutError:
        if not limit.expired():  # the call's own
            raise
        raise StuckError(f"{asked} within {seconds:g} s; see whether it hangs, or raise {setting}") from None
