"""From trajectories and advantages to flat token arrays, and from those to padded micro-batches.

The learner sees slots, weights and unit numbers; what a unit means is the method's business. One row is one thread or one example.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rolecast.credit import Floats
from rolecast.types import Action, Example, Slot, Thread, Unit, endpoint_of

Ints = npt.NDArray[np.int64]
Read = list[tuple[Ints, torch.Tensor]]  # places of tokens in a batch and a number for each, still on their device


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Flat arrays over all tokens of one slot's rows.

    `starts` (rows + 1,) are the rows' bounds. `action` numbers `actions`, `unit` numbers `units` and `tag` numbers `tags`; they are −1
    where nothing is trained. A `…_weight` is what the token's item weighs in a term of the loss, its denominator included
    (`learner.cut`); it is 0 where the term does not act.
    """

    slot: Slot
    starts: Ints
    ids: Ints
    action: Ints
    unit: Ints
    tag: Ints
    tags: tuple[str, ...]
    actions: tuple[str, ...]
    units: tuple[str, ...]
    policy_weight: Floats
    kl_weight: Floats
    value_weight: Floats
    imitation_weight: Floats
    advantage: Floats
    sampler_logprob: Floats
    old_logprob: Floats
    ref_logprob: Floats
    value: Floats
    target: Floats

    @property
    def rows(self) -> int:
        return len(self.starts) - 1

    @property
    def trained(self) -> npt.NDArray[np.bool_]:
        return self.action >= 0

    def row_lengths(self) -> Ints:
        return np.diff(self.starts)

    def by_action(self, name: str) -> dict[str, Floats]:
        """A column's numbers for each action's tokens."""
        order, numbers, bounds = self._by(self.action)
        pieces = np.split(getattr(self, name)[order], bounds)
        return {self.actions[number]: piece for number, piece in zip(numbers, pieces, strict=True)}

    def with_actions(self, name: str, numbers: Mapping[str, Floats]) -> TokenBatch:
        """The batch with a column filled from numbers per token of the actions that it holds."""
        order, found, _ = self._by(self.action)
        column = np.zeros(len(self.ids))
        column[order] = np.concatenate([numbers[self.actions[number]] for number in found])
        filled: dict[str, Any] = {name: column}
        return replace(self, **filled)

    def over(self, read: Read) -> Floats:
        """One number for each token, 0 where none was read. Waits for the device."""
        column = np.zeros(len(self.ids))
        for flat, numbers in read:
            column[flat] = numbers.double().cpu().numpy()
        return column

    def rows_of_units(self) -> dict[str, list[int]]:
        """The rows that hold tokens of each unit, in order."""
        row_of_token = np.repeat(np.arange(self.rows), self.row_lengths())
        order, numbers, bounds = self._by(self.unit)
        pieces = np.split(row_of_token[order], bounds)
        return {self.units[number]: np.unique(piece).tolist() for number, piece in zip(numbers, pieces, strict=True)}

    def _by(self, key: Ints) -> tuple[Ints, list[int], Ints]:
        """Trained tokens ordered by `key`, the keys that occur, and where the order goes on to the next one."""
        order = np.argsort(key, kind="stable")
        order = order[np.searchsorted(key[order], 0) :]
        bounds = np.flatnonzero(np.diff(key[order])) + 1
        return order, key[order][[0, *bounds]].tolist() if len(order) else [], bounds


_TOKEN_FIELDS = tuple(f.name for f in fields(TokenBatch) if f.name not in ("slot", "starts", "tags", "actions", "units"))
_KEYS = ("action", "unit", "tag")


def on_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Takes a contiguous array over. Does not wait for what the device still computes, as a copy from memory that may be moved would."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def action_lengths(threads: Iterable[Thread]) -> dict[str, int]:
    return {action.id: len(action.ids) for thread in threads for action in thread.actions}


def example_units(examples: Sequence[Example], objective: str) -> list[Unit]:
    """Each row as a unit of one action: what denominators are made of. Rows without a group are groups of their own."""
    return [
        Unit(f"example-{n}", (f"example-{n}",), e.weight, objective, tag=e.tag, group=e.group or f"example-{n}", rollout=f"example-{n}")
        for n, e in enumerate(examples)
    ]


def make_batch(slot: Slot, threads: Sequence[Thread], units: Sequence[Unit], examples: Sequence[Example] = ()) -> TokenBatch:
    """Rows of the threads that hold an action of `units`, whose tokens are the trained ones, and of the examples.

    Raises ValueError if there is none.
    """
    rows_of_examples = example_units(examples, "")
    every = [*units, *rows_of_examples]
    unit_of = {action: (number, unit) for number, unit in enumerate(units) for action in unit.actions}
    tags = sorted({unit.tag for unit in every})
    laid: list[Sequence[int]] = []  # ids, one after the other
    starts = [0]
    spoken: list[_Spoken] = []
    length = 0
    for thread in threads:
        if not any(action.id in unit_of for action in thread.actions):
            continue
        if endpoint_of(thread.slot) is not None:
            raise ValueError(f"thread {thread.id} was spoken by {thread.slot}: its tokens cannot be trained on")
        for turn in thread.turns:
            laid.append(turn.ids)
            if isinstance(turn, Action) and turn.id in unit_of:
                number, unit = unit_of[turn.id]
                spoken.append(_Spoken(turn.id, slice(length, length + len(turn.ids)), number, tags.index(unit.tag), turn.logprobs))
            length += len(turn.ids)
        starts.append(length)
    for number, (example, unit) in enumerate(zip(examples, rows_of_examples, strict=True), len(units)):
        laid.append(example.ids)
        spoken.append(_Spoken(unit.id, length + np.flatnonzero(example.trained), number, tags.index(unit.tag), 0.0))
        length += len(example.ids)
        starts.append(length)
    if not laid:
        raise ValueError(f"no thread of slot {slot} holds an action of the units")
    columns: dict[str, Any] = {name: np.full(length, -1, dtype=np.int64) for name in _KEYS}
    columns |= {name: np.zeros(length) for name in _TOKEN_FIELDS if name not in ("ids", *_KEYS)}
    for place, of in enumerate(spoken):
        for name, key in zip(_KEYS, (place, of.unit, of.tag), strict=True):
            columns[name][of.where] = key
        columns["sampler_logprob"][of.where] = of.logprobs
    ids = np.fromiter(chain.from_iterable(laid), dtype=np.int64, count=length)
    return TokenBatch(
        slot, np.array(starts, dtype=np.int64), ids, tags=tuple(tags), actions=tuple(of.action for of in spoken),
        units=tuple(unit.id for unit in every), **columns,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Spoken:
    """An action's tokens in the flat arrays, or an example's trained ones, and what they carry."""

    action: str
    where: slice | Ints
    unit: int
    tag: int
    logprobs: Sequence[float] | float


@dataclass(frozen=True, slots=True)
class Padded:
    """One micro-batch on a device: `ids` (rows, width) padded on the right, and where the trained tokens are."""

    ids: torch.Tensor
    row: torch.Tensor  # (trained,)
    column: torch.Tensor  # (trained,) position of the trained token itself; it is predicted from column − 1
    flat: Ints  # (trained,) its index in the TokenBatch
    forest: None = None  # rows of their own, padded behind: a causal mask is enough
    index: None = None  # each token that predicts predicts one

    @property
    def source(self) -> torch.Tensor:
        return self.column - 1

    @property
    def target(self) -> torch.Tensor:
        return self.ids[self.row, self.column]

    @classmethod
    def of(cls, batch: TokenBatch, rows: Sequence[int], device: torch.device) -> Padded:
        lengths, trained = batch.row_lengths(), batch.trained
        ids = np.zeros((len(rows), max(int(lengths[row]) for row in rows)), dtype=np.int64)
        row_index, columns, flat = [], [], []
        for i, row in enumerate(rows):
            start, end = batch.starts[row], batch.starts[row + 1]
            ids[i, : end - start] = batch.ids[start:end]
            places = np.flatnonzero(trained[start:end])
            row_index.append(np.full(len(places), i))
            columns.append(places)
            flat.append(places + start)
        ids_, rows_, columns_ = (on_device(array, device) for array in (ids, np.concatenate(row_index), np.concatenate(columns)))
        return cls(ids_, rows_, columns_, np.concatenate(flat))
