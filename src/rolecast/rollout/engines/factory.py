"""The engine that a run's config names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rolecast.config import EngineConfig
from rolecast.externals import ExternalConfig
from rolecast.rollout.engines.transformers import Models, TransformersEngine
from rolecast.rollout.render import Renderer
from rolecast.types import external

if TYPE_CHECKING:  # its client is needed by those who have endpoints alone
    from rolecast.rollout.engines.external import Router


def make_engine(
    config: EngineConfig, models: Models, renderer: Renderer, max_context: int, version: str = "", lockstep: bool = False,
    externals: Mapping[str, ExternalConfig] | None = None,
) -> TransformersEngine | Router:  # fmt: skip
    """`models`: a model for each slot, or what gives it for one forward pass. `externals`: the endpoints that roles speak through, by name."""
    makers = {"transformers": TransformersEngine}
    own = makers[config.name](models, renderer, config.max_batch, max_context, version, lockstep)
    if not externals:
        return own
    from rolecast.rollout.engines.external import ExternalEngine, Router

    return Router(own, {external(name): ExternalEngine(name, endpoint, renderer) for name, endpoint in externals.items()})
