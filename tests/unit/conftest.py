"""What all unit tests share: one tokenizer, and property tests that draw the same examples every time."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir

from rolecast.rollout.render import Renderer
from rolecast.world.tokenizer import demo_tokenizer

settings.register_profile("unit", deadline=None, max_examples=60, derandomize=True, database=None)
settings.load_profile("unit")


def pytest_configure(config: pytest.Config) -> None:
    set_hypothesis_home_dir(config.rootpath / ".pytest_cache" / "hypothesis")


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    return Renderer(demo_tokenizer())
