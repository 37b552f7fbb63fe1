"""Who may speak to a coordinator. The release's key stays in the environment; what travels is derived from it for one attempt."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping

from rolecast.errors import InputError

RELEASE_KEY = "ROLECAST_RELEASE_KEY"
_SHORTEST = 16  # characters


def release_key(environ: Mapping[str, str]) -> str:
    """The secret that learners and workers of one release share, without white space around it: files end in a newline.

    `InputError` says how to make one.
    """
    key = environ.get(RELEASE_KEY, "").strip()
    fault = "" if len(key) >= _SHORTEST else f"has fewer than {_SHORTEST} characters" if key else "is not set"
    if any("\ud800" <= character <= "\udfff" for character in key):
        fault = "holds bytes that are no UTF-8"
    if fault:
        raise InputError(
            f"{RELEASE_KEY} {fault}: learner and rollout workers know each other by it; "
            "give both the same secret, for example of `openssl rand -hex 32`"
        )
    return key


def worker_token(key: str, run: str, attempt: int, session: str) -> str:
    """What a worker of one attempt of a run shows: HMAC-SHA256 under the release's key. Runs of one name differ in the `session`."""
    return hmac.new(key.encode(), json.dumps(["worker", run, attempt, session]).encode(), hashlib.sha256).hexdigest()


def same(shown: str, right: str) -> bool:
    """Compared in a time that tells nothing about where they differ."""
    return hmac.compare_digest(shown.encode(), right.encode())
