"""Passages that stay on the disk: of each, memory holds where its line begins and a digest of its id."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from rolecast.data.records import CorpusRow
from rolecast.types import Passage


class PassagesOnDisk(Sequence[Passage]):
    """A corpus as `write_corpus` leaves it: ids are unique and every line is a passage. 24 bytes of memory each, and a read for each that is
    asked for. Many threads may read at once.
    """

    def __init__(self, file: Path) -> None:
        starts, keys = array("q"), array("Q")
        with file.open("rb") as lines:
            at = 0
            for line in lines:
                starts.append(at)
                keys.append(_key(json.loads(line)["id"]))
                at += len(line)
        self._ends = np.append(np.frombuffer(starts, dtype=np.int64)[1:], at)
        self._starts = np.frombuffer(starts, dtype=np.int64)
        found = np.frombuffer(keys, dtype=np.uint64)
        self._order = np.argsort(found, kind="stable")
        self._keys = found[self._order]
        self._file = file.open("rb")

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, row: int) -> Passage: ...
    @overload
    def __getitem__(self, row: slice) -> list[Passage]: ...
    def __getitem__(self, row: int | slice) -> Passage | list[Passage]:
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        start, end = int(self._starts[row]), int(self._ends[row])
        return CorpusRow.model_validate_json(os.pread(self._file.fileno(), end - start, start)).to_passage()

    def row_of(self, id: str) -> int | None:
        key = np.uint64(_key(id))
        for place in range(int(np.searchsorted(self._keys, key)), len(self)):
            if self._keys[place] != key:
                return None
            row = int(self._order[place])
            if self[row].id == id:
                return row
        return None

    def close(self) -> None:
        self._file.close()


class Texts(Sequence[str]):
    """What `of` makes of each passage, when it is asked for."""

    def __init__(self, passages: Sequence[Passage], of: Callable[[Passage], str]) -> None:
        self._passages, self._of = passages, of

    def __len__(self) -> int:
        return len(self._passages)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self._of(passage) for passage in self._passages[row]]
        return self._of(self._passages[row])


def _key(id: str) -> int:
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little")
