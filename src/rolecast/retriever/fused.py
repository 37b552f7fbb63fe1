"""The first pass of an exact search on a GPU, as one kernel: products of float16, and of every chunk of rows the best.

Each row is read once and nothing but the best of a chunk is written, so the pass takes about as long as reading the vectors does.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 128  # of one program
WIDTH = 64  # numbers of a row that are read at once
QUERIES = 64  # of one program at most; tensor cores take 16 at least


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _best(  # type: ignore[no-untyped-def]
    queries, rows, best, count, chunks, asked, width, wide: tl.constexpr, tall: tl.constexpr, together: tl.constexpr, size: tl.constexpr
):  # fmt: skip
    """`wide`: numbers of a row that are read at once. `tall`, `together`: rows and queries of a program. `size`: rows of a chunk."""
    parts = tl.cdiv(asked, together)
    query = tl.program_id(0) % parts * together + tl.arange(0, together)  # programs of the same rows follow each other: the cache has them
    tile = (tl.program_id(0) // parts).to(tl.int64)
    row = tile * tall + tl.arange(0, tall)
    scores = tl.zeros((tall, together), tl.float32)
    for at in range(0, width, wide):
        column = at + tl.arange(0, wide)
        read = tl.load(
            rows + row[:, None] * width + column[None, :], mask=(row[:, None] < count) & (column[None, :] < width), other=0.0,
            eviction_policy="evict_first",
        )  # fmt: skip
        asking = tl.load(
            queries + query[None, :] * width + column[:, None], mask=(query[None, :] < asked) & (column[:, None] < width), other=0.0
        )
        scores = tl.dot(read, asking, scores)
    scores = tl.where(row[:, None] < count, scores, float("-inf"))
    highest = tl.max(tl.reshape(scores, (tall // size, size, together)), axis=1)
    chunk = tile * (tall // size) + tl.arange(0, tall // size)
    place = best + query[None, :].to(tl.int64) * chunks + chunk[:, None]
    tl.store(place, highest, mask=(query[None, :] < asked) & (chunk[:, None] < chunks))


def best_of_chunks(queries: Tensor, rows: Tensor, count: int, chunk: int) -> Tensor:
    """float32, (queries, chunks): the highest score of every `chunk` rows among the first `count`, −inf where there are none.

    `queries` (q, d) and `rows` (a multiple of `chunk`, d): float16, contiguous, on one GPU. `chunk` divides 128.
    """
    chunks = len(rows) // chunk
    best = torch.empty((len(queries), chunks), dtype=torch.float32, device=rows.device)
    asked = min(QUERIES, max(16, triton.next_power_of_2(len(queries))))
    programs = triton.cdiv(len(queries), asked) * triton.cdiv(len(rows), ROWS)
    with torch.cuda.device(rows.device):  # a kernel is launched where the thread is
        _best[(programs,)](
            queries, rows, best, count, chunks, len(queries), rows.shape[1], WIDTH, ROWS, asked, chunk, num_warps=8, num_stages=4
        )
    return best
