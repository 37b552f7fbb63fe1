"""What our engine costs beside vLLM itself: the same calls with the same dependencies, in one process, on one card.

    python benchmarks/vllm_engine.py MODEL [--episodes 256] [--turns 4] [--prompt 256] [--reply 64] [--read 128] [--repeats 5] [--dtype bfloat16]

An episode is a chain of turns: each prompt is the last one with its reply and with what was read since. Replies have a forced length, so
both sides sample as many tokens. `raw` asks vLLM in its own event loop and looks at nothing; `ours` asks through `Engine`, as rollouts
do: another thread, log-probs, our decoding, the search for a stop. The two take turns after a first round that is not counted, and
every round has prompts of its own, so that neither finds the other's in the prefix cache.

Prints output tokens/s (prefill included) as medians, the lowest and highest of them, and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from shapes import card

from rolecast.ports import GenerateRequest, Sampling
from rolecast.rollout.engines import vllm_api
from rolecast.rollout.engines.settings import VllmConfig
from rolecast.rollout.engines.vllm import VllmEngine, parameters
from rolecast.rollout.render import Renderer
from rolecast.weights.canary import canary
from rolecast.weights.models import CPU, DTYPES, read_model, read_tokenizer
from rolecast.weights.placed import Placed

Ids = tuple[int, ...]
Turn = Callable[[Ids, str], Awaitable[Ids]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a Hugging Face model directory with its tokenizer")
    for name, default in (("episodes", 256), ("turns", 4), ("prompt", 256), ("reply", 64), ("read", 128), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--memory", type=float, default=0.85)
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()
    with_engine(args)


def with_engine(args: argparse.Namespace) -> None:
    tokenizer = read_tokenizer(args.model)
    context = args.prompt + args.turns * (args.reply + args.read) + 8
    config = VllmConfig(name="vllm", max_batch=args.episodes, memory=args.memory, eager=args.eager)
    engine = VllmEngine(config, Renderer(tokenizer), context, args.dtype)
    published = canary(read_model(args.model, DTYPES[args.dtype], CPU), tokenizer)
    engine.load(Placed("bench/0.0", args.model, args.model, {"shared": None}, {"shared": published}))
    engine._ends, vllm_api.FIXED = frozenset(), {**vllm_api.FIXED, "ignore_eos": True}  # forced lengths
    print(
        f"{args.model.name}, {args.dtype}, {card()}: {args.episodes} episodes of {args.turns} turns, {args.reply} tokens each", flush=True
    )
    speeds: dict[str, list[float]] = {"raw": [], "ours": []}
    for number in range(args.repeats + 1):
        for name in speeds:
            speed = measured(engine, args, name, seed=2 * number + (name == "raw"), vocabulary=len(tokenizer))
            if number:
                speeds[name].append(speed)
    engine.close()
    print("| calls | tokens/s | lowest | highest |\n| --- | --- | --- | --- |")
    for name, found in speeds.items():
        print(f"| {name} | {statistics.median(found):,.0f} | {min(found):,.0f} | {max(found):,.0f} |")
    print(f"ours / raw: {statistics.median(o / r for o, r in zip(speeds['ours'], speeds['raw'], strict=True)):.3f}")


def measured(engine: VllmEngine, args: argparse.Namespace, name: str, seed: int, vocabulary: int) -> float:
    """Output tokens/s of one round."""
    draw = random.Random(seed)
    prompts = [tuple(draw.randrange(vocabulary) for _ in range(args.prompt)) for _ in range(args.episodes)]
    read = tuple(draw.randrange(vocabulary) for _ in range(args.read))
    sampling = Sampling(1.0)

    def request(ids: Ids, key: str) -> GenerateRequest:
        return GenerateRequest(ids, "shared", args.reply, ("\x00never said",), sampling, 0, key)

    async def ours(ids: Ids, key: str) -> Ids:
        return (await engine.generate(request(ids, key))).ids

    async def raw(ids: Ids, key: str) -> Ids:
        asked = {**parameters(request(ids, key), frozenset(), False), "stop": [], "detokenize": False}
        output = await vllm_api.answer(engine._llm, ids, asked, key, None)
        return tuple(output.outputs[0].token_ids)

    async def episodes(turn: Turn) -> int:
        async def one(number: int, ids: Ids) -> int:
            sampled = 0
            for step in range(args.turns):
                reply = await turn(ids, f"{name}.{seed}.{number}.{step}")
                ids, sampled = (*ids, *reply, *read), sampled + len(reply)
            return sampled

        return sum(await asyncio.gather(*(one(number, ids) for number, ids in enumerate(prompts))))

    begun = time.perf_counter()
    sampled = engine._home.wait(episodes(raw)) if name == "raw" else asyncio.run(episodes(ours))
    return sampled / (time.perf_counter() - begun)


if __name__ == "__main__":
    main()
