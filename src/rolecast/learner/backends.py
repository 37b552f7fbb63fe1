"""What turns losses into updates: plain torch, or DeepSpeed with ZeRO. The learner is the same over both.

A loss of one rank is its share of Σ weight · ℓ over the whole minibatch, so gradients are summed over ranks and micro-batches.
DeepSpeed averages instead; the factor is put back here, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rolecast.errors import InputError
from rolecast.learner.batch import Padded
from rolecast.learner.optimizer import Optimizer
from rolecast.learner.ranks import Ranks
from rolecast.learner.settings import BackendConfig, OptimizerConfig

Weights = dict[str, Tensor]


class Backend(Protocol):
    sharded: bool  # whether saved state is cut for this number of ranks

    def forward(self, rows: Padded) -> Any: ...

    def backward(self, loss: Tensor, last: bool) -> None:
        """Adds this loss's gradients; `last` ends the minibatch."""
        ...

    def step(self, number: int) -> float:
        """The update with this number, counted from 0; returns the gradient's norm before clipping."""
        ...

    def rate(self, number: int) -> float: ...

    def weights(self) -> Weights:
        """The trained weights by name, whole, on every rank: all of the module's, or its adapter's."""
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Puts weights back and forgets the optimizer's moments."""
        ...

    def save(self, folder: Path) -> None:
        """Writes what a resume needs beside the model's weights. Every rank calls it."""
        ...

    def load(self, folder: Path) -> None: ...


class PlainBackend:
    sharded = False

    def __init__(self, module: nn.Module, config: OptimizerConfig, lr: float, updates: int, ranks: Ranks) -> None:
        self.module, self._ranks = module, ranks
        self.optimizer = Optimizer(module, config, lr, updates)

    def forward(self, rows: Padded) -> Any:
        return self.module(rows)

    def backward(self, loss: Tensor, last: bool) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, number: int) -> float:
        self._ranks.sum_gradients(self.optimizer.parameters)
        return self.optimizer.step(number)

    def rate(self, number: int) -> float:
        return self.optimizer.rate(number)

    def weights(self) -> Weights:
        return trained_weights(self.module)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        _load(self.module, weights)
        self.optimizer.reset()

    def save(self, folder: Path) -> None:
        if self._ranks.first:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        self.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu"))


class DeepSpeedBackend:
    """One DeepSpeed engine. The optimizer is torch's, so that the plain backend with the same config is the reference."""

    sharded = True

    def __init__(self, module: nn.Module, backend: BackendConfig, config: OptimizerConfig, lr: float, updates: int, ranks: Ranks) -> None:
        if config.name == "muon":
            raise InputError("optimizer muon needs whole matrices, which ZeRO cuts up; use optimizer.name=adamw or learner.name=plain")
        self.module, self._ranks, self._zero = module, ranks, backend.zero
        try:
            import deepspeed
        except ImportError:
            raise InputError("learner.name=deepspeed needs DeepSpeed; pip install 'rolecast[learner]'") from None
        self._deepspeed = deepspeed
        if not deepspeed.comm.is_initialized():
            deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo", verbose=False)
        self._schedule = Optimizer(module, config, lr, updates)
        [torch_optimizer] = self._schedule.parts
        dtype = next(module.parameters()).dtype
        self._engine, *_ = deepspeed.initialize(
            model=module, optimizer=torch_optimizer, dist_init_required=False,
            config={
                "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": config.max_grad_norm,
                "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "steps_per_print": 10**9,
                "bf16": {"enabled": dtype == torch.bfloat16},
                "zero_optimization": {
                    "stage": backend.zero, **({"offload_optimizer": {"device": "cpu"}} if backend.offload else {}),
                    "stage3_gather_16bit_weights_on_model_save": True,
                },
            },
        )  # fmt: skip

    def forward(self, rows: Padded) -> Any:
        return self._engine(rows)

    def backward(self, loss: Tensor, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss * self._ranks.world)

    def step(self, number: int) -> float:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = self._schedule.rate(number)
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        return float(norm) if norm is not None else 0.0

    def rate(self, number: int) -> float:
        return self._schedule.rate(number)

    def weights(self) -> Weights:
        if self._zero < 3:
            return trained_weights(self.module)
        full = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):  # tied weights have a name each, as in state_dict
            if parameter.requires_grad:
                with self._deepspeed.zero.GatheredParameters([parameter]):
                    full[name] = parameter.detach().cpu().clone()
        kept = self.module.state_dict().keys()  # buffers that are computed, not stored, are left out
        return {**full, **{name: buffer.detach() for name, buffer in self.module.named_buffers() if name in kept}}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]:
            with self._deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=self._zero == 3), torch.no_grad():
                if self._zero < 3 or self._ranks.first:
                    parameter.copy_(weights[name])
        if self._zero:
            self._engine.optimizer.refresh_fp32_params()
        self._schedule.reset()

    def save(self, folder: Path) -> None:
        self._engine.save_checkpoint(str(folder), tag="state", exclude_frozen_parameters=True)

    def load(self, folder: Path) -> None:
        self._engine.load_checkpoint(str(folder), tag="state", load_module_strict=False)  # frozen weights are not in it


def trained_weights(module: nn.Module) -> Weights:
    """The state of a module without what is frozen."""
    frozen = {name for name, parameter in module.named_parameters(remove_duplicate=False) if not parameter.requires_grad}
    return {name: tensor.detach() for name, tensor in module.state_dict().items() if name not in frozen}


def _load(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Puts trained weights back; raises `KeyError` where one is missing."""
    if missing := trained_weights(module).keys() - weights.keys():
        raise KeyError(f"weights to put back lack {sorted(missing)[0]}")
    module.load_state_dict(dict(weights), strict=False)


def make_backend(module: nn.Module, backend: BackendConfig, config: OptimizerConfig, lr: float, updates: int, ranks: Ranks) -> Backend:
    """`updates`: optimizer steps that the run will take at most; the schedule's length."""
    if backend.name == "plain":
        return PlainBackend(module, config, lr, updates, ranks)
    return DeepSpeedBackend(module, backend, config, lr, updates, ranks)
