"""The engine that a run's config names."""

from __future__ import annotations

from rolecast.config import EngineConfig
from rolecast.rollout.engines.transformers import Models, TransformersEngine
from rolecast.rollout.render import Renderer


def make_engine(
    config: EngineConfig, models: Models, renderer: Renderer, max_context: int, version: str = "", lockstep: bool = False
) -> TransformersEngine:
    """`models`: a model for each slot, or what gives it for one forward pass."""
    makers = {"transformers": TransformersEngine}
    return makers[config.name](models, renderer, config.max_batch, max_context, version, lockstep)
