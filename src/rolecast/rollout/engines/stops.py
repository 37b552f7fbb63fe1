"""Where a reply ends, for engines that stop by themselves: with the token that completes a stop string or ends a turn, which stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

WINDOW = 24  # tokens that are decoded to look for a stop string; longer than any of them


def cut(ids: Sequence[int], stops: Sequence[str], ends: frozenset[int], decode: Callable[[Sequence[int]], str]) -> tuple[int, str, bool]:
    """(how many of `ids` are the reply's, their text, whether they end with a stop). An engine may have sampled on."""
    count = next((number for number, id in enumerate(ids, 1) if id in ends), len(ids))
    text = decode(ids[:count])
    if any(stop in text for stop in stops):
        if any(stop in decode(ids[: count - 1]) for stop in stops):
            ended = (n for n in range(1, count) if any(stop in decode(ids[max(0, n - WINDOW) : n]) for stop in stops))
            count = next(ended, count)
            text = decode(ids[:count])
        return count, text, True
    return count, text, count > 0 and ids[count - 1] in ends
