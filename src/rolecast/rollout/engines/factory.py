"""The engine that a run's config names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from rolecast.config import RunConfig
from rolecast.externals import ExternalConfig
from rolecast.installed import needing
from rolecast.loops import OwnLoop
from rolecast.rollout.engines.external import ExternalEngine, OwnEngine, Router
from rolecast.rollout.engines.settings import TransformersConfig, VllmConfig
from rolecast.rollout.engines.transformers import Models, TransformersEngine
from rolecast.rollout.render import Renderer
from rolecast.stage_settings import RlConfig
from rolecast.types import external
from rolecast.weights.placed import Placed


class DiskEngine(OwnEngine, Protocol):
    """An engine that reads weights from disk, and verifies what it read."""

    def load(self, placed: Placed) -> None: ...


def model_engine(config: RunConfig, models: Models, renderer: Renderer, version: str = "", lockstep: bool = False) -> OwnEngine:
    """Over models of this process: one for each slot, or what gives it for one forward pass."""
    assert isinstance(config.engine, TransformersConfig), "this engine reads its weights itself"
    return TransformersEngine(models, renderer, config.engine.max_batch, config.model.max_context, version, lockstep)


def disk_engine(config: RunConfig, renderer: Renderer, home: OwnLoop | None = None) -> DiskEngine | None:
    """None where models of this process speak. It plays nothing until it was given weights. `home`: the only loop from which it will be asked, if
    there is one."""
    if isinstance(config.engine, TransformersConfig):
        return None
    with needing("vllm"):
        if isinstance(config.engine, VllmConfig):
            from rolecast.rollout.engines.vllm import VllmEngine

            stale = max((stage.staleness for stage in config.stages.values() if isinstance(stage, RlConfig)), default=0)
            asked = config.engine.model_copy(update={"staleness": max(config.engine.staleness, stale)})
            return VllmEngine(asked, renderer, config.model.max_context, config.model.dtype, versions=1 + stale, home=home)
        from rolecast.rollout.engines.vllm_http import VllmHttpEngine

        return VllmHttpEngine(config.engine, renderer, config.model.dtype)


def routed(own: OwnEngine, renderer: Renderer, externals: Mapping[str, ExternalConfig]) -> OwnEngine:
    """`own`, and the endpoints that roles speak through, by name."""
    if not externals:
        return own
    return Router(own, {external(name): ExternalEngine(name, endpoint, renderer) for name, endpoint in externals.items()})
