"""A flat FAISS index written vector by vector: what it holds never has to fit into memory."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_COUNT = 8  # where the number of vectors stands: after four letters and the width


def write_flat(parts: Iterable[npt.NDArray[Any]], path: Path, head: bytes, stored: str) -> int:
    """Writes the vectors (n, width) of `parts` after `head`, the file of an index of the same make without a vector, and how many there were.

    FAISS's file of a flat index is its head, which ends with how many numbers (bytes, of float16) follow, and then the vectors
    (`faiss/impl/index_write.cpp`).
    """
    count = size = 0
    with path.open("wb") as out:
        out.write(head)
        for vectors in parts:
            data = np.ascontiguousarray(vectors, dtype=stored).tobytes()
            out.write(data)
            count, size = count + len(vectors), size + len(data)
        out.seek(_COUNT)
        out.write(struct.pack("<q", count))
        out.seek(len(head) - 8)
        out.write(struct.pack("<Q", size if stored == "float16" else size // 4))
    return count
