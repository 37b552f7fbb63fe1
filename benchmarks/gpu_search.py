"""Exact search of float16 vectors by torch, beside what memory bandwidth allows and FAISS-GPU where it can be imported.

    python benchmarks/gpu_search.py [--shapes 1000000x384,21000000x768] [--batch 64] [--k 5] [--devices cuda:0] [--checked 8] [--seconds 5]
    python benchmarks/gpu_search.py --shapes 20000x64 --devices cpu,cpu --checked 64     # without a GPU: what it finds, not how fast

Vectors are random unit ones made on the devices, and near-duplicates of one in a hundred of them: random ones alone hide ties. Queries lie
beside vectors. The floor is the time in which the device copies as many bytes as the vectors have, read and written counted both, so a search
at 100 % reads at the speed of a copy. "on the device": queries and hits stay there; "from the host" has both copies. Recall is against
float64 over the float16 vectors, of the first `--checked` queries.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rolecast.retriever.exact import CHUNK, Exact, Sharded

PART = 2**18


def drawn(rows: int, width: int, device: torch.device, seed: int) -> Exact:
    """An index whose vectors were never on the host."""
    index = Exact(np.zeros((1, width), np.float16), device)
    index.ntotal = rows
    index._rows = torch.zeros((-(-rows // CHUNK) * CHUNK, width), dtype=torch.float16, device=device)
    generator = torch.Generator(device=device).manual_seed(seed)
    for at in range(0, rows, PART):
        part = torch.randn((min(PART, rows - at), width), generator=generator, device=device)
        part = torch.nn.functional.normalize(part, dim=1).half()
        near = part[::100].clone()
        near[:, :2] = torch.nextafter(near[:, :2].float(), torch.ones_like(near[:, :2], dtype=torch.float32)).half() + 2**-13
        part[1 : 1 + 100 * len(near) : 100][: len(near)] = near[: len(part[1::100])]
        index._rows[at : at + len(part)] = part
        index._longest = max(index._longest, float(part.float().norm(dim=1).max()))
    return index


def sharded(shards: Sequence[Exact]) -> Exact | Sharded:
    if len(shards) == 1:
        return shards[0]
    index = Sharded(np.zeros((len(shards), shards[0].d), np.float16), [shard._device for shard in shards])
    index._shards = list(shards)
    sizes = [shard.ntotal for shard in shards]
    index._starts, index.ntotal = np.cumsum([0, *sizes])[:-1], sum(sizes)
    return index


def queries_of(shards: Sequence[Exact], batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    taken = [shards[n % len(shards)]._rows[(n * 100) % shards[0].ntotal].float().cpu() for n in range(batch)]
    away = torch.randn((batch, shards[0].d), generator=generator) * 0.3 / shards[0].d ** 0.5
    return torch.nn.functional.normalize(torch.stack(taken) + away, dim=1)


def recall(index: Exact | Sharded, shards: Sequence[Exact], queries: Tensor, k: int) -> float:
    """Share of the k nearest that are found. Of equal scores any will do."""
    found, _ = index.search(queries.numpy(), k)
    exact = []
    for shard in shards:
        asked = queries.double().to(shard._device)
        for at in range(0, shard.ntotal, PART):
            scores = asked @ shard._rows[at : min(at + PART, shard.ntotal)].double().T
            exact.append(scores.topk(min(k, scores.shape[1]), dim=1)[0].cpu())
    last = torch.cat(exact, dim=1).topk(k, dim=1)[0][:, -1:].numpy()
    return float((found >= last - 1e-12).mean())


def seconds_of(work: Callable[[], Any], devices: Sequence[torch.device], seconds: float) -> float:
    def done() -> None:
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    for _ in range(3):
        work()
    done()
    times, end = list[float](), time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begun = time.perf_counter()
        work()
        done()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def bandwidth(device: torch.device, seconds: float) -> float:
    """Bytes a second that a copy on the device reads and writes."""
    size = 2**30 if device.type == "cuda" else 2**26
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), [device], seconds)


def faiss_gpu(shards: Sequence[Exact], queries: Tensor, k: int, seconds: float) -> str:
    """FAISS's flat index with float16 storage on the first device."""
    try:
        import faiss

        resources = faiss.StandardGpuResources()
    except (ImportError, AttributeError):
        return "FAISS-GPU is not installed here"
    if len(shards) > 1 or shards[0]._device.type != "cuda":
        return "FAISS-GPU is measured on one GPU"
    options = faiss.GpuIndexFlatConfig()
    options.useFloat16, options.device = True, shards[0]._device.index or 0
    index = faiss.GpuIndexFlatIP(resources, shards[0].d, options)
    try:
        for at in range(0, shards[0].ntotal, PART):
            index.add(shards[0]._rows[at : min(at + PART, shards[0].ntotal)].float().cpu().numpy())
    except RuntimeError as error:  # twice the vectors may be more than the device has
        return f"FAISS-GPU: {' '.join(str(error).split())[:120]}"
    asked = queries.numpy()
    return f"FAISS-GPU from the host {1000 * seconds_of(lambda: index.search(asked, k), [shards[0]._device], seconds):.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="1000000x384,21000000x768")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--checked", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    devices = [torch.device(name) for name in options.devices.split(",")]
    speed = min(bandwidth(device, 1.0) for device in devices)
    names = [torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU" for device in devices]
    print(f"{', '.join(names)}, torch {torch.__version__}: a copy moves {speed / 1e9:,.0f} GB/s")
    for shape in options.shapes.split(","):
        rows, width = map(int, shape.split("x"))
        print("\n    ".join(measured(rows, width, devices, speed, options)), flush=True)


def measured(rows: int, width: int, devices: Sequence[torch.device], speed: float, options: argparse.Namespace) -> list[str]:
    shares = np.diff(np.linspace(0, rows, len(devices) + 1).round().astype(int))
    shards = [drawn(int(share), width, device, n) for n, (share, device) in enumerate(zip(shares, devices, strict=True))]
    index, queries = sharded(shards), queries_of(shards, options.batch)
    floor, asked = int(max(shares)) * width * 2 / speed, queries.numpy()
    lines = [f"{rows:,} × {width}, batch {options.batch}, k = {options.k}: floor {1000 * floor:.2f} ms"]
    if len(shards) == 1:
        there = queries.to(devices[0])
        with torch.inference_mode():
            taken = seconds_of(lambda: shards[0].nearest(there, options.k), devices, options.seconds)
        lines.append(f"on the device {1000 * taken:.2f} ms, {floor / taken:.0%} of the floor")
    taken = seconds_of(lambda: index.search(asked, options.k), devices, options.seconds)
    lines.append(f"from the host {1000 * taken:.2f} ms, {floor / taken:.0%} of the floor, {options.batch / taken:,.0f} queries/s")
    lines.append(f"recall@{options.k} {recall(index, shards, queries[: options.checked], options.k):.4f} of {options.checked} queries")
    lines.append(faiss_gpu(shards, queries, options.k, options.seconds))
    return lines


if __name__ == "__main__":
    main()
