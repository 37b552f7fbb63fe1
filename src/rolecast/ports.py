"""The boundaries of Rolecast. Each port has one adapter in this process and one over the network.

Batch first: an adapter may be remote, so a port never takes one item where it could take many.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self

import numpy as np
import numpy.typing as npt

from rolecast.types import Message, Passage, RubricItem, Slot


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Temperature 0 is greedy. Log-probs are those of the distribution sampled from."""

    temperature: float = 1.0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """`key` names the turn that asks, stably: lockstep serves what waits in the order of keys, whatever came first.

    `messages`: the thread as a conversation, where an endpoint is asked, whose tokens are others. `urgency`: turns that are left of what the
    request belongs to; where more wait than there is room for, fewer come first, but not in lockstep. `version`: the weights that its
    episode began with, for an engine that keeps several; without it, the newest.
    """

    ids: tuple[int, ...]
    slot: Slot
    max_tokens: int
    stop: tuple[str, ...]
    sampling: Sampling
    seed: int
    key: str = ""
    messages: tuple[Message, ...] = ()
    urgency: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """`text` is the decoding of all `ids`, at most as many as were asked for; a stop string may have ended inside the last one.

    `logprobs` has one for each id, or none at all where they are not known: such a completion cannot be trained on. `version`: the weights
    that sampled it, where an engine keeps several; else they are those that answer now.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finish: Literal["stop", "length"]
    version: str = ""


class Aborted(asyncio.CancelledError):
    """What a request ends with whose caller was cancelled: the engine samples no more for it. `ids` were sampled until then."""

    def __init__(self, ids: tuple[int, ...]) -> None:
        super().__init__()
        self.ids = ids


class Engine(Protocol):
    """Generates from token ids. `version` names the weights that answer now.

    `branches`: how many branches are live (episodes, and what they gather). Who plays them counts; in lockstep the engine runs
    exactly when as many requests wait. A branch that waits for a retriever or a judge counts, one that waits for its own
    branches does not. An engine that fails raises `EngineError`; one that failed of a single request, `ExternalError`.
    """

    version: str
    branches: int

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def generate(self, request: GenerateRequest) -> Completion:
        """Raises what the engine failed of, also if that was before. A caller that is cancelled ends its request (`Aborted`)."""
        ...


EXTERNAL: Final = "external"  # the kind of a retriever that cannot say what it serves


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """What a retriever serves: which ranker, over the index whose manifest has this `digest`. `str` is what two sides compare."""

    kind: str
    digest: str = ""  # empty for an external one

    def __str__(self) -> str:
        return f"{self.kind} {self.digest}".rstrip()


Embed = Callable[[Sequence[str]], Awaitable[npt.NDArray[np.float32]]]  # texts to rows of length one, (texts, width)


class Retriever(Protocol):
    """Ranks passages. Results keep the order of the queries; best first; fewer than `k` when there are no more hits."""

    async def info(self) -> IndexInfo: ...

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]: ...

    async def fetch(self, ids: Sequence[str]) -> list[Passage]: ...

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """Role kinds give ±1, `answer` gives [0, 1]; `score is None` is unscored, with the reason. `tokens`: what a model read and said
    for it; 0 where none was asked, or where it does not tell. `items`: what a kind gives that writes a rubric; its score then is 1.
    `levels`: of a kind that holds a text against another one, how far each satisfies the criterion, in [0, 1]; the score is the first one's share.
    """

    score: float | None
    reason: str = ""
    tokens: int = 0
    items: tuple[RubricItem, ...] = ()
    levels: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class JudgeInfo:
    """Who judges: a model's name, or "lexical"; `prompts`: a digest of the prompt of every kind, none where no model is asked."""

    model: str
    prompts: Mapping[str, str] = field(default_factory=dict)

    def of(self, kinds: Collection[str]) -> str:
        """What two sides compare that ask for these kinds."""
        versions = [f"{kind}:{self.prompts[kind]}" for kind in sorted(kinds) if kind in self.prompts]
        return " ".join([self.model, *versions])


class Judge(Protocol):
    async def info(self) -> JudgeInfo: ...

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict: ...


class Store(Protocol):
    """Immutable artifacts and small records under keys (`runs/demo/index`), in a folder or a bucket.

    An artifact is a committed folder of `store.artifact`: its files travel first, its manifest last. A key is written once.
    """

    def publish(self, folder: Path, key: str) -> None:
        """Uploads a committed artifact. The same artifact again is no error; another one under the key is an `ArtifactError`."""
        ...

    def fetch(self, key: str, folder: Path) -> Path:
        """Downloads an artifact, verifies sizes and hashes, and commits it at `folder`. `ArtifactError` if it is not there or damaged."""
        ...

    def committed(self, key: str) -> bool: ...

    def artifacts(self, prefix: str) -> list[str]:
        """Keys of the committed artifacts below `prefix`, sorted."""
        ...

    def unfinished(self, prefix: str) -> list[str]:
        """Keys below `prefix` of artifacts whose upload began and has not ended, sorted: it is under way, or its writer died."""
        ...

    def put(self, key: str, data: bytes, *, absent: bool = False) -> bool:
        """Writes a record whole. With `absent`, only if the key is free; whether it was written: one of many writers wins."""
        ...

    def get(self, key: str) -> bytes | None: ...

    def keys(self, prefix: str) -> list[str]:
        """Keys of the records below `prefix`, sorted; an artifact's files are records too."""
        ...

    def delete(self, prefix: str) -> None:
        """Deletes an artifact or record and everything below it, manifests first, so that no reader takes half of it."""
        ...
