"""Passages of one length, for studies of long contexts over a corpus of short ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from rolecast.ports import IndexInfo, Retriever
from rolecast.types import Passage


@dataclass(slots=True)
class LongPassages:
    """What `inner` finds, each passage followed by others of the corpus up to `tokens` tokens, counted by `count`.

    What follows a passage is from the other half of the corpus, always the same, so that it is not what stands beside it there.
    """

    inner: Retriever
    corpus: Sequence[Passage]
    tokens: int
    count: Callable[[str], int]
    _place: dict[str, int] = field(init=False)
    _made: dict[str, Passage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._place = {passage.id: number for number, passage in enumerate(self.corpus)}

    async def info(self) -> IndexInfo:
        return await self.inner.info()

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        found = await self.inner.search(queries, k)
        return [[replace(self._long(passage), score=passage.score) for passage in passages] for passages in found]

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        return [self._long(passage) for passage in await self.inner.fetch(ids)]

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return await self.inner.embed(texts)

    def _long(self, passage: Passage) -> Passage:
        if passage.id not in self._made:
            text, at = passage.text, self._place.get(passage.id, 0) + len(self.corpus) // 2
            for number in range(len(self.corpus)):
                longer = f"{text} {self.corpus[(at + number) % len(self.corpus)].text}"
                if self.count(longer) > self.tokens:
                    break
                text = longer
            self._made[passage.id] = replace(passage, text=text)
        return self._made[passage.id]
