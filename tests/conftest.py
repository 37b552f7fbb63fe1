"""Fixtures of more than one folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.weed import S3Server, weed_running


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server for the session; each test takes a bucket of its own (`weed.make_bucket`)."""
    with weed_running(tmp_path_factory.mktemp("weed")) as server:
        yield server
