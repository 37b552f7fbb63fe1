"""What a run's config says of its weights: what it starts from, and adapters over that.

Apart from what it configures, so that reading a config needs no torch.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, model_validator

from rolecast.reading import CLOSED

SMALL = 10**9  # weights of a model from scratch, in its layers: with their optimizer 16 GB
CHUNK = 2**25  # logits that are there at once; with what log-probs and their gradient take beside them, some 12 bytes each
COMPILED_CHUNK = 2**28  # bytes of logits where that is compiled; their gradient takes as many, and little else is there


class LoraConfig(BaseModel):
    """Train adapters over frozen weights."""

    model_config = CLOSED

    rank: int = Field(16, ge=1)  # of an adapter
    alpha: float = Field(32, gt=0)  # the adapter acts with alpha / rank
    targets: Literal["all-linear"] | list[str] = "all-linear"  # names of the linear layers it acts on, or all of them


class ScratchConfig(BaseModel):
    """A small Llama, initialised at random, with the demo world's tokenizer."""

    model_config = CLOSED

    hidden: int = Field(128, ge=8)  # width; a multiple of heads
    layers: int = Field(4, ge=1)  # decoder layers
    heads: int = Field(4, ge=1)  # attention heads
    head_dim: int = Field(64, ge=8, multiple_of=2)  # width of a head; even, since rotary positions turn pairs
    feed_forward: int = Field(384, ge=8)  # width inside the feed-forward blocks

    @model_validator(mode="after")
    def _heads_fit(self) -> ScratchConfig:
        if self.hidden % self.heads:
            raise ValueError(f"hidden {self.hidden} is no multiple of heads {self.heads}")  # transformers refuses it
        weights = self.layers * self.hidden * (4 * self.heads * self.head_dim + 3 * self.feed_forward)
        if weights > SMALL:
            raise ValueError(
                f"its layers would have {weights:.1e} weights, and a model from scratch has at most {SMALL:.0e}; name a larger one by model.path"
            )
        return self


class ModelConfig(BaseModel):
    """What a run starts from. With `lora` a stage trains an adapter for each of its slots, over frozen weights, and ends by merging
    those that its schedule names.
    """

    model_config = CLOSED

    path: str | None = None  # a Hugging Face model directory; without it the model is made from scratch
    scratch: ScratchConfig = ScratchConfig()
    dtype: Literal["float32", "bfloat16"] = "float32"  # of weights and activations
    max_context: int = Field(1024, ge=32)  # tokens of a role's context, its replies included
    lora: LoraConfig | None = None  # null trains all weights
