from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_api import FakeApi


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    yield server
    server.close()
