"""What methods have that do not search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rolecast.errors import InputError
from rolecast.ports import IndexInfo
from rolecast.types import Passage


class NoRetriever:
    """`Retriever` without an index: `InputError` for whoever asks it."""

    def __init__(self, method: str) -> None:
        self._method = method

    async def info(self) -> IndexInfo:
        return IndexInfo("")

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        raise self._fault()

    async def fetch(self, ids: Sequence[str]) -> list[Passage]:
        raise self._fault()

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        raise self._fault()

    def _fault(self) -> InputError:
        return InputError(f"{self._method} was opened without a corpus and searches; report it: its k should say that it does")
