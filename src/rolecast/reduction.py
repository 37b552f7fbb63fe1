"""The denominators of a loss: what is averaged over what, from inside out, as one weight per token or unit.

A loss term of a minibatch is Σ weight · ℓ over its items. The weights come from all units of the minibatch, also from those that
have no advantage and so no forward pass: a question whose rewards are nearly all equal does not make the others' steps longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from rolecast.folds import Level, Reduction
from rolecast.types import Unit


def item_weights(
    units: Sequence[Unit], lengths: Mapping[str, int], over: Reduction, item: Literal["token", "unit"] = "token"
) -> dict[str, float]:
    """Weight of every item of each unit, {unit id: weight}. `lengths`: tokens of each action.

    A `mean` divides by the number of things that lie directly inside its level; a `sum` by nothing. Raises ValueError where a level
    does not hold the one before it whole: then "the mean over it" has no meaning.
    """
    weight = [1.0] * len(units)
    inside: list[object] = [None] * len(units)  # what each unit has become part of so far
    counts = [sum(lengths[action] for action in unit.actions) if item == "token" else 1 for unit in units]
    for number, fold in enumerate(over):
        container = [_key(unit, fold.level) for unit in units]
        sizes: dict[object, float] = defaultdict(float)
        if number == 0:
            for key, count in zip(container, counts, strict=True):
                sizes[key] += count
        else:
            home: dict[object, object] = {}
            for part, key in zip(inside, container, strict=True):
                if part not in home:
                    sizes[key] += 1
                if home.setdefault(part, key) != key:
                    raise ValueError(f"a reduction goes from inside out: {fold.level} does not hold {over[number - 1].level} whole")
        if fold.how == "mean":
            weight = [w / sizes[key] for w, key in zip(weight, container, strict=True)]
        inside = list(container)
    return {unit.id: w for unit, w in zip(units, weight, strict=True)}


def _key(unit: Unit, level: Level) -> object:
    if level == "batch":
        return "batch"
    if level == "unit":
        return ("unit", unit.id)
    if level == "chain":
        return ("chain", unit.chain or unit.id)
    return (level, getattr(unit, level))
