"""From trajectories and advantages to flat token arrays, and from those to padded micro-batches.

The learner sees slots, weights and unit numbers; what a unit means is the method's business. One row is one thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rolecast.credit import Floats
from rolecast.types import Action, Example, Objective, Slot, Thread, Unit

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Flat arrays over all tokens of one slot's rows.

    `starts` (rows + 1,) are the rows' bounds. `action` numbers `actions`, `tag` numbers `tags`; they, `unit` and `group` (the
    question) are −1 where nothing is trained. `weight` is filled when minibatches are cut, since it holds their denominators.
    """

    slot: Slot
    starts: Ints
    ids: Ints
    action: Ints
    unit: Ints
    group: Ints
    tag: Ints
    tags: tuple[str, ...]
    actions: tuple[str, ...]
    weight: Floats
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
        order = np.argsort(self.action, kind="stable")
        order = order[np.searchsorted(self.action[order], 0) :]
        bounds = np.flatnonzero(np.diff(self.action[order])) + 1
        pieces = np.split(getattr(self, name)[order], bounds)
        return {self.actions[self.action[order][start]]: p for start, p in zip([0, *bounds], pieces, strict=True)}

    def with_actions(self, name: str, numbers: Mapping[str, Floats]) -> TokenBatch:
        """The batch with a column filled from numbers per token of the actions that it holds."""
        column = np.zeros(len(self.ids))
        for number in np.unique(self.action[self.trained]).tolist():
            column[self.action == number] = numbers[self.actions[number]]
        filled: dict[str, Any] = {name: column}
        return replace(self, **filled)

    def select(self, rows: Sequence[int]) -> TokenBatch:
        """The batch of these rows, in this order. Actions, units and groups keep their numbers."""
        index = np.concatenate([np.arange(self.starts[row], self.starts[row + 1]) for row in rows])
        lengths = self.row_lengths()[list(rows)]
        picked: dict[str, Any] = {name: getattr(self, name)[index] for name in _TOKEN_FIELDS}
        return replace(self, starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), **picked)


_TOKEN_FIELDS = tuple(f.name for f in fields(TokenBatch) if f.name not in ("slot", "starts", "tags", "actions"))


def action_lengths(threads: Iterable[Thread]) -> dict[str, int]:
    return {action.id: len(action.ids) for thread in threads for action in thread.actions}


def rl_batch(slot: Slot, threads: Sequence[Thread], units: Sequence[Unit]) -> TokenBatch:
    """Rows of the threads that hold an action of `units`, whose tokens are the trained ones.

    Raises ValueError if there is none.
    """
    unit_of = {action: (number, unit) for number, unit in enumerate(units) for action in unit.actions}
    tags = sorted({unit.tag for unit in units})
    groups = {group: number for number, group in enumerate(sorted({unit.group for unit in units}))}
    rows: list[dict[str, npt.NDArray[np.generic]]] = []
    actions: list[str] = []
    for thread in threads:
        if not any(action.id in unit_of for action in thread.actions):
            continue
        parts = []
        for turn in thread.turns:
            n = len(turn.ids)
            columns = {"ids": np.array(turn.ids, dtype=np.int64), **_blank(n)}
            if isinstance(turn, Action) and turn.id in unit_of:
                number, unit = unit_of[turn.id]
                columns |= {
                    "action": np.full(n, len(actions)), "unit": np.full(n, number), "group": np.full(n, groups[unit.group]),
                    "tag": np.full(n, tags.index(unit.tag)), "sampler_logprob": np.array(turn.logprobs, dtype=np.float64),
                }  # fmt: skip
                actions.append(turn.id)
            parts.append(columns)
        rows.append({name: np.concatenate([part[name] for part in parts]) for name in _TOKEN_FIELDS})
    return _assemble(slot, rows, tuple(tags), tuple(actions))


def sft_batch(slot: Slot, examples: Sequence[Example]) -> TokenBatch:
    """One row per example, with the example's weight in the advantage column of its trained tokens."""
    tags = sorted({example.tag for example in examples})
    rows = []
    for number, example in enumerate(examples):
        columns = {"ids": np.array(example.ids, dtype=np.int64), **_blank(len(example.ids))}
        trained = np.array(example.trained)
        for name, filler in (("action", number), ("unit", number), ("group", number), ("tag", tags.index(example.tag))):
            columns[name][trained] = filler
        columns["advantage"][trained] = example.weight
        rows.append(columns)
    return _assemble(slot, rows, tuple(tags), tuple(str(number) for number in range(len(examples))))


def _blank(n: int) -> dict[str, npt.NDArray[np.generic]]:
    numbers = {name: np.full(n, -1, dtype=np.int64) for name in ("action", "unit", "group", "tag")}
    floats = ("weight", "advantage", "sampler_logprob", "old_logprob", "ref_logprob", "value", "target")
    return {**numbers, **{name: np.zeros(n) for name in floats}}


def _assemble(
    slot: Slot, rows: Sequence[Mapping[str, npt.NDArray[np.generic]]], tags: tuple[str, ...], actions: tuple[str, ...]
) -> TokenBatch:
    starts = np.concatenate([[0], np.cumsum([len(row["ids"]) for row in rows])]).astype(np.int64)
    return TokenBatch(
        slot, starts, tags=tags, actions=actions, **{name: np.concatenate([row[name] for row in rows]) for name in _TOKEN_FIELDS}
    )


def weighted(batch: TokenBatch, objective: Objective, rollouts_of: Mapping[int, int]) -> TokenBatch:
    """Fills `weight` with one over the objective's denominator, so that the loss of any micro-batch is Σ weight · ℓ.

    `token`: all action tokens. `unit`: all units, each shared equally by its tokens. `group`: the groups of the batch times
    the rollouts of the unit's own group, those without gradient included: DECOR eq. 4's 1/G Σ, then the mean over questions.
    `rollouts_of` counts them by the group's number. For a unit-level loss a token's weight is its unit's, whatever its length.
    """
    trained = batch.trained
    if objective.per == "token":
        return replace(batch, weight=np.where(trained, 1.0 / trained.sum(), 0.0))
    _, first, inverse, counts = np.unique(batch.unit[trained], return_index=True, return_inverse=True, return_counts=True)
    shares = np.ones(len(counts)) if objective.loss == "gspo" else 1.0 / counts
    if objective.per == "unit":
        shares /= len(counts)
    else:
        groups = batch.group[trained][first].tolist()
        shares /= len(set(groups)) * np.array([rollouts_of[group] for group in groups])
    weight = np.zeros(len(batch.ids))
    weight[trained] = shares[inverse]
    return replace(batch, weight=weight)


def minibatches(batch: TokenBatch, count: int, order: Sequence[int]) -> list[list[int]]:
    """Rows of each of `count` minibatches: whole groups, dealt in `order` (a permutation of the groups' ranks)."""
    rows_of = _rows_by(batch, batch.group)
    groups = sorted(rows_of)
    shuffled = [groups[rank] for rank in order]
    count = min(count, len(shuffled))
    return [[row for group in shuffled[i::count] for row in rows_of[group]] for i in range(count)]


def microbatches(batch: TokenBatch, max_tokens: int) -> list[list[int]]:
    """Rows of each micro-batch: at most `max_tokens` padded tokens, similar lengths together, no unit cut apart."""
    rows_of = _rows_by(batch, batch.unit)
    bundles = _bundles(rows_of.values())
    lengths = batch.row_lengths()
    bundles.sort(key=lambda bundle: (-max(int(lengths[row]) for row in bundle), bundle))
    result: list[list[int]] = []
    width = 0
    for bundle in bundles:
        widest = max(width, max(int(lengths[row]) for row in bundle))
        if result and widest * (len(result[-1]) + len(bundle)) <= max_tokens:
            result[-1] += bundle
        else:
            result.append(list(bundle))
            widest = max(int(lengths[row]) for row in bundle)
        width = widest
    return result


def _rows_by(batch: TokenBatch, key: Ints) -> dict[int, list[int]]:
    """Rows that hold trained tokens of each key value."""
    rows: dict[int, list[int]] = defaultdict(list)
    for row in range(batch.rows):
        part = slice(batch.starts[row], batch.starts[row + 1])
        for value in np.unique(key[part][batch.trained[part]]):
            rows[int(value)].append(row)
    return rows


def _bundles(sets: Iterable[Sequence[int]]) -> list[list[int]]:
    """Rows joined wherever a set holds both: what must stay in one micro-batch."""
    owner: dict[int, list[int]] = {}
    for rows in sets:
        merged = sorted({row for member in rows for row in owner.get(member, [member])})
        for row in merged:
            owner[row] = merged
    return [list(bundle) for bundle in {id(b): b for b in owner.values()}.values()]


@dataclass(frozen=True, slots=True)
class Padded:
    """One micro-batch on a device: `ids` (rows, width) padded on the right, and where the trained tokens are."""

    ids: torch.Tensor
    row: torch.Tensor  # (trained,)
    column: torch.Tensor  # (trained,) position of the trained token itself; it is predicted from column − 1
    flat: Ints  # (trained,) its index in the TokenBatch

    @classmethod
    def of(cls, batch: TokenBatch, rows: Sequence[int], device: torch.device) -> Padded:
        lengths = batch.row_lengths()
        ids = np.zeros((len(rows), max(int(lengths[row]) for row in rows)), dtype=np.int64)
        row_index, columns, flat = [], [], []
        for i, row in enumerate(rows):
            start, end = batch.starts[row], batch.starts[row + 1]
            ids[i, : end - start] = batch.ids[start:end]
            places = np.flatnonzero(batch.trained[start:end])
            row_index.append(np.full(len(places), i))
            columns.append(places)
            flat.append(places + start)
        ids_, rows_, columns_ = (torch.from_numpy(array).to(device) for array in (ids, np.concatenate(row_index), np.concatenate(columns)))
        return cls(ids_, rows_, columns_, np.concatenate(flat))
