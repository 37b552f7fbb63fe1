"""How a step's batch is cut: into minibatches of whole questions, and those into micro-batches. It is cut once per step.

Scoring and every epoch of the update run in the same micro-batches: the shape of a batch changes the last bits of a log-prob, in
bfloat16 by more than a narrow clip range, so a ratio is exactly 1 only where both sides were computed alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rolecast.learner.batch import TokenBatch
from rolecast.learner.forest import Rows
from rolecast.learner.settings import Packing
from rolecast.reduction import item_weights
from rolecast.types import Objective, Unit


@dataclass(frozen=True, slots=True)
class Micro:
    """Rows that one forward pass takes. `whole`: every unit that they hold lies in them entirely."""

    rows: tuple[int, ...]
    whole: bool = True


Minibatch = tuple[Micro, ...]  # of one optimizer step; empty where no row of it carries a gradient


@dataclass(frozen=True, slots=True)
class Cut:
    """One objective's batch with its weights, and its minibatches.

    `at_once`: nothing moves between scoring and the one update, so the update's own pass gives `old_logprob` too.
    """

    objective: Objective
    batch: TokenBatch
    minibatches: tuple[Minibatch, ...]
    at_once: bool = False

    @property
    def micros(self) -> list[Micro]:
        return [micro for minibatch in self.minibatches for micro in minibatch]


def cut(
    objective: Objective, batch: TokenBatch, units: Sequence[Unit], examples: Sequence[Unit], lengths: Mapping[str, int],
    max_tokens: int, order: Sequence[int], packing: Packing = "off",
) -> Cut:  # fmt: skip
    """`units`: all of the objective's, also those that `batch` holds no row of: they count in the denominators. `examples`: rows of
    the imitation term as units. `order`: a permutation of the ranks of the groups, which are dealt to minibatches in it.
    """
    rows_of = batch.rows_of_units()
    minibatches: list[Minibatch] = []
    weights: dict[str, dict[str, float]] = {"policy_weight": {}, "kl_weight": {}, "value_weight": {}, "imitation_weight": {}}
    together = objective.policy is not None and objective.policy.ratio == "unit"
    for groups in deal_groups([*units, *examples], objective.minibatches, order):
        acted = [unit for unit in units if unit.group in groups]
        shown = [unit for unit in examples if unit.group in groups]
        for name, found in _term_weights(objective, acted, shown, lengths).items():
            weights[name] |= found
        held = [unit.id for unit in (*acted, *shown) if unit.id in rows_of]
        sets = [rows_of[id] for id in held]
        if packing == "off":
            minibatches.append(microbatches(batch, sets, max_tokens, together))
        else:
            minibatches.append(packs(batch, sets, max_tokens, together, sharing=packing == "prefixes"))
    for name, of_unit in weights.items():
        batch = _with_weights(batch, name, of_unit)
    return Cut(objective, batch, tuple(minibatches))


def _term_weights(
    objective: Objective, units: Sequence[Unit], examples: Sequence[Unit], lengths: Mapping[str, int]
) -> dict[str, dict[str, float]]:
    """What a token, or a unit where the ratio is per unit, weighs in each term of a minibatch's loss."""
    o = objective
    found: dict[str, dict[str, float]] = {}
    if o.policy is not None and units:
        found["policy_weight"] = item_weights(units, lengths, o.policy.over, o.policy.ratio)
    if o.kl is not None and o.kl.where == "loss" and units:
        found["kl_weight"] = item_weights(units, lengths, o.kl.over)
    if o.critic is not None and units:
        found["value_weight"] = item_weights(units, lengths, o.critic.over)
    if o.imitation is not None and examples:
        weight = item_weights(examples, lengths, o.imitation.over)
        found["imitation_weight"] = {unit.id: weight[unit.id] * unit.reward for unit in examples}
    return found


def _with_weights(batch: TokenBatch, name: str, of_unit: Mapping[str, float]) -> TokenBatch:
    table = np.array([*(of_unit.get(id, 0.0) for id in batch.units), 0.0])  # the last one is for unit −1
    filled: dict[str, Any] = {name: table[batch.unit]}
    return replace(batch, **filled)


def deal_groups(units: Sequence[Unit], count: int, order: Sequence[int]) -> list[set[str]]:
    """The questions of each minibatch: whole groups, dealt like cards."""
    groups = sorted({unit.group for unit in units})
    shuffled = [groups[rank] for rank in order]
    count = min(count, len(shuffled))
    return [set(shuffled[i::count]) for i in range(count)]


def microbatches(batch: TokenBatch, rows_of_units: Iterable[Sequence[int]], max_tokens: int, together: bool) -> Minibatch:
    """At most `max_tokens` padded tokens each, similar lengths together. With `together` no unit is cut apart, unless it is larger."""
    lengths = batch.row_lengths()
    sets = list(rows_of_units)
    bundles = _bundles(sets) if together else [[row] for row in sorted({row for rows in sets for row in rows})]
    bundles.sort(key=lambda bundle: (-max(int(lengths[row]) for row in bundle), bundle))
    result: list[list[int]] = []
    parts: list[Micro] = []
    width = 0
    for bundle in bundles:
        longest = max(int(lengths[row]) for row in bundle)
        if len(bundle) > 1 and longest * len(bundle) > max_tokens:
            parts += [Micro(rows, whole=False) for rows in _pieces(bundle, lengths.tolist(), max_tokens)]
        elif result and max(width, longest) * (len(result[-1]) + len(bundle)) <= max_tokens:
            result[-1] += bundle
            width = max(width, longest)
        else:
            result.append(list(bundle))
            width = longest
    return (*(Micro(tuple(rows)) for rows in result), *parts)


def packs(batch: TokenBatch, rows_of_units: Iterable[Sequence[int]], max_tokens: int, together: bool, sharing: bool) -> Minibatch:
    """At most `max_tokens` tokens each, those that rows share counted once. With `together` no unit is cut apart, unless it is larger."""
    sets = list(rows_of_units)
    rows = sorted({row for held in sets for row in held})
    if not rows:
        return ()
    forest = Rows.of(batch, rows, sharing)
    bundles = _bundles(sets) if together else [[row] for row in rows]
    larger = [len(bundle) > 1 and Rows.of(batch, bundle, sharing).total > max_tokens for bundle in bundles]
    whole = [bundle for bundle, cut_up in zip(bundles, larger, strict=True) if not cut_up]
    parts = [[[row] for row in bundle] for bundle, cut_up in zip(bundles, larger, strict=True) if cut_up]
    return (
        *(Micro(pack) for pack in (forest.packs(whole, max_tokens) if whole else [])),
        *(Micro(pack, whole=False) for bundle in parts for pack in forest.packs(bundle, max_tokens)),
    )


def _pieces(bundle: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[tuple[int, ...]]:
    """A bundle that no micro-batch can hold, in parts that one can; a single row is never cut."""
    pieces: list[list[int]] = []
    width = 0
    for row in sorted(bundle, key=lambda row: (-lengths[row], row)):
        if pieces and width * (len(pieces[-1]) + 1) <= max_tokens:
            pieces[-1].append(row)
        else:
            pieces.append([row])
            width = lengths[row]
    return [tuple(piece) for piece in pieces]


def _bundles(sets: Iterable[Sequence[int]]) -> list[list[int]]:
    """Rows joined wherever a set holds both: what must stay in one micro-batch."""
    owner: dict[int, list[int]] = {}
    for rows in sets:
        merged = sorted({row for member in rows for row in owner.get(member, [member])})
        for row in merged:
            owner[row] = merged
    return [list(bundle) for bundle in {id(b): b for b in owner.values()}.values()]
