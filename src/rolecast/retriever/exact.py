"""Exact search on GPUs: products of float16 vectors, and what could be among the nearest settled in float64.

Half of the vectors' bytes are all that a search reads, so its floor is memory bandwidth. Scores are reduced at once to the best of
every `CHUNK` rows, so that next to nothing is written (on a GPU by one kernel, fused.py; on a CPU block by block). The rounding of that pass is bounded: a query whose k-th passage is not further ahead of
all that was left out than the bound says is searched again with twice as many chunks, until it is. So ties and near-duplicates are found whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rolecast.errors import InputError
from rolecast.retriever.graphs import KEPT, LARGEST, Recorded
from rolecast.room import GB

CHUNK = 16  # rows whose best score stands for them
MARGIN = 8  # chunks, and then rows, beyond k that are looked at again
BLOCK = 2**18  # rows of one product on a CPU: at 64 queries their scores are 67 MB
SCRATCH = 2**28  # bytes of candidates that are looked at again
COPIED = 2**16  # rows that go to the device at once


class Exact:
    """`vectors` (n, d), float16 or float32, on a device as float16. As FAISS's index, but that scores are float64 and ties go by row.

    Scores are inner products of float32 queries with the float16 vectors. More than `n` hits are none: row −1, score −inf.
    """

    def __init__(self, vectors: npt.NDArray[Any], device: torch.device | str, block: int = BLOCK) -> None:
        self.ntotal, self.d = vectors.shape
        self._device, self._block = torch.device(device), max(CHUNK, block // CHUNK * CHUNK)
        self._rows = torch.empty((-(-self.ntotal // CHUNK) * CHUNK, self.d), dtype=torch.float16, device=self._device)
        self._rows[self.ntotal :] = 0
        self._longest = 0.0
        for at in range(0, self.ntotal, COPIED):
            with np.errstate(over="ignore"):  # refused below
                part = torch.from_numpy(np.array(vectors[at : at + COPIED], dtype=np.float16)).to(self._device)
            self._rows[at : at + len(part)] = part
            self._longest = max(self._longest, float(part.float().norm(dim=1).max()))
        self._first = Recorded(self._round) if self._device.type == "cuda" else self._round
        self._turn = Lock()
        if not np.isfinite(self._longest):
            raise InputError("a vector has numbers that float16 cannot hold; serve the index by FAISS (--searched-by faiss)")

    def search(self, vectors: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Scores and rows, both (queries, k)."""
        with torch.inference_mode():
            queries = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)).to(self._device)
            scores, rows = self.nearest(queries, k)
            return scores.cpu().numpy(), rows.cpu().numpy()

    def nearest(self, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """As `search`, of float32 queries (q, d) on the device."""
        count = min(k, self.ntotal)
        if not len(queries) or not count:
            nothing = queries.new_empty((len(queries), 0))
            return _padded(nothing.double(), nothing.long(), k)
        with self._turn:
            best, bound, found, at, settled = self._first(queries, count)
            scores, rows = found.clone(), at.clone()
            if settled.all():
                return _padded(scores, rows, k)
            left, width = (~settled).nonzero()[:, 0], 2 * (count + MARGIN)
            while len(left):
                found, at, settled = self._settle(queries[left], best[left], bound[left], count, width)
                done = left[settled]
                scores[done], rows[done] = found[settled], at[settled]
                left, width = left[~settled], 2 * width
        return _padded(scores, rows, k)

    def _round(self, queries: Tensor, k: int) -> tuple[Tensor, ...]:
        """Of each query: the best of every chunk, the bound, and what `_settle` finds among the first of them."""
        best, bound = self._best_of_chunks(queries.half()), self._bound(queries)
        return best, bound, *self._settle(queries, best, bound, k, k + MARGIN)

    def _best_of_chunks(self, queries: Tensor) -> Tensor:
        """(queries, chunks): the highest score of each, as float16 products give it."""
        if self._rows.is_cuda:
            from rolecast.retriever.fused import best_of_chunks  # triton comes with torch for GPUs

            return best_of_chunks(queries, self._rows, self.ntotal, CHUNK)
        best = torch.empty((len(queries), len(self._rows) // CHUNK), dtype=torch.float32, device=self._device)
        for at in range(0, len(self._rows), self._block):
            scores = queries.float() @ self._rows[at : at + self._block].float().T
            if at + self._block >= len(self._rows):
                scores[:, self.ntotal - at :] = -torch.inf  # rows that fill the last chunk
            torch.amax(scores.view(len(queries), -1, CHUNK), dim=2, out=best[:, at // CHUNK : (at + scores.shape[1]) // CHUNK])
        return best

    def _bound(self, queries: Tensor) -> Tensor:
        """By how much a score of the first pass can be off: the query's own rounding (Cauchy-Schwarz), and that of a sum of `d` products in
        float32, of which tensor cores cut bits instead of rounding them."""
        rounded = (queries - queries.half().float()).double().norm(dim=1)
        bound: Tensor = (rounded + self.d * 2.0**-22 * queries.double().norm(dim=1)) * self._longest
        return bound

    def _settle(self, queries: Tensor, best: Tensor, bound: Tensor, k: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Scores and rows of the k best among the rows of the `width` best chunks, and for which queries nothing else can be among them."""
        chunks = best.shape[1]
        taken = min(width, chunks)
        high, which = _highest(best, min(taken + 1, chunks))
        outside = high[:, taken].double() + bound if taken < chunks else torch.full_like(bound, -torch.inf)
        candidates = (which[:, :taken, None] * CHUNK + torch.arange(CHUNK, device=self._device)).flatten(1)
        parts = 1 if width <= 4 * (k + MARGIN) else len(queries)  # of many candidates, one query at a time
        pairs = zip(queries.chunk(parts), candidates.chunk(parts), strict=True)
        found, at, beyond = (torch.cat(part) for part in zip(*(self._rescored(*pair, k, width) for pair in pairs), strict=True))
        return found, at, found[:, -1] > torch.maximum(outside, beyond)

    def _rescored(self, queries: Tensor, candidates: Tensor, k: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """In float32 first, and the best of those in float64: scores and rows of the k best, ties by row, and what no other can exceed."""
        scores = torch.cat(
            [torch.bmm(self._rows[part].float(), queries[:, :, None])[:, :, 0] for part in torch.split(candidates, COPIED, dim=1)], dim=1
        )
        scores.masked_fill_(candidates >= self.ntotal, -torch.inf)
        wide = min(width + CHUNK, scores.shape[1])
        high, place = scores.topk(min(wide + 1, scores.shape[1]), dim=1)
        off = self.d * 2.0**-23 * queries.double().norm(dim=1) * self._longest
        beyond = high[:, wide].double() + off if wide < scores.shape[1] else torch.full_like(off, -torch.inf)
        rows = candidates.gather(1, place[:, :wide])
        exact = torch.bmm(self._rows[rows].double(), queries.double()[:, :, None])[:, :, 0]
        exact.masked_fill_(rows >= self.ntotal, -torch.inf)
        by_row = rows.argsort(dim=1)
        exact, rows = exact.gather(1, by_row), rows.gather(1, by_row)
        exact, order = exact.sort(dim=1, descending=True, stable=True)
        return exact[:, :k], rows.gather(1, order)[:, :k], beyond


def _padded(scores: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """With hits that are none, up to `k` of them."""
    if (short := k - scores.shape[1]) <= 0:
        return scores, rows
    return torch.nn.functional.pad(scores, (0, short), value=-torch.inf), torch.nn.functional.pad(rows, (0, short), value=-1)


def _highest(best: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of each row and where they are. Of many, the best of groups come first: they hold the highest."""
    rows, size = best.shape
    group = 64
    if size < 8 * group * count:
        return best.topk(count, dim=1)
    whole = size // group * group
    _, groups = best[:, :whole].view(rows, -1, group).amax(dim=2).topk(count, dim=1)
    places = (groups[:, :, None] * group + torch.arange(group, device=best.device)).flatten(1)
    places = torch.cat([places, torch.arange(whole, size, device=best.device).expand(rows, -1)], dim=1)
    high, at = best.gather(1, places).topk(count, dim=1)
    return high, places.gather(1, at)


class Sharded:
    """Vectors in equal runs over several devices, searched side by side; the hits of all are merged, ties by row."""

    def __init__(self, vectors: npt.NDArray[Any], devices: Sequence[torch.device | str], block: int = BLOCK) -> None:
        self.ntotal, self.d = vectors.shape
        devices = devices[: self.ntotal]
        ends = np.linspace(0, self.ntotal, len(devices) + 1).round().astype(int)
        self._starts = ends[:-1]
        self._shards = [Exact(vectors[a:b], device, block) for a, b, device in zip(ends[:-1], ends[1:], devices, strict=True)]
        self._pool = ThreadPoolExecutor(len(devices), thread_name_prefix="shard")

    def search(self, vectors: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        parts = list(self._pool.map(lambda shard: shard.search(vectors, k), self._shards))
        scores = np.concatenate([found for found, _ in parts], axis=1)
        rows = np.concatenate([np.where(at < 0, at, at + start) for (_, at), start in zip(parts, self._starts, strict=True)], axis=1)
        order = np.lexsort((rows, -scores), axis=1)[:, :k]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)


def on_gpus(vectors: npt.NDArray[Any], devices: Sequence[torch.device | str] | None = None) -> Exact | Sharded:
    """On every GPU of this process, unless `devices` names others. `InputError` if there is none, or no room on one."""
    devices = devices or [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    if not devices:
        raise InputError("there is no GPU here; serve the index by FAISS (--searched-by faiss), or on a machine that has one")
    share = -(-len(vectors) // len(devices))
    needed = share * vectors.shape[1] * 2 + KEPT * share // CHUNK * LARGEST * 4 + SCRATCH + COPIED * vectors.shape[1] * 6
    for device in map(torch.device, devices):
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else needed
        if free < needed:
            raise InputError(
                f"{len(vectors):,} × {vectors.shape[1]} vectors take {needed / GB:.1f} GB of {device}, and {free / GB:.1f} GB are free; "
                "take more GPUs, or serve the index by FAISS (--searched-by faiss)"
            )
    return Exact(vectors, devices[0]) if len(devices) == 1 else Sharded(vectors, devices)
