"""What an update says of itself: weighted means of named numbers, over micro-batches and ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rolecast.learner.batch import Ints

Metrics = dict[str, float]
Means = Iterator[tuple[str, float, float]]  # names, values and weights


@dataclass(slots=True)
class Tally:
    """Telling it a tensor does not wait for a device; reading does. `pairs`: what has been read, values with their weights."""

    pairs: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    _told: list[_Told] = field(default_factory=list)

    def add(self, name: str, value: Tensor | float, weight: float = 1.0) -> None:
        self._told.append(_Number(name, value.detach() if isinstance(value, Tensor) else value, weight))

    def items(self, name: str, items: Tensor, names: Sequence[str], tags: Ints, where: npt.NDArray[np.bool_] | None = None) -> None:
        """The mean over all items, or those of them that are `where`, and over those of each tag."""
        self._told.append(_Items(name, items.detach(), names, tags, where))

    def repeat(self, name: str, other: str) -> None:
        """What was read of `name` so far, under another name too."""
        if name in self.pairs:
            self.pairs[other] = list(self.pairs[name])

    def read(self) -> None:
        """Nothing is kept on a device any more."""
        told, self._told = self._told, []
        for one in told:
            for name, value, weight in one.means():
                self.pairs[name].append((value, weight))


class _Told(Protocol):
    def means(self) -> Means: ...


@dataclass(frozen=True, slots=True)
class _Number:
    name: str
    value: Tensor | float
    weight: float

    def means(self) -> Means:
        yield self.name, float(self.value), self.weight


@dataclass(frozen=True, slots=True)
class _Items:
    name: str
    items: Tensor
    names: Sequence[str]
    tags: Ints
    where: npt.NDArray[np.bool_] | None

    def means(self) -> Means:
        numbers, tags = self.items.float().cpu().numpy(), self.tags
        if self.where is not None:
            numbers, tags = numbers[self.where], tags[self.where]
        if not len(numbers):
            return
        yield self.name, float(numbers.mean()), len(numbers)
        for index, tag in enumerate(self.names):
            picked = numbers[tags == index]
            if len(picked):
                yield f"{tag}/{self.name}", float(picked.mean()), len(picked)


def mean_of(tallies: Sequence[Mapping[str, Sequence[tuple[float, float]]]]) -> Metrics:
    """Weighted means over all ranks."""
    names = dict.fromkeys(name for tally in tallies for name in tally)
    pairs = {name: [pair for tally in tallies for pair in tally.get(name, ())] for name in names}
    return {name: sum(v * w for v, w in numbers) / max(sum(w for _, w in numbers), 1e-12) for name, numbers in pairs.items()}
