"""What an update says of itself: weighted means of named numbers, over micro-batches and ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

Metrics = dict[str, float]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class Tally:
    """Numbers of tensors are read when they are asked for, so that telling them does not wait for a device."""

    _told: list[tuple[str, Tensor | float, float]] = field(default_factory=list)
    _items: list[_Items] = field(default_factory=list)
    _pairs: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, value: Tensor | float, weight: float = 1.0) -> None:
        self._told.append((name, value.detach() if isinstance(value, Tensor) else value, weight))

    def items(self, name: str, items: Tensor, names: Sequence[str], tags: Ints, where: Bools | None = None) -> None:
        """The mean over all items, or those of them that are `where`, and over those of each tag."""
        self._items.append(_Items(name, items.detach(), names, tags, where))

    def repeat(self, name: str, other: str) -> None:
        """What was told of `name` so far, under another name too."""
        if name in self.pairs:
            self._pairs[other] = list(self._pairs[name])

    @property
    def pairs(self) -> Mapping[str, Sequence[tuple[float, float]]]:
        """Values with their weights."""
        for name, value, weight in self._told:
            self._pairs[name].append((float(value), weight))
        for items in self._items:
            for name, value, weight in items.means():
                self._pairs[name].append((value, weight))
        self._told, self._items = [], []
        return self._pairs


@dataclass(frozen=True, slots=True)
class _Items:
    name: str
    items: Tensor
    names: Sequence[str]
    tags: Ints
    where: Bools | None

    def means(self) -> Iterator[tuple[str, float, int]]:
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
