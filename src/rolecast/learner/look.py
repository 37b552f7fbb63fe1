"""What an update made of single tokens, for people to look at: of a few actions, since of all it would be as much as the batch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rolecast.credit import Floats
from rolecast.learner.batch import Ints, Read, TokenBatch


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
    _read: tuple[Read, Read, Read] = field(default_factory=lambda: ([], [], []))

    def __post_init__(self) -> None:
        numbers = [number for number, action in enumerate(self.batch.actions) if action in self.actions]
        self.places = np.flatnonzero(np.isin(self.batch.action, numbers))

    def read(self, flat: Ints, logprob: Tensor, entropy: Tensor) -> None:
        """A micro-batch's tokens; `flat` are their places in the batch."""
        for read, numbers in zip(self._read, (logprob, entropy, torch.ones_like(logprob)), strict=True):
            read.append((flat, numbers.detach()))

    def found(self) -> Floats:
        """(3, tokens): log-prob, entropy, and 1 where a pass had the token; it adds up over ranks, each of which sees its share."""
        return np.stack([self.batch.over(read)[self.places] for read in self._read])

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
