"""The ids of answers and of their traces: they begin with the time of the answer, and nobody guesses the rest."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime

_ID = re.compile(r"ask-(\d{8}T\d{6})-[0-9a-f]{16}", re.ASCII)
_TIME = "%Y%m%dT%H%M%S"


def new_id() -> str:
    """In the order of time, by seconds."""
    return f"ask-{datetime.now(UTC):{_TIME}}-{secrets.token_hex(8)}"


def born(trace_id: str) -> float | None:
    """When it was made, in seconds since 1970; None for what is no id of ours."""
    found = _ID.fullmatch(trace_id)
    try:
        return datetime.strptime(found[1], _TIME).replace(tzinfo=UTC).timestamp() if found else None
    except ValueError:  # digits that are no time
        return None


def day(trace_id: str) -> str:
    """The day of an id of ours, as eight digits."""
    return trace_id.split("-")[1][:8]
