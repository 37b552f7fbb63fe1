"""What turns losses into updates: plain torch, or DeepSpeed with ZeRO. The learner is the same over both.

A loss of one rank is its share of Σ weight · ℓ over the whole minibatch, so gradients are summed over ranks and micro-batches.
DeepSpeed averages instead; the factor is put back here, once. A backend trains every slot of a team, each with its own optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rolecast.errors import DivergedError, InputError
from rolecast.installed import needing
from rolecast.learner.optimizer import SlotOptimizer, grouped, share_of_peak
from rolecast.learner.ranks import Ranks
from rolecast.learner.settings import BackendConfig, OptimizerConfig
from rolecast.types import Slot
from rolecast.weights.team import Rows, Team, Weights

BUCKET = 5 * 10**8  # elements whose gradients DeepSpeed reduces at once: its default, which few adapters need


@dataclass(frozen=True, slots=True)
class Training:
    """How one slot is trained. `updates`: optimizer steps that the stage will take at most; the schedule's length."""

    optimizer: OptimizerConfig
    lr: float
    updates: int


class Backend(Protocol):
    name: str  # of what its saved state can be loaded by
    sharded: bool  # whether saved state is cut for this number of ranks

    def forward(self, slot: Slot, rows: Rows, temperature: float = 1.0) -> Any: ...

    def backward(self, loss: Tensor, last: bool) -> None:
        """Adds this loss's gradients; `last` ends the update's."""
        ...

    def step(self, numbers: Mapping[Slot, int]) -> dict[Slot, float]:
        """One update of the slots in `numbers`, each with its number, counted from 0; other slots do not move, and lose their gradients.

        Returns the norms of their gradients before clipping. A slot whose norm is not finite does not move either.
        """
        ...

    def rate(self, slot: Slot, number: int) -> float: ...

    def weights(self) -> Weights:
        """All trained weights of the team by name, whole, on every rank."""
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Puts weights back and forgets the optimizers' moments."""
        ...

    def save(self, folder: Path) -> None:
        """Writes what a resume needs beside the slots' weights. Every rank calls it."""
        ...

    def load(self, folder: Path) -> None: ...


class PlainBackend:
    name = "plain torch"
    sharded = False

    def __init__(self, team: Team, slots: Mapping[Slot, Training], ranks: Ranks) -> None:
        self.team, self._ranks = team, ranks
        self.optimizers = {slot: SlotOptimizer(team.trained(slot), t.optimizer, t.lr, t.updates) for slot, t in slots.items()}

    def forward(self, slot: Slot, rows: Rows, temperature: float = 1.0) -> Any:
        return self.team(slot, rows, temperature)

    def backward(self, loss: Tensor, last: bool) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, numbers: Mapping[Slot, int]) -> dict[Slot, float]:
        norms = {}
        for slot, number in numbers.items():
            self._ranks.sum_gradients(self.optimizers[slot].parameters)
            norms[slot] = self.optimizers[slot].step(number)
        for slot in self.optimizers.keys() - numbers.keys():
            self.optimizers[slot].clear()
        return norms

    def rate(self, slot: Slot, number: int) -> float:
        return self.optimizers[slot].rate(number)

    def weights(self) -> Weights:
        return trained_weights(self.team)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        if missing := trained_weights(self.team).keys() - weights.keys():
            raise KeyError(f"weights to put back lack {sorted(missing)[0]}")
        self.team.load_state_dict(dict(weights), strict=False)
        for optimizer in self.optimizers.values():
            optimizer.reset()

    def save(self, folder: Path) -> None:
        states = {slot: optimizer.state_dict() for slot, optimizer in self.optimizers.items()}
        require_sound(states, self._ranks)
        if self._ranks.first:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(states, folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        states = torch.load(folder / "optimizer.pt", weights_only=True, map_location="cpu")
        for slot, optimizer in self.optimizers.items():
            optimizer.load_state_dict(states[slot])


class DeepSpeedBackend:
    """One DeepSpeed engine over the whole team, with a parameter group for each slot.

    The optimizer is torch's, so that the plain backend with the same config is the reference. Norms, clipping and the refusal of
    what is not finite are the groups' own (`GroupedOptimizer`): DeepSpeed would do them over all slots together.
    """

    sharded = True

    def __init__(self, team: Team, slots: Mapping[Slot, Training], backend: BackendConfig, ranks: Ranks) -> None:
        names = {t.optimizer.name for t in slots.values()}
        if "muon" in names:
            raise InputError("optimizer muon needs whole matrices, which ZeRO cuts up; use optimizer.name=adamw or learner.name=plain")
        if len(names) > 1:
            raise InputError(f"DeepSpeed takes one optimizer for all slots, not {', '.join(sorted(names))}; use learner.name=plain")
        if backend.offload and len(slots) > 1:
            raise InputError(
                f"learner.offload: DeepSpeed moves the gradients of the last slot only, and this stage trains {', '.join(sorted(slots))}; "
                "set offload to false"
            )
        with needing("learner"):
            import deepspeed
        self.team, self._slots, self._ranks, self._zero, self._deepspeed = team, dict(slots), ranks, backend.zero, deepspeed
        if not deepspeed.comm.is_initialized():
            deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo", verbose=False)
        self.name = f"DeepSpeed, ZeRO-{backend.zero}"
        dtype = team.base.dtype
        self._cut = backend.zero > 0 or dtype == torch.bfloat16  # whether each rank's optimizer sees a shard only
        groups = [(slot, [p for _, p in team.trained(slot)], t.optimizer, t.lr) for slot, t in slots.items()]
        self._optimizer = grouped(groups, self._add_up)
        self._engine, *_ = deepspeed.initialize(
            model=team, optimizer=self._optimizer, dist_init_required=False,
            config={
                "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 0.0,
                "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "steps_per_print": 10**9,
                "bf16": {"enabled": dtype == torch.bfloat16},
                "zero_optimization": {
                    "stage": backend.zero, **({"offload_optimizer": {"device": "cpu"}} if backend.offload else {}),
                    "stage3_gather_16bit_weights_on_model_save": True,
                    "sub_group_size": 10**12,  # a slot's shard in one piece, so that its norm is its own
                    # Each backward pass makes a buffer of this many elements, and in lockstep torch fills it.
                    "reduce_bucket_size": min(BUCKET, sum(p.numel() for _, trained, *_ in groups for p in trained)),
                },
            },
        )  # fmt: skip

    def _add_up(self, number: float) -> float:
        return float(self._ranks.sum(np.array([number]))[0]) if self._cut else number

    def forward(self, slot: Slot, rows: Rows, temperature: float = 1.0) -> Any:
        # Where weights are sharded, every rank calls a head as often, or they would wait for each other for ever.
        chunks = max(self._ranks.gather(self.team.chunks(rows))) if self._zero == 3 else None
        return self._engine(slot, rows, temperature, chunks)

    def backward(self, loss: Tensor, last: bool) -> None:
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss * self._ranks.world)

    def step(self, numbers: Mapping[Slot, int]) -> dict[Slot, float]:
        for group in self._engine.optimizer.param_groups:
            slot = group["slot"]
            group["active"] = slot in numbers
            if group["active"]:
                group["lr"] = self.rate(slot, numbers[slot])
        self._optimizer.norms.clear()
        self._engine.step()
        if self._zero == 3:
            # It overwrites what an earlier update left in its buffers in the first micro-batch only, which is one slot's.
            self._engine.optimizer.grad_partitions_flat_buffer.zero_()
        # DeepSpeed leaves its optimizer alone where it finds an overflow itself.
        return {slot: self._optimizer.norms.get(slot, math.nan) for slot in numbers}

    def rate(self, slot: Slot, number: int) -> float:
        training = self._slots[slot]
        return training.lr * share_of_peak(training.optimizer, number, training.updates)

    def weights(self) -> Weights:
        if self._zero < 3:
            return trained_weights(self.team)
        full = {}
        for name, parameter in self.team.named_parameters(remove_duplicate=False):  # tied weights have a name each, as in state_dict
            if parameter.requires_grad:
                with self._deepspeed.zero.GatheredParameters([parameter]):
                    full[name] = parameter.detach().cpu().clone()
        kept = self.team.state_dict().keys()  # buffers that are computed, not stored, are left out
        return {**full, **{name: buffer.detach() for name, buffer in self.team.named_buffers() if name in kept}}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in [(n, p) for n, p in self.team.named_parameters() if p.requires_grad]:
            with self._deepspeed.zero.GatheredParameters([parameter], modifier_rank=0, enabled=self._zero == 3), torch.no_grad():
                if self._zero < 3 or self._ranks.first:
                    parameter.copy_(weights[name])
        if self._zero:
            self._engine.optimizer.refresh_fp32_params()
        self._optimizer.state.clear()

    def save(self, folder: Path) -> None:
        require_sound(list(self._optimizer.state.values()), self._ranks)  # its keys are tensors
        self._engine.save_checkpoint(str(folder), tag="state", exclude_frozen_parameters=True)

    def load(self, folder: Path) -> None:
        self._engine.load_checkpoint(str(folder), tag="state", load_module_strict=False)  # frozen weights are not in it


def require_sound(state: Any, ranks: Ranks) -> None:
    """Raises `DivergedError` on every rank where an optimizer's state, of which each may have a shard, is not finite on one of them."""
    here = next((name for name, tensor in _tensors(state) if not torch.isfinite(tensor).all()), "")
    if bad := {rank: name for rank, name in enumerate(ranks.gather(here)) if name}:
        rank, name = next(iter(bad.items()))
        raise DivergedError(
            f"the optimizer's {name} is not finite on rank {rank}, so it is not saved; the last checkpoint is sound, lower the learning rate"
        )


def _tensors(state: Any, name: str = "state") -> Iterator[tuple[str, Tensor]]:
    """Tensors of numbers in a nested state, by their place in it."""
    if isinstance(state, Tensor) and state.is_floating_point():
        yield name, state
    elif isinstance(state, Mapping | list | tuple):
        for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
            yield from _tensors(value, f"{name}.{key}")


def trained_weights(module: nn.Module) -> Weights:
    """The state of a module without what is frozen."""
    frozen = {name for name, parameter in module.named_parameters(remove_duplicate=False) if not parameter.requires_grad}
    return {name: tensor.detach() for name, tensor in module.state_dict().items() if name not in frozen}


def make_backend(team: Team, slots: Mapping[Slot, Training], backend: BackendConfig, ranks: Ranks) -> Backend:
    if backend.compile:
        if backend.name == "deepspeed" and backend.zero == 3:
            raise InputError(
                "learner.compile: ZeRO-3 fetches weights in the middle of a pass, which torch.compile does not follow; set compile to false, "
                "or learner.zero to 2"
            )
        team.compile_layers()
    if backend.recompute:
        team.recompute_layers()
    if backend.name == "plain":
        return PlainBackend(team, slots, ranks)
    return DeepSpeedBackend(team, slots, backend, ranks)
