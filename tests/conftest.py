"""Fixtures of more than one folder."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

from tests.weed import S3Server, weed_running

# Who starts the tests in the background of a shell has Ctrl-C ignored, and with nohup SIGHUP; so would every command that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def no_handlers_left() -> Iterator[None]:
    """A command that a test runs in this process logs to the stderr of then, which is closed when others log."""
    root = logging.getLogger()
    before, level = set(root.handlers), root.level
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - before:
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server for the session; each test takes a bucket of its own (`weed.make_bucket`)."""
    with weed_running(tmp_path_factory.mktemp("weed")) as server:
        yield server
