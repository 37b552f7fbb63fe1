"""What an update made of single tokens, for people to look at: of a few actions, since of all it would be as much as the batch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rolecast.credit import Floats
from rolecast.learner.batch import Ints, TokenBatch


@dataclass(frozen=True, slots=True)
class TokenNumbers:
    """One number for each token of an action, of the last pass that trained on it. `ratio`: π of that pass over π of the sampler, so that it
    is 1 where nothing has moved and engine and trainer compute alike. `entropy`: of the distribution that the token was drawn from, in nats.
    """

    advantage: tuple[float, ...]
    ratio: tuple[float, ...]
    entropy: tuple[float, ...]


@dataclass(slots=True)
class Look:
    """Collects what a minibatch says of the tokens of `actions`."""

    batch: TokenBatch
    actions: Collection[str]
    places: Ints = field(init=False)
    _read: list[tuple[Ints, Tensor, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        numbers = [number for number, action in enumerate(self.batch.actions) if action in self.actions]
        self.places = np.flatnonzero(np.isin(self.batch.action, numbers))

    def read(self, flat: Ints, logprob: Tensor, entropy: Tensor) -> None:
        """A micro-batch's tokens; `flat` are their places in the batch."""
        self._read.append((flat, logprob.detach(), entropy.detach()))

    def found(self) -> Floats:
        """(3, tokens): log-prob, entropy, and 1 where a pass had the token; it adds up over ranks, each of which sees its share."""
        found = np.zeros((3, len(self.batch.ids)))
        for flat, *numbers in self._read:
            for row, of in enumerate(numbers):
                found[row, flat] = of.double().cpu().numpy()
            found[2, flat] = 1.0
        return found[:, self.places]

    def told(self, found: Floats) -> dict[str, TokenNumbers]:
        """By action, of those that the minibatch had. `found`: of all ranks together."""
        batch, told = self.batch, {}
        action: npt.NDArray[np.int64] = batch.action[self.places]
        ratio = np.exp(np.clip(found[0] - batch.sampler_logprob[self.places], -50.0, 50.0))
        for number in np.unique(action[found[2] > 0]):
            own = action == number
            columns = (batch.advantage[self.places][own], ratio[own], found[1][own])
            told[batch.actions[number]] = TokenNumbers(*(tuple(map(float, column)) for column in columns))
        return told
