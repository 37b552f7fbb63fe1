"""Debian's Chromium, for pages that are looked at in a browser: its tests are slow, and skipped where it is not installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

CHROMIUM = shutil.which("chromium") or ""
SHOTS = os.environ.get("ROLECAST_SHOTS")  # a folder for pictures, to look at
needs_chromium = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH (apt-get install chromium)")]


def launched() -> Iterator[Browser]:
    """What a module's fixture yields from."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()
