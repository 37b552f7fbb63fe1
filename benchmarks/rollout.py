"""Our whole rollout beside vLLM itself: recorded DECOR episodes with forced lengths, the same calls with the same dependencies.

    python benchmarks/rollout.py --model DIR [--questions 64] [--group 8] [--reply 0] [--repeats 5] [--dtype bfloat16]
    python benchmarks/rollout.py --shape 135m|8b|tiny [--tokenizer DIR] …
    python benchmarks/rollout.py --model DIR --episodes RUN/rl/trajectories --index RUN/index …
    python benchmarks/rollout.py --instant …

ours   coordinator, worker, lanes, Env and the method's coroutine, through our engine to vLLM; searches and verdicts are answered at once
raw    vLLM's own AsyncLLM: an asyncio task an episode, each call's prompt and length as recorded, one after the other, and nothing else.
       It has the same sampling parameters, with log-probs, and no text is made
same   as raw, with as many stop strings as ours looks for: vLLM makes text for those. same / raw is what they cost vLLM itself
bare   (with --bare) as raw, without log-probs

All in one process with one engine core: the sides take turns, the prefix cache is emptied before each, and the first round is not counted.
A request ends at its forced length alone: no token ends a turn, and ours looks for as many stop strings as the role has, which are never said.
Whether ours sent the recorded prompts is checked.

Episodes: of the method's teacher on throw-away worlds (--questions, --group), or recorded ones (--episodes, --index). --reply N forces
another length on every reply. --shape: random weights, which vLLM makes up, with a tokenizer's texts (the demo's, where none is given).
--instant: an engine that answers at once, without vLLM: the CPU time that our side takes by itself. --profile prints where ours spends it.

Prints output tokens/s (prefill included) as medians with lowest and highest, and the medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from recorded import Answers, Approval, Call, Record, from_shards, from_teacher
from shapes import SHAPES, card, write_shape

from rolecast.leasing import Handshake
from rolecast.loops import OwnLoop
from rolecast.methods.base import Method
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.collect import Collector
from rolecast.rollout.engines import vllm_api
from rolecast.rollout.engines.settings import VllmConfig
from rolecast.rollout.engines.vllm import VllmEngine, parameters
from rolecast.rollout.render import Renderer
from rolecast.rollout.rollouts import Rollouts
from rolecast.stages.publish import local_rollouts
from rolecast.types import Version
from rolecast.weights.canary import Canary, canary
from rolecast.weights.models import CPU, DTYPES, read_model, read_tokenizer
from rolecast.weights.placed import Placed
from rolecast.world.tokenizer import demo_tokenizer

NEVER = "\x00never said"
SAMPLING = Sampling(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a Hugging Face model directory with its tokenizer")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="random weights of this shape instead")
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer's directory, for --shape and --instant")
    for name, default in (
        ("questions", 64),
        ("group", 8),
        ("reply", 0),
        ("context", 4096),
        ("batch", 512),
        ("in-flight", 1024),
        ("repeats", 5),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--episodes", type=Path, nargs="+", default=[], help="folders of recorded trajectories")
    parser.add_argument("--index", type=Path, help="the index that they searched")
    parser.add_argument("--prompts", choices=["instruct", "compact"], default="instruct")
    parser.add_argument("--turns", type=int, default=4, help="searches of an episode at most")
    parser.add_argument("--k", type=int, default=5, help="passages of a search")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--memory", type=float, default=0.85)
    for flag in ("eager", "bare", "instant", "profile"):
        parser.add_argument(f"--{flag}", action="store_true")
    args = parser.parse_args()
    if not args.instant and (args.model is None) == (args.shape is None):
        parser.error("give either --model or --shape")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.getLogger("rolecast").setLevel(logging.WARNING)
    method = Decor(DecorConfig(prompts=args.prompts, max_turns=args.turns, k=args.k, max_tokens=args.context // 2, condenser="extractive"))
    place = args.tokenizer or args.model
    renderer = Renderer(read_tokenizer(place) if place else demo_tokenizer(tags=method.tags), method.tags)
    record = recorded(args, method, renderer)
    print(
        f"{len(record.calls)} episodes, {record.turns} calls: prompts of {record.prompts / record.turns:.0f} tokens, "
        f"replies of {record.sampled / record.turns:.0f} (mean), longest episode {max(map(len, record.calls))} calls", flush=True,
    )  # fmt: skip
    if args.instant:
        instant(args, method, renderer, record)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            compared(args, method, renderer, record, Path(scratch))


def recorded(args: argparse.Namespace, method: Method, renderer: Renderer) -> Record:
    if args.episodes:
        if args.index is None:
            raise SystemExit("--episodes needs the --index that they searched")
        return from_shards(method, renderer, args.episodes, args.index, args.reply, args.context)
    return from_teacher(method, renderer, args.questions, args.group, args.reply, args.context)


class Replayed:
    """`Engine` that has another one sample as many tokens as were recorded, and then says what was said."""

    def __init__(self, record: Record, asked: Any) -> None:
        self.version = ""
        self.branches = 0
        self._asked = asked
        self._calls = {call.key: call for calls in record.calls for call in calls}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def generate(self, request: GenerateRequest) -> Completion:
        call = self._calls[request.key]
        assert request.ids == call.ids, f"{request.key} was asked otherwise than it is recorded"
        done = await self._asked.generate(replace(request, max_tokens=call.length, stop=(NEVER,) * len(request.stop)))
        assert len(done.ids) == call.length, f"{request.key} sampled {len(done.ids)} tokens, {call.length} were to be forced"
        return Completion(done.ids, done.logprobs, call.text, "stop")


class Instant:
    """Answers with the prompt's last tokens."""

    async def generate(self, request: GenerateRequest) -> Completion:
        await asyncio.sleep(0)
        return Completion(request.ids[-1:] * request.max_tokens, (-1.0,) * request.max_tokens, "", "stop")


class MadeUp(VllmEngine):
    """vLLM with weights that it makes up: no canary can be known of them."""

    async def _verify(self, *_: object) -> None: ...


class DummyApi:
    """`vllm_api`, whose engine reads no weights."""

    def __getattr__(self, name: str) -> Any:
        return getattr(vllm_api, name)

    def start(self, arguments: Mapping[str, Any]) -> Any:
        return vllm_api.start({**arguments, "load_format": "dummy"})


def rollouts_of(
    args: argparse.Namespace, method: Method, renderer: Renderer, record: Record, engine: Any, home: OwnLoop | None = None
) -> Rollouts:
    collector = Collector(
        method, Replayed(record, engine), Answers(record.found), Approval(), renderer, 0, args.context, args.in_flight, lockstep=False,
        runner=(home or OwnLoop()).runner,
    )  # fmt: skip
    rollouts = local_rollouts(collector, "bench", Handshake("", "", "", "", "", ""))
    rollouts.publish(Version("bench", 0, 0))
    return rollouts


def loaded(args: argparse.Namespace, renderer: Renderer, scratch: Path, home: OwnLoop) -> VllmEngine:
    config = VllmConfig(name="vllm", max_batch=args.batch, memory=args.memory, eager=args.eager)
    if args.shape:
        folder = write_shape(args.shape, renderer.tokenizer, scratch / "model")
        engine: VllmEngine = MadeUp(config, renderer, args.context, args.dtype, api=DummyApi(), home=home)
        published = Canary((), ())
    else:
        folder = args.model
        engine = VllmEngine(config, renderer, args.context, args.dtype, home=home)
        published = canary(read_model(folder, DTYPES[args.dtype], CPU), renderer.tokenizer)
    engine.load(Placed("bench/0.0", folder, folder, {"shared": None}, {"shared": published}))
    engine._ends, vllm_api.FIXED = frozenset(), {**vllm_api.FIXED, "ignore_eos": True}  # forced lengths
    return engine


def compared(args: argparse.Namespace, method: Method, renderer: Renderer, record: Record, scratch: Path) -> None:
    home = OwnLoop()  # as in training
    engine = loaded(args, renderer, scratch, home)
    rollouts = rollouts_of(args, method, renderer, record, engine, home)
    print(f"{args.shape or args.model.name}, {args.dtype}, vLLM {version()}, {card()}: batch {args.batch}", flush=True)

    def ours() -> None:
        done = rollouts.collect(record.episodes, SAMPLING, "train")
        assert len(done) == len(record.episodes)

    def vllm(stops: bool = False, **other: Any) -> Callable[[], None]:
        return lambda: home.wait(raw(engine, record, stops, other))

    sides = {"raw": vllm(), "same": vllm(stops=True), "ours": ours}
    if args.bare:
        sides["bare"] = vllm(logprobs=None)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    try:
        for number in range(args.repeats + 1):
            for name, side in sides.items():
                assert home.wait(engine._llm.reset_prefix_cache()) is not False, "requests are in flight between two rounds"
                renderer.forget()
                begun = time.perf_counter()
                side()
                if number:
                    seconds[name].append(time.perf_counter() - begun)
        if args.profile:
            profiled(ours, renderer)
    finally:
        engine.close()
    told(record, seconds)


def version() -> str:
    import vllm

    return str(vllm.__version__)


async def raw(engine: VllmEngine, record: Record, stops: bool, other: Mapping[str, Any]) -> None:
    """The record's calls, each episode's one after the other. `stops`: with strings that would end them."""

    async def episode(calls: list[Call]) -> None:
        for call in calls:
            ends = (NEVER,) * call.stops if stops else ()
            asked = GenerateRequest(call.ids, "shared", call.length, ends, SAMPLING, 0, call.key)
            output = await vllm_api.answer(engine._llm, call.ids, {**parameters(asked, frozenset(), False), **other}, call.key, None)
            assert len(output.outputs[0].token_ids) == call.length

    await asyncio.gather(*map(episode, record.calls))


def told(record: Record, seconds: Mapping[str, list[float]]) -> None:
    print("| side | tokens/s | lowest | highest | prompt tokens/s | calls/s |\n| --- | --- | --- | --- | --- | --- |")
    for name, found in seconds.items():
        median = statistics.median(found)
        print(
            f"| {name} | {record.sampled / median:,.0f} | {record.sampled / max(found):,.0f} | {record.sampled / min(found):,.0f} "
            f"| {record.prompts / median:,.0f} | {record.turns / median:,.0f} |"
        )
    pairs = [("ours", other) for other in seconds if other != "ours"] + [("same", "raw")]
    for side, other in pairs:  # of what each does in a second
        ratios = [o / s for o, s in zip(seconds[other], seconds[side], strict=True)]
        print(f"{side} / {other}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def instant(args: argparse.Namespace, method: Method, renderer: Renderer, record: Record) -> None:
    rollouts = rollouts_of(args, method, renderer, record, Instant())

    def ours() -> None:
        rollouts.collect(record.episodes, SAMPLING, "train")

    found = []
    for number in range(args.repeats + 1):
        renderer.forget()
        begun = time.process_time()
        ours()
        if number:
            found.append(time.process_time() - begun)
    each = [1e6 * seconds / record.turns for seconds in found]
    print(f"{card()}: our side takes {statistics.median(each):,.0f} µs of CPU a call ({min(each):,.0f} to {max(each):,.0f})")
    if args.profile:
        profiled(ours, renderer)


def profiled(side: Callable[[], None], renderer: Renderer) -> None:
    """CPU time of the thread that plays; vLLM's front end has another."""
    renderer.forget()
    profile = cProfile.Profile(time.thread_time)
    profile.runcall(side)
    pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
