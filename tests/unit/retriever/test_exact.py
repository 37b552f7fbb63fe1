"""Exact search by float16 products against float64, on random vectors and on what they hide: ties and near-duplicates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from rolecast.errors import InputError
from rolecast.retriever import exact
from rolecast.retriever.exact import Exact, Sharded, on_gpus

WIDTH = 48


def drawn(count: int, seed: int = 0, width: int = WIDTH) -> npt.NDArray[np.float16]:
    made = np.random.default_rng(seed).standard_normal((count, width))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float16)


def neighbours(count: int) -> npt.NDArray[np.float16]:
    """Around three directions, each vector some last bits away from the next."""
    base = drawn(3)[np.arange(count) % 3].copy()
    draw = np.random.default_rng(1)
    for row in base:
        for at in draw.integers(0, WIDTH, 4):
            row[at] = np.nextafter(row[at], np.float16(draw.choice([-1, 1])))
    return base


def copies(count: int) -> npt.NDArray[np.float16]:
    return drawn(5)[np.random.default_rng(2).integers(0, 5, count)]


def expected(vectors: npt.NDArray[np.float16], queries: npt.NDArray[np.float32], k: int) -> tuple[Any, Any]:
    scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
    scores = np.round(scores, 15)  # sums of the same products in another order
    rows = np.stack([np.lexsort((np.arange(len(vectors)), -of))[:k] for of in scores])
    return np.take_along_axis(scores, rows, axis=1), rows


def asked(vectors: npt.NDArray[np.float16], count: int = 9) -> npt.NDArray[np.float32]:
    away = np.random.default_rng(3).standard_normal((count, vectors.shape[1])) * 0.05
    return (vectors[np.arange(count) * len(vectors) // count].astype(np.float64) + away).astype(np.float32)


@pytest.mark.parametrize("make", [drawn, neighbours, copies])
@pytest.mark.parametrize(("count", "k"), [(5000, 5), (1025, 40), (33, 33), (7, 3)])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_nearest_are_those_of_float64(make: Any, count: int, k: int, shards: int) -> None:
    vectors = make(count)
    queries = asked(vectors, min(9, count))
    index = Exact(vectors, "cpu", 512) if shards == 1 else Sharded(vectors, ["cpu"] * shards, 512)
    scores, rows = index.search(queries, k)
    wanted, best = expected(vectors, queries, k)
    assert scores == pytest.approx(wanted, abs=1e-13)
    for found, right, of in zip(rows, best, wanted, strict=True):  # the order of what differs by nothing but the order of a sum is open
        assert len(set(found)) == k
        assert set(found) == set(right) or of[-1] == pytest.approx(expected(vectors, queries, count)[0][:, k].max(initial=-1), abs=1e-13)


def test_ties_go_by_row() -> None:
    vectors = np.tile(drawn(1), (300, 1))
    for index in (Exact(vectors, "cpu"), Sharded(vectors, ["cpu"] * 4)):
        assert index.search(vectors[:2].astype(np.float32), 70)[1].tolist() == [list(range(70))] * 2


def test_rounding_of_the_first_pass_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the products of the nearest were off by all that the bound allows."""
    vectors = neighbours(4000)
    queries = asked(vectors)
    index = Exact(vectors, "cpu", 1024)
    _, right = expected(vectors, queries, 5)
    bound = index._bound(torch.from_numpy(queries))[:, None].float() * 0.99
    order = np.argsort(-(queries.astype(np.float64) @ vectors.astype(np.float64).T))
    nearest = torch.zeros((len(queries), 4000 // exact.CHUNK), dtype=torch.bool)
    for number, of in enumerate(order):
        nearest[number, of[:5] // exact.CHUNK] = True
    honest = index._best_of_chunks(torch.from_numpy(queries).half())
    monkeypatch.setattr(index, "_best_of_chunks", lambda _: torch.where(nearest, honest - bound, honest))
    scores, rows = index.search(queries, 5)
    exact_scores = queries.astype(np.float64) @ vectors.astype(np.float64).T
    assert scores == pytest.approx(np.take_along_axis(exact_scores, right, axis=1), abs=1e-13)
    assert all(len(set(found)) == 5 for found in rows)


def test_more_than_there_is_and_nothing_asked() -> None:
    for index in (Exact(drawn(3), "cpu"), Sharded(drawn(3), ["cpu", "cpu"])):
        scores, rows = index.search(drawn(2, 1).astype(np.float32), 5)
        assert scores.shape == rows.shape == (2, 5)
        assert (rows[:, 3:] == -1).all()
        assert (scores[:, 3:] == -np.inf).all()
        assert {*rows[0][:3]} == {0, 1, 2}
        assert index.search(np.empty((0, WIDTH), np.float32), 5)[1].shape == (0, 5)


def test_the_highest_of_many_are_found_by_groups() -> None:
    best = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 64 * 64 * 3 + 5)).astype(np.float32))
    best[0, -1], best[1, 5] = 9.0, 8.0
    high, at = exact._highest(best, 3)
    assert (high == best.topk(3, dim=1)[0]).all()
    assert (best.gather(1, at) == high).all()


def test_vectors_that_float16_cannot_hold_are_refused() -> None:
    with pytest.raises(InputError, match="float16 cannot hold"):
        Exact(np.full((2, 2), 1e6, dtype=np.float32), "cpu")


def test_where_there_is_no_gpu_or_no_room_on_it_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match=r"no GPU here; serve the index by FAISS \(--searched-by faiss\)"):
            on_gpus(drawn(3))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**6, 10**9))
    with pytest.raises(InputError, match=r"3 × 48 vectors take 0\.3 GB of cuda:0, and 0\.0 GB are free; take more GPUs"):
        on_gpus(drawn(3), ["cuda:0"])
    assert isinstance(on_gpus(drawn(3), ["cpu", "cpu"]), Sharded)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a kernel of its own, which needs a GPU")
@pytest.mark.parametrize("make", [drawn, neighbours, copies])
def test_a_gpu_finds_the_same(make: Any) -> None:
    """Batches of sizes that are recorded, that share a recording, that replace one, and that are too large for one; k likewise."""
    vectors = make(5003)
    index, reference = Exact(vectors, "cuda"), Exact(vectors, "cpu")
    for count, k in ((1, 5), (9, 7), (16, 7), (64, 5), (100, 3), (33, 40), (9, 7), (2, 1), (9, 6), (3, 200), (2, 5003), (2, 6000)):
        queries = asked(vectors, count)
        scores, rows = index.search(queries, k)
        wanted, _ = reference.search(queries, k)
        assert scores == pytest.approx(wanted, abs=1e-13), (count, k)
        assert all(len(set(found[:5003])) == min(k, 5003) for found in rows), (count, k)
