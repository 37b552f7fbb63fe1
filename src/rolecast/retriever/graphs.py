"""Kernels that are recorded once and launched together: some forty small ones take a GPU less time than Python needs to launch them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST = 64  # queries of a batch that is recorded
MOST = 64  # results of each: the memory that a recording works in stays its own
KEPT = 4  # recordings


@dataclass(frozen=True, slots=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    queries: Tensor
    results: tuple[Tensor, ...]


class Recorded:
    """`play` of queries (q, d) and k, whose results are tensors (q, …) that depend on nothing else, each row on its own query. It must not wait
    for the GPU. The results are overwritten by the next call."""

    def __init__(self, play: Callable[[Tensor, int], tuple[Tensor, ...]]) -> None:
        self._play = play
        self._recordings: OrderedDict[tuple[int, int], _Recording] = OrderedDict()

    def __call__(self, queries: Tensor, k: int) -> tuple[Tensor, ...]:
        if len(queries) > LARGEST or k > MOST:
            return self._play(queries, k)
        size = 1 << (len(queries) - 1).bit_length()
        if (size, k) not in self._recordings:
            self._recordings[size, k] = self._record(queries, size, k)
            if len(self._recordings) > KEPT:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end((size, k))
        recording = self._recordings[size, k]
        recording.queries[: len(queries)] = queries
        with torch.cuda.device(queries.device):
            recording.graph.replay()
        return tuple(result[: len(queries)] for result in recording.results)

    def _record(self, queries: Tensor, size: int, k: int) -> _Recording:
        held = torch.zeros((size, queries.shape[1]), dtype=queries.dtype, device=queries.device)
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(queries.device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(queries.device):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._play(held, k)  # what is compiled and reserved on first use must not be recorded
            stream.synchronize()
            # Other threads of the service, which encode, go on meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                results = self._play(held, k)
            torch.cuda.current_stream().wait_stream(stream)
        return _Recording(graph, held, results)
