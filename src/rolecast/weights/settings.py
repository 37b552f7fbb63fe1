"""What a run's config says of its weights. Apart from what it configures, so that reading a config needs no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from rolecast.reading import CLOSED

CHUNK = 2**25  # logits that are there at once; with what log-probs and their gradient take beside them, some 12 bytes each


class LoraConfig(BaseModel):
    """Train adapters over frozen weights."""

    model_config = CLOSED

    rank: int = Field(16, ge=1)  # of an adapter
    alpha: float = Field(32, gt=0)  # the adapter acts with alpha / rank
    targets: Literal["all-linear"] | list[str] = "all-linear"  # names of the linear layers it acts on, or all of them
