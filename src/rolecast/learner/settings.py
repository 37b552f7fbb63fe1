"""What a run's config says of the learner. Apart from what it configures, so that reading a config needs no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class OptimizerConfig(BaseModel):
    """`muon` trains matrices of hidden layers with Muon and the rest with AdamW, at `rest` times the rate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["adamw", "muon", "sgd"] = "adamw"
    momentum: float = Field(0.9, ge=0, lt=1)  # of Muon and SGD
    rest: float = Field(0.5, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup: int = Field(0, ge=0)  # steps
    decay_from: float = Field(0.0, ge=0, le=1)  # share of the steps after which the decay begins
    floor: float = Field(0.0, ge=0, le=1)  # the last step's share of the peak rate


class BackendConfig(BaseModel):
    """`plain` sums gradients over ranks; `deepspeed` shards optimizer states (1), gradients (2) and parameters (3) over them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["plain", "deepspeed"] = "plain"
    zero: int = Field(2, ge=0, le=3)
    offload: bool = False  # optimizer states in the host's memory


PLAIN = BackendConfig()
