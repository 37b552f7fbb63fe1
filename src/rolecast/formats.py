"""The formats of what outlives a release, and who reads them.

Each kind of thing carries a number under `format`; what has none was written before it was numbered, in the first format that is read.
A release that changes a format raises its number here, moves the one before to `older` unless it still reads it, and writes beside it
`since`, its own name: so every release that came before, from this one on, can name the first one that reads it.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolecast.errors import InputError

KEY, SINCE = "format", "since"


class FormatError(InputError):
    """Something was written in a format that this release does not read. It is sound: nobody may pass it over or delete it."""


@dataclass(frozen=True, slots=True)
class Format:
    """`unnumbered`: of what carries no number. `older`: formats that are no longer read, each with who did."""

    what: str
    current: int
    unnumbered: int = 1
    older: Mapping[int, str] = field(default_factory=dict)

    def check(self, data: Mapping[str, Any], origin: str) -> None:
        """Raises FormatError unless `data` is in a format that is read."""
        found, since = data.get(KEY, self.unnumbered), data.get(SINCE)
        number = found if type(found) is int else None
        if number is not None and self._reads(number):
            return
        if number is not None and number in self.older:
            reader = f"rolecast {self.older[number]} reads"
        else:
            by = f"rolecast {since} or a later one" if isinstance(since, str) and since else "the release that wrote it"
            reader = f"{by} reads, and not this one ({release()}, up to {self.current})"
        raise FormatError(f"{origin} was written by another version of rolecast: it is {self.what} of format {found!r}, which {reader}")

    def _reads(self, found: int) -> bool:
        return self.unnumbered <= found <= self.current and found not in self.older


def release() -> str:
    try:
        return importlib.metadata.version("rolecast")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


# Stages by name and slots in `slots/` came with 2.
RUN = Format("a run", current=2, older={1: "before 0.1"})
MANIFEST = Format("an artifact", current=1)
CHECKPOINT = Format("a checkpoint", current=1)
