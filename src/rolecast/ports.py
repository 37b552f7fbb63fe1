"""The boundaries of Rolecast. Each port has one adapter in this process and one over the network.

Batch first: an adapter may be remote, so a port never takes one item where it could take many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from rolecast.types import Passage, Slot


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy. Log-probs are those of the distribution sampled from."""

    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    ids: tuple[int, ...]
    slot: Slot
    max_tokens: int
    stop: tuple[str, ...]
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True)
class Completion:
    """`text` is the decoding of all `ids`; a stop string may have ended inside the last one."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: Literal["stop", "length"]


class Engine(Protocol):
    """Generates from token ids. `version` names the weights that answer now."""

    version: str

    async def generate(self, request: GenerateRequest) -> Completion: ...


class Retriever(Protocol):
    """Ranks passages. Results keep the order of the queries; best first; fewer than `k` when there are no more hits."""

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]: ...

    async def fetch(self, ids: Sequence[str]) -> list[Passage]: ...

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """Role kinds give ±1, `answer` gives [0, 1]; `score is None` is unscored, with the reason."""

    score: float | None
    reason: str = ""


class Judge(Protocol):
    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict: ...
