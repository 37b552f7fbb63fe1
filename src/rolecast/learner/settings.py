"""What a run's config says of the learner. Apart from what it configures, so that reading a config needs no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from rolecast.reading import CLOSED

Beta = Annotated[float, Field(ge=0, lt=1)]
# How a micro-batch holds its rows: padded to the longest; one behind the other; and what rows begin with alike once.
Packing = Literal["off", "rows", "prefixes"]


class OptimizerConfig(BaseModel):
    """How a slot's weights are updated."""

    model_config = CLOSED

    name: Literal["adamw", "muon", "sgd"] = "adamw"  # muon: matrices of hidden layers with Muon and the rest with AdamW
    momentum: float = Field(0.9, ge=0, lt=1)  # of Muon and SGD
    rest: float = Field(0.5, gt=0)  # with muon, AdamW's rate as a multiple of the peak rate
    betas: tuple[Beta, Beta] = (0.9, 0.95)  # of AdamW
    weight_decay: float = Field(0.0, ge=0, le=10)  # decoupled
    max_grad_norm: float = Field(1.0, gt=0)  # gradients are clipped to this norm
    schedule: Literal["constant", "cosine", "linear"] = "constant"  # of the learning rate after its warm-up
    warmup: int = Field(0, ge=0)  # steps of linear growth
    decay_from: float = Field(0.0, ge=0, le=1)  # share of the steps after which the decay begins
    floor: float = Field(0.0, ge=0, le=1)  # the last step's share of the peak rate


class BackendConfig(BaseModel):
    """How training is spread over ranks."""

    model_config = CLOSED

    name: Literal["plain", "deepspeed"] = "plain"  # plain sums gradients over ranks; deepspeed shards over them
    zero: int = Field(2, ge=0, le=3)  # what deepspeed shards: optimizer states (1), gradients too (2), parameters too (3)
    offload: bool = False  # optimizer states in the host's memory
    compile: bool = False  # models run through torch.compile; for GPUs, with packing, and not with ZeRO-3
    recompute: bool = False  # layers keep their inputs alone, and are computed again in the backward pass


PLAIN = BackendConfig()
