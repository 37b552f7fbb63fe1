"""What the transformers engine reserves on a CPU, and its speed against another checkout: SmolLM2-135M's shape, random weights.

    python benchmarks/engine_memory.py --old TREE [--pairs 3] [--requests 24] [--rows 16] [--context 2048] [--dtype float32]

`old` is another checkout of this repository (`git worktree add TREE REVISION`). Every pair runs old and new in turn, in processes of
their own, on the same requests: contexts of very unequal lengths, as an evaluation has them. Without --old only this tree runs, and the
memory alone is said. Prints a Markdown table: the process's peak and what decoding added to it (GiB), output tokens a second (median),
and the ratio of the pairs' speeds, new / old.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHAPE = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": True, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip
LENGTHS = (60, 150, 150, 300, 300, 500, 900)  # tokens of a prompt


def measure(requests: int, rows: int, context: int, new: int, dtype: str) -> dict[str, float]:
    """Runs in a process of its own, with the tree under test on its path."""
    import asyncio
    import resource
    import time
    from functools import partial

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from rolecast.ports import GenerateRequest, Sampling
    from rolecast.rollout.engines.transformers import TransformersEngine
    from rolecast.rollout.render import Renderer
    from rolecast.rollout.scheduler import play
    from rolecast.world.tokenizer import demo_tokenizer

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).to(getattr(torch, dtype)).eval()
    renderer = Renderer(demo_tokenizer())
    # Ids beyond the demo's vocabulary have no text: a model that says something else than a real one is as fast.
    renderer.decode = lambda ids: "x" * len(ids)  # type: ignore[method-assign]
    rng = random.Random(0)
    prompts = [tuple(rng.randrange(3, 49152) for _ in range(rng.choice(LENGTHS))) for _ in range(requests)]
    asked = [
        GenerateRequest(p, "shared", rng.randrange(new // 2, new + 1), (), Sampling(1.0), i, f"{i:05d}") for i, p in enumerate(prompts)
    ]
    before = peak()
    start = time.monotonic()
    engine = TransformersEngine({"shared": model}, renderer, rows, context)
    done = asyncio.run(play([partial(engine.generate, one) for one in asked], engine, len(asked)))
    seconds = time.monotonic() - start
    tokens = sum(len(one.ids) for one in done)
    return {"peak": peak(), "added": peak() - before, "tokens": tokens, "rate": tokens / seconds}


def run(tree: Path, arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__).resolve()), "--measure", *(
        f"--{name}={getattr(arguments, name)}" for name in ("requests", "rows", "context", "new", "dtype")
    )]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}"}
    found: dict[str, float] = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--old", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--new", type=int, default=32, help="Tokens of a reply at most; at least half as many.")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.requests, given.rows, given.context, given.new, given.dtype)))
        return
    trees = {"new": ROOT, **({"old": given.old.resolve()} if given.old else {})}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for pair in range(given.pairs):
        for name in sorted(trees, reverse=bool(pair % 2)):
            found[name].append(run(trees[name], given))
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {given.dtype}, {given.requests} requests, "
          f"{given.rows} rows of {given.context}, {given.pairs} runs each")  # fmt: skip
    print("| tree | peak GiB | added by decoding | tokens/s |\n| --- | --- | --- | --- |")
    for name, runs in found.items():
        rates = ", ".join(f"{one['rate']:.1f}" for one in runs)
        middle = {key: statistics.median(one[key] for one in runs) for key in ("peak", "added", "rate")}
        print(f"| {name} | {middle['peak']:.2f} | {middle['added']:.2f} | {middle['rate']:.1f} ({rates}) |")
    if given.old:
        ratios = [new["rate"] / old["rate"] for new, old in zip(found["new"], found["old"], strict=True)]
        print(f"\nnew / old: median {statistics.median(ratios):.2f} ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
