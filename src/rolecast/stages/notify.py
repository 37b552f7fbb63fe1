"""Tells an address how a pipeline ended: `{"text", "place", "state"}` as JSON, which chat services' incoming webhooks take as it is."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping

from rolecast.processes import say_error

URL = "ROLECAST_NOTIFY_URL"  # such an address is a credential: it is never shown
TIMEOUT = 10.0  # seconds
LONGEST = 3000  # characters


def notify(place: str, state: str, text: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether it was told. That it could not be is said, and is no fault of the pipeline."""
    url = environ.get(URL, "").strip()
    if not url:
        return False
    if not url.startswith(("http://", "https://")):
        say_error(f"{URL} is no http(s) address; nobody was told how {place} ended")
        return False
    body = json.dumps({"text": text[:LONGEST], "place": place, "state": state}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            return True
    except (OSError, ValueError) as error:
        status = f"HTTP {error.code}" if isinstance(error, urllib.error.HTTPError) else type(error).__name__
        say_error(f"nobody could be told how {place} ended: the address in {URL} gave {status}")
        return False
