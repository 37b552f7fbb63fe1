"""Ids of a corpus and what each stood for, in some 25 bytes each: corpora of tens of millions of passages pass through."""

from __future__ import annotations

import hashlib
from array import array

from rolecast.types import Passage

_FULL = 0.65  # of the places


class SeenPassages:
    """A hash table with open addressing over two arrays: 64 bits of an id, and 64 of its passage. Two of 20 million ids share a key once in
    some 90,000 corpora."""

    def __init__(self) -> None:
        self._count = 0
        self._ids, self._digests = array("Q", bytes(8 << 10)), array("Q", bytes(8 << 10))

    def __len__(self) -> int:
        return self._count

    def __contains__(self, id: str) -> bool:
        return self._ids[self._place(_bits(id))] != 0

    def add(self, passage: Passage) -> bool | None:
        """True if it is new, False if it was there; None if its id stood for another text."""
        key, digest = _bits(passage.id), _bits(f"{passage.title}\x1f{passage.text}")
        place = self._place(key)
        if self._ids[place]:
            return False if self._digests[place] == digest else None
        self._ids[place], self._digests[place] = key, digest
        self._count += 1
        if self._count > _FULL * len(self._ids):
            self._grow()
        return True

    def _place(self, key: int) -> int:
        """Where the key is, or would be."""
        ids, mask = self._ids, len(self._ids) - 1
        place = key & mask
        while ids[place] not in (0, key):
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        ids, digests = self._ids, self._digests
        self._ids, self._digests = array("Q", bytes(16 * len(ids))), array("Q", bytes(16 * len(ids)))
        for key, digest in zip(ids, digests, strict=True):
            if key:
                place = self._place(key)
                self._ids[place], self._digests[place] = key, digest


def _bits(text: str) -> int:
    """Never 0, which is an empty place."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") or 1
