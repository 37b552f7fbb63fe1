"""What an update says of itself: weighted means of named numbers, over micro-batches and ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

Metrics = dict[str, float]


@dataclass(slots=True)
class Tally:
    pairs: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        self.pairs[name].append((value, weight))

    def repeat(self, name: str, other: str) -> None:
        """What was told of `name` so far, under another name too."""
        if name in self.pairs:
            self.pairs[other] = list(self.pairs[name])

    def items(self, name: str, items: Tensor, names: Sequence[str], tags: npt.NDArray[np.int64]) -> None:
        """The mean over all items, and over those of each tag."""
        numbers = items.detach().float().cpu().numpy()
        if not len(numbers):
            return
        self.add(name, float(numbers.mean()), len(numbers))
        for index, tag in enumerate(names):
            picked = numbers[tags == index]
            if len(picked):
                self.add(f"{tag}/{name}", float(picked.mean()), len(picked))


def mean_of(tallies: Sequence[Mapping[str, Sequence[tuple[float, float]]]]) -> Metrics:
    """Weighted means over all ranks."""
    names = dict.fromkeys(name for tally in tallies for name in tally)
    pairs = {name: [pair for tally in tallies for pair in tally.get(name, ())] for name in names}
    return {name: sum(v * w for v, w in numbers) / max(sum(w for _, w in numbers), 1e-12) for name, numbers in pairs.items()}
