"""The ranks of a job: who does what share, and how they agree. One process is one rank of one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from rolecast.credit import Floats
from rolecast.devices import device
from rolecast.errors import PeersError
from rolecast.scratch import leave as leave_at_once
from rolecast.signals import ENDING

T = TypeVar("T")
PATIENCE = timedelta(hours=2)  # rank 0 may wait that long for rollouts; our own deadlines, in the coordinator, are shorter


@dataclass(frozen=True, slots=True)
class Ranks:
    rank: int = 0
    world: int = 1
    local: int = 0  # number within its node
    node: int = 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def leads_node(self) -> bool:
        """Whether this rank fetches what all ranks of its node read."""
        return self.local == 0

    def share(self, items: Sequence[T]) -> list[tuple[T, bool]]:
        """This rank's items, equally many on every rank: where they do not come out even, an item is repeated and marked False."""
        rounds = -(-len(items) // self.world)
        places = [round_ * self.world + self.rank for round_ in range(rounds)]
        return [(items[place], True) if place < len(items) else (items[0], False) for place in places]

    def sum(self, array: Floats) -> Floats:
        """Elementwise over all ranks."""
        if self.world == 1:
            return array
        tensor = torch.from_numpy(array.astype(np.float64))
        dist.all_reduce(tensor, group=_talk())
        return tensor.numpy()

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """One all-reduce of all gradients, in float32."""
        if self.world == 1:
            return
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([g.reshape(-1).float() for g in gradients])
        dist.all_reduce(flat)
        at = 0
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = flat[at : at + gradient.numel()].view_as(gradient).to(gradient.dtype)
            at += gradient.numel()

    def agree(self, value: T | None) -> T:
        """Rank 0's value on every rank. It may take minutes to have one: the others wait in gloo, never inside NCCL."""
        if self.world == 1:
            return value  # type: ignore[return-value]
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, group=_talk())
        result: T = box[0]
        return result

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on every rank."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value, group=_talk())
        return values

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier(group=_talk())


ALONE = Ranks()
_group: Any = None


def _talk() -> Any:
    """A gloo group for objects and waiting: a rank that waits in it for minutes occupies no GPU and no NCCL watchdog."""
    return _group


def join() -> Ranks:
    """Joins the job that this process was started in; alone otherwise. Raises `PeersError` if the job does not form."""
    global _group
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return ALONE
    try:
        if torch.cuda.is_available():
            torch.cuda.set_device(device())  # before NCCL: it takes the current device
        with _signals_end():
            if not dist.is_initialized():
                store, rank, _ = next(rendezvous("env://", timeout=PATIENCE))
                _require_first(store, rank)
                backend = "nccl" if torch.cuda.is_available() else "gloo"
                dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
            _group = dist.new_group(backend="gloo", timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise PeersError(f"the {world} ranks of this job did not find each other: {str(error)[:300]}") from error
    return Ranks(dist.get_rank(), world, int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("GROUP_RANK", "0")))


def _require_first(store: Any, rank: int) -> None:
    """An operator makes a pod anew that was lost. Its ranks find a store where they have been already, and peers that wait in a collective
    of the world before: nobody can join that, so the job is to fail as a whole, and to start again."""
    if store.add(f"rolecast/rank/{rank}", 1) > 1:
        raise PeersError(
            f"rank {rank} was here before: its process was lost and the others' were not; the job has to start again as a whole"
        )


@contextmanager
def _signals_end() -> Iterator[None]:
    """A signal ends the process meanwhile: who waits for peers in torch's C++ would not hear of it, and has nothing to save."""
    before = {number: signal.getsignal(number) for number in ENDING}
    if threading.current_thread() is threading.main_thread():
        for number, old in before.items():
            if old != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, old in before.items():
                signal.signal(number, old)


def leave() -> None:
    """Ends the process of a rank as soon as every rank is here; one that is alone goes on.

    At once: now and then a thread of gloo outlives the group and aborts the interpreter's end, after all work is done.
    """
    if dist.is_initialized():
        dist.barrier(group=_talk())
        sys.stdout.flush()
        sys.stderr.flush()
        leave_at_once(0)
