"""The agent over a vLLM server, beside that server by itself; and how long a new version takes to speak.

    python benchmarks/agent_vllm.py serve   --model DIR | --shape 135m|8b|tiny [--tokenizer DIR] [--questions 256] [--reply 0] [--repeats 5]
    python benchmarks/agent_vllm.py publish --model DIR [--rank 16] [--engines vllm,vllm_http] [--versions 10]

serve    agent   questions to the agent's /v1/chat/completions, all at once; the agent, a process of its own, plays DECOR at the server
         server  the same calls straight to the server's /v1/completions: prompts and lengths as recorded, an episode's one after the other
         Both ask one vLLM server, in turns, with an emptied prefix cache; the first round is not counted. Episodes are those of the
         method's teacher (recorded.py), replies have forced lengths, searches are answered at once
publish  seconds from weights in the learner's memory to the first token that they speak: write (adapter, tokenizer, canaries), load
         (with the canary on the engine's own log-probs), first (one token of a short prompt), on an idle engine

Prints medians with lowest and highest; for serve the median of the rounds' ratios of output tokens/s.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import multiprocessing
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import torch
from recorded import Answers, Call, Record, from_teacher
from shapes import SHAPES, card, write_shape

from rolecast.launching.ranks import free_port
from rolecast.methods.base import Method
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.engines import vllm_http
from rolecast.rollout.engines.settings import VllmConfig, VllmHttpConfig
from rolecast.rollout.engines.vllm import VllmEngine
from rolecast.rollout.engines.vllm_api import ENVIRONMENT
from rolecast.rollout.engines.vllm_http import VllmHttpEngine
from rolecast.rollout.render import Renderer
from rolecast.service.lines import Lines
from rolecast.types import Version
from rolecast.weights.canary import Canary, canary
from rolecast.weights.models import CPU, DTYPES, read_model, read_tokenizer
from rolecast.weights.placed import Placed, place_version
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import FROZEN, Casting, assemble
from rolecast.weights.versions import write_version
from rolecast.world.tokenizer import demo_tokenizer

NEVER = "\x00never said"
READY = 600.0  # seconds that a server has to start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for run in (serve, publish):
        asked = commands.add_parser(run.__name__)
        asked.set_defaults(run=run)
        asked.add_argument("--model", type=Path)
        asked.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
        asked.add_argument("--memory", type=float, default=0.5)
        asked.add_argument("--context", type=int, default=4096)
        asked.add_argument("--eager", action="store_true")
        if run is serve:
            asked.add_argument("--shape", choices=sorted(SHAPES))
            asked.add_argument("--tokenizer", type=Path)
            for name, default in (("questions", 256), ("reply", 0), ("batch", 512), ("repeats", 5), ("turns", 4), ("k", 5)):
                asked.add_argument(f"--{name}", type=int, default=default)
            asked.add_argument("--prompts", choices=["instruct", "compact"], default="instruct")
        else:
            asked.add_argument("--rank", type=int, default=16)
            asked.add_argument("--versions", type=int, default=10)
            asked.add_argument("--engines", default="vllm,vllm_http")
    args = parser.parse_args()
    if (args.model is None) == (getattr(args, "shape", None) is None):
        parser.error("give a --model" + (" or a --shape" if args.run is serve else ""))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.getLogger("rolecast").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        args.run(args, Path(scratch))


def until_ready(url: str, alive: Any) -> None:
    deadline = time.monotonic() + READY
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        if not alive() or time.monotonic() > deadline:
            raise SystemExit(f"{url} is not ready")
        time.sleep(0.5)


@contextlib.contextmanager
def server(model: Path, args: argparse.Namespace, log: Path, *flags: str) -> Iterator[str]:
    """A vLLM server, with what it said in `log`."""
    port = free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={model}", "--served-model-name=base", "--host=127.0.0.1",
        f"--port={port}", f"--dtype={args.dtype}", "--generation-config=vllm", "--logprobs-mode=processed_logprobs", "--enable-prefix-caching",
        f"--max-model-len={args.context}", f"--gpu-memory-utilization={args.memory}", *flags, *(["--enforce-eager"] if args.eager else []),
    ]  # fmt: skip
    environment = {**os.environ, **ENVIRONMENT, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"}
    with log.open("w") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
    try:
        until_ready(f"http://127.0.0.1:{port}/health", lambda: process.poll() is None)
        yield f"http://127.0.0.1:{port}"
    except SystemExit:
        print(log.read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        process.terminate()
        process.wait(60)


# serve


def serve(args: argparse.Namespace, scratch: Path) -> None:
    method = decor(args)
    place = args.tokenizer or args.model
    tokenizer = read_tokenizer(place) if place else demo_tokenizer(tags=method.tags)
    model = args.model or write_shape(args.shape, tokenizer, scratch / "model")
    record = from_teacher(method, Renderer(tokenizer, method.tags), args.questions, 1, args.reply, args.context)
    dummy = ("--load-format=dummy",) if args.shape else ()
    with server(model, args, scratch / "log", f"--max-num-seqs={args.batch}", *dummy) as url, agent(args, model, url, record) as ours:
        print(
            f"{args.shape or model.name}, {args.dtype}, vLLM {told_version(url)}, {card()}: {len(record.calls)} questions, {record.turns} calls, "
            f"prompts of {record.prompts / record.turns:.0f} tokens, replies of {record.sampled / record.turns:.0f} (mean)", flush=True,
        )  # fmt: skip
        seconds: dict[str, list[float]] = {"server": [], "agent": []}
        for number in range(args.repeats + 1):
            for name, found in seconds.items():
                reset(url)
                begun = time.perf_counter()
                asyncio.run(straight(url, record) if name == "server" else asked(ours, record))
                if number:
                    found.append(time.perf_counter() - begun)
    print("| side | tokens/s | lowest | highest | calls/s |\n| --- | --- | --- | --- | --- |")
    for name, found in seconds.items():
        speeds = [record.sampled / one for one in found]
        print(
            f"| {name} | {statistics.median(speeds):,.0f} | {min(speeds):,.0f} | {max(speeds):,.0f} | {record.turns / statistics.median(found):,.0f} |"
        )
    ratios = [raw / own for raw, own in zip(seconds["server"], seconds["agent"], strict=True)]
    print(f"agent / server: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def decor(args: argparse.Namespace) -> Method:
    return Decor(DecorConfig(prompts=args.prompts, max_turns=args.turns, k=args.k, max_tokens=args.context // 2, condenser="extractive"))


def told_version(url: str) -> str:
    return str(httpx.get(f"{url}/version").json()["version"])


def reset(url: str) -> None:
    httpx.post(f"{url}/reset_prefix_cache", timeout=60.0).raise_for_status()


def connect(certificates: ssl.SSLContext) -> httpx.AsyncClient:
    # Connections are kept for less long than the server keeps them, five seconds: what goes into one as it is closed has no answer.
    return httpx.AsyncClient(verify=certificates, timeout=600.0, limits=httpx.Limits(keepalive_expiry=2.0))


async def straight(url: str, record: Record) -> None:
    """The record's calls to the server, with what our engine asks of it."""
    lines = Lines(len(record.calls), connect)

    async def episode(calls: list[Call]) -> None:
        for call in calls:
            body = {
                **vllm_http.FIXED, "ignore_eos": True, "model": "base", "prompt": call.ids, "max_tokens": call.length, "temperature": 0.0,
            }  # fmt: skip
            async with lines.turn() as line:
                reply = await line.post(f"{url}/v1/completions", json=body)
            assert len(reply.raise_for_status().json()["choices"][0]["token_ids"]) == call.length

    await asyncio.gather(*map(episode, record.calls))
    await lines.close()


async def asked(url: str, record: Record) -> None:
    lines = Lines(len(record.episodes), connect)

    async def question(text: str) -> None:
        async with lines.turn() as line:
            (await line.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]})).raise_for_status()

    await asyncio.gather(*(question(episode.question.text) for episode in record.episodes))
    await lines.close()


@contextlib.contextmanager
def agent(args: argparse.Namespace, model: Path, url: str, record: Record) -> Iterator[str]:
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=agent_process, args=(args, model, url, record, port), daemon=True)
    process.start()
    try:
        until_ready(f"http://127.0.0.1:{port}/readyz", process.is_alive)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.join(30)


class Forced:
    """Our engine, which samples as many tokens as were recorded for a prompt and then says what was said."""

    def __init__(self, own: VllmHttpEngine, record: Record) -> None:
        self._own = own
        self._calls = {call.ids: call for calls in record.calls for call in calls}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    async def __aenter__(self) -> Any:
        return await self._own.__aenter__()

    async def __aexit__(self, *exc: object) -> None:
        await self._own.__aexit__(*exc)

    async def generate(self, request: GenerateRequest) -> Completion:
        call = self._calls[request.ids]
        done = await self._own.generate(replace(request, max_tokens=call.length, stop=(NEVER,) * len(request.stop)))
        return replace(done, text=call.text, finish="stop")


class Unverified(VllmHttpEngine):
    """Weights that the server made up have no canary."""

    async def _verify(self, *_: object) -> None: ...


def agent_process(args: argparse.Namespace, model: Path, url: str, record: Record, port: int) -> None:
    import uvicorn

    from rolecast.agent.core import Agent
    from rolecast.agent.settings import AgentSettings

    without_kserve()
    from rolecast.agent.app import make_agent

    logging.getLogger("httpx").setLevel(logging.WARNING)

    def opened(settings: AgentSettings, retriever: object) -> Any:
        method = decor(args)
        renderer = Renderer(read_tokenizer(model), method.tags)
        kind = VllmHttpEngine if args.model else Unverified
        engine = kind(VllmHttpConfig(name="vllm_http", url=url, model="base", in_flight=args.questions), renderer, args.dtype)
        published = canary(read_model(model, DTYPES[args.dtype], CPU), renderer.tokenizer) if args.model else Canary((), ())
        engine.load(Placed("bench/0.0", model, model, {"shared": None}, {"shared": published}))
        engine._ends, vllm_http.FIXED = frozenset(), {**vllm_http.FIXED, "ignore_eos": True}
        return Agent("bench", method, Forced(engine, record), Answers(record.found), renderer, args.context)  # type: ignore[arg-type]

    settings = AgentSettings(run="bench", host="127.0.0.1", port=port, max_live=args.questions)
    app, service = make_agent(settings, opened)
    service.status = "ready"
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def without_kserve() -> None:
    """KServe's own routes are left out where it is not installed: nothing asks them here."""
    with contextlib.suppress(ImportError):
        import kserve  # noqa: F401

        return
    stub = ModuleType("rolecast.agent.model")
    stub.TeamModel = lambda *_: None  # type: ignore[attr-defined]
    stub.add_kserve_routes = lambda app: SimpleNamespace(update=lambda model: None)  # type: ignore[attr-defined]
    sys.modules["rolecast.agent.model"] = stub


# publish


def publish(args: argparse.Namespace, scratch: Path) -> None:
    place = torch.device("cuda") if torch.cuda.is_available() else CPU
    tokenizer = read_tokenizer(args.model)
    casting = Casting(frozenset({"shared", FROZEN}), ("shared",), frozen=True)
    lora = LoraConfig(rank=args.rank, alpha=2 * args.rank)
    team = assemble(read_model(args.model, DTYPES[args.dtype], place), tokenizer, casting, lora=lora)
    renderer = Renderer(tokenizer)
    print(f"{args.model.name}, {args.dtype}, {card()}: adapters of rank {args.rank}, {args.versions} versions", flush=True)
    print("| engine | write, s | load, s | first token, s | together, s |\n| --- | --- | --- | --- | --- |")
    for name in args.engines.split(","):
        flags = ("--enable-lora", "--max-loras=2", f"--max-lora-rank={max(8, args.rank)}", "--max-cpu-loras=8")
        with server(args.model, args, scratch / "log", *flags) if name == "vllm_http" else contextlib.nullcontext("") as url:
            if name == "vllm":
                config = VllmConfig(name="vllm", memory=args.memory, eager=args.eager)
                engine: Any = VllmEngine(config, renderer, args.context, args.dtype)
            else:
                engine = VllmHttpEngine(VllmHttpConfig(name="vllm_http", url=url, model="base"), renderer, args.dtype)
            try:
                rows = [published(engine, team, number, args, scratch / name) for number in range(args.versions + 1)][1:]
            finally:
                engine.close()
        columns = [*zip(*rows, strict=True), [sum(row) for row in rows]]
        print(f"| {name} | {' | '.join(map(spread, columns))} |", flush=True)


def spread(found: Sequence[float]) -> str:
    return f"{statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f})"


def published(engine: Any, team: Any, number: int, args: argparse.Namespace, scratch: Path) -> tuple[float, float, float]:
    """Seconds of writing, loading and the first token of one more version."""
    torch.manual_seed(number)
    with torch.no_grad():
        for parameter, weight in team.named_parameters():
            if "lora_B" in parameter:
                weight.normal_(0, 0.02)
    weights: Mapping[str, Any] = team.state_dict()
    folder = scratch / f"{number:06d}"
    begun = time.perf_counter()
    folder.mkdir(parents=True)
    write_version(team, ("shared",), Version("bench", 0, number), weights, folder)
    written = time.perf_counter()
    engine.load(place_version(folder, args.model, {"shared", FROZEN}))
    loaded = time.perf_counter()
    asyncio.run(first(engine, team.tokenizer.encode("Who is the mentor of Bak Bam?", add_special_tokens=False)))
    return written - begun, loaded - written, time.perf_counter() - loaded


async def first(engine: Any, ids: list[int]) -> None:
    async with engine:
        await engine.generate(GenerateRequest(tuple(ids), "shared", 1, (), Sampling(1.0), 0, "first"))


if __name__ == "__main__":
    main()
