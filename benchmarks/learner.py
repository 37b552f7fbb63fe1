"""The learner's whole step on one card: credit, and an update in float32 masters; beside TRL, with adapters, and over DeepSpeed.

    python benchmarks/learner.py trl MODEL [--groups 8] [--members 8] [--prompt 256] [--own 64:448] [--budget 32768] [--repeats 5]
    python benchmarks/learner.py lora --shape tiny|135m|1.5b|8b [--rank 16] [--rows 64] [--lengths 256:1024] [--budget 16384]
    python benchmarks/learner.py zero --shape 1.5b [--zero 2] [--budget 8192]

trl    one GRPO step on the same prompts, completions and batch, by TRL's GRPOTrainer with its generation replaced by the recorded replies, in
       every setting that runs (each is listed), and by ours; ours / the best of theirs
lora   adapters over a frozen base with random weights
zero   full weights, plain torch and DeepSpeed on one rank in turn, and their ratio

A step begins with sampled replies and ends with new weights; an update that is one pass over its batch, as these are, makes no scoring pass.
Medians over rounds after two that are not counted. MFU = (4 · N_frozen + 6 · N_trained + attention) × real tokens / peak, without recomputation
and padding.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from packing import PEAKS, between, wait
from shapes import SHAPES, card, commands_of
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.settings import PLAIN, BackendConfig, OptimizerConfig, Packing
from rolecast.learner.step import reinforce
from rolecast.types import Action, Objective, Observation, PolicyTerm, Thread, Unit
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import Casting, assemble
from rolecast.world.tokenizer import demo_tokenizer

POLICY = PolicyTerm("token", (0.2, 0.2))
OPTIMIZER = OptimizerConfig(name="adamw")
LR = 1e-6
WARM = 2


def episodes(groups: int, members: int, prompt: int, own: tuple[int, int], seed: int = 0) -> tuple[list[Thread], list[Unit]]:
    """Groups that share a prompt; everything behind it is sampled, and members' rewards differ."""
    draw = np.random.default_rng(seed)
    threads, units = [], []
    for group in range(groups):
        shared = Observation(tuple(draw.integers(10, 500, prompt).tolist()), "")
        for member in range(members):
            name, ids = f"{group}.{member}", tuple(draw.integers(10, 500, int(draw.integers(own[0], own[1] + 1))).tolist())
            threads.append(Thread(name, "r", "shared", turns=[shared, Action(name, ids, (-6.0,) * len(ids), "v", "", "stop")]))
            units.append(Unit(name, (name,), float(member % 2), "o", baseline=str(group), tag="r", group=str(group), rollout=name))
    return threads, units


def random_model(shape: str, device: torch.device) -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(**SHAPES[shape], bos_token_id=None, eos_token_id=0, pad_token_id=0, dtype=dtype_on(device))
    torch.set_default_dtype(dtype_on(device))
    with device:
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model


def dtype_on(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def learner_of(
    model: PreTrainedModel, packing: Packing, budget: int, backend: BackendConfig = PLAIN, lora: LoraConfig | None = None
) -> Learner:
    team = assemble(model, demo_tokenizer(), Casting(frozenset({"shared"}), ("shared",)), lora=lora)
    team.to(model.device)
    objective = Objective("o", "shared", LR, "group", POLICY)
    return make_learner([objective], team, OPTIMIZER, 1000, 0, max_tokens=budget, packing=packing, backend=backend)


def timed(step: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    found = []
    for number in range(WARM + repeats):
        wait(device)
        start = time.perf_counter()
        step()
        wait(device)
        if number >= WARM:
            found.append(time.perf_counter() - start)
    return found


def work(model: PreTrainedModel, threads: Sequence[Thread], adapters: int = 0) -> float:
    """Floating point operations of an update. `adapters`: their weights; without them all weights are trained."""
    config = model.config
    layers = (
        sum(p.numel() for name, p in model.base_model.named_parameters() if "lora_" not in name) - config.vocab_size * config.hidden_size
    )
    head = config.vocab_size * config.hidden_size
    pair = 12 * config.num_hidden_layers * config.hidden_size
    update = 0.0
    for thread in threads:
        lengths = [len(turn.ids) for turn in thread.turns]
        tokens, asked = sum(lengths), sum(len(action.ids) for action in thread.actions)
        attention = pair * tokens * (tokens + 1) / 2
        often = 4 if adapters else 6
        update += often * (layers * tokens + head * asked) + 6 * adapters * tokens + attention
    return update


def utilisation(flop: float, seconds: float, device: torch.device) -> str:
    peak = next((peak for name, peak in PEAKS.items() if name in card(device)), None)
    return f"{100 * flop / seconds / peak:.1f} %" if peak else ""


def of_lengths(threads: Sequence[Thread]) -> str:
    tokens = [sum(len(turn.ids) for turn in thread.turns) for thread in threads]
    return f"{len(tokens)} rows of {min(tokens)} to {max(tokens)} tokens, {sum(tokens)} in all"


def lora(arguments: argparse.Namespace, device: torch.device) -> None:
    least, most = between(arguments.lengths)
    threads, units = episodes(arguments.rows // 8, 8, least // 2, (least // 2, most - least // 2))
    print(f"{card(device)}, {arguments.shape} with random weights, LoRA rank {arguments.rank}, {of_lengths(threads)}")
    print("| packing | compiled | update, s | step, s | MFU of a step | tokens/s | peak GiB |\n" + "| --- " * 7 + "|", flush=True)
    tokens = sum(len(turn.ids) for thread in threads for turn in thread.turns)
    ways: dict[str, tuple[Packing, bool]] = {"padded": ("off", False), "packed": ("rows", not arguments.eager)}
    for packing, compiled in (ways[way] for way in arguments.ways):
        model = random_model(arguments.shape, device)
        backend = BackendConfig(compile=compiled, recompute=arguments.recompute)
        learner = learner_of(model, packing, arguments.budget, backend, LoraConfig(rank=arguments.rank))
        adapters = sum(p.numel() for _, p in learner.team.trained("shared"))
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        updates: list[float] = []

        def step(learner: Learner = learner, updates: list[float] = updates) -> None:
            reinforce(learner, threads, units)
            updates.append(learner.take_spent()["update"])

        seconds, update = statistics.median(timed(step, arguments.repeats, device)), statistics.median(updates[WARM:])
        flop = work(model, threads, adapters)
        peak = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if device.type == "cuda" else ""
        print(
            f"| {packing} | {'yes' if compiled else 'no'} | {update:.3f} | {seconds:.3f} | {utilisation(flop, seconds, device)} | "
            f"{tokens / seconds:,.0f} | {peak} |", flush=True,
        )  # fmt: skip
        del model, learner, step
        _forget(device)


def zero(arguments: argparse.Namespace, device: torch.device) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29555")):
        os.environ.setdefault(name, value)
    least, most = between(arguments.lengths)
    threads, units = episodes(arguments.rows // 8, 8, least // 2, (least // 2, most - least // 2))
    backends = {"plain": PLAIN, f"DeepSpeed, ZeRO-{arguments.zero}": BackendConfig(name="deepspeed", zero=arguments.zero)}
    learners = {
        name: learner_of(random_model(arguments.shape, device), arguments.packing, arguments.budget, backend)
        for name, backend in backends.items()
    }
    times: dict[str, list[float]] = {name: [] for name in learners}
    for number in range(WARM + arguments.repeats):
        for name, learner in learners.items():
            [found] = timed(lambda learner=learner: reinforce(learner, threads, units), 1, device) if number >= WARM else [0.0]
            if number < WARM:
                reinforce(learner, threads, units)
            else:
                times[name].append(found)
    print(f"{card(device)}, {arguments.shape} with random weights, all trained, {of_lengths(threads)}, packing {arguments.packing}")
    print("| backend | step, s (min to max) | MFU |\n| --- | --- | --- |")
    flop = work(learners["plain"].team.base, threads)
    for name, found in times.items():
        median = statistics.median(found)
        print(f"| {name} | {median:.3f} ({min(found):.3f} to {max(found):.3f}) | {utilisation(flop, median, device)} |")
    plain, other = (statistics.median(found) for found in times.values())
    print(f"DeepSpeed / plain: {other / plain:.3f} of its time")


def trl(arguments: argparse.Namespace, device: torch.device) -> None:
    threads, units = episodes(arguments.groups, arguments.members, arguments.prompt, between(arguments.own))
    print(f"{card(device)}, {arguments.model.name}, {of_lengths(threads)}, {arguments.groups} groups of {arguments.members}")
    print("| whose | setting | step, s (min to max) | MFU | tokens/s | peak GiB |\n" + "| --- " * 6 + "|", flush=True)
    best: dict[str, float] = {}
    last: dict[str, float] = {}
    flop = tokens = 0.0

    def tell(whose: str, setting: str, run: Callable[[], list[float]]) -> None:
        nonlocal flop, tokens
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            found = run()
        except Exception as error:
            print(f"| {whose} | {setting} | does not run: {type(error).__name__}: {' '.join(str(error).split())[:120]} | | | |", flush=True)
            _forget(device)
            return
        median = statistics.median(found)
        best[whose], last[whose] = min(best.get(whose, median), median), median
        peak = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if device.type == "cuda" else ""
        print(
            f"| {whose} | {setting} | {median:.3f} ({min(found):.3f} to {max(found):.3f}) | {utilisation(flop, median, device)} | "
            f"{tokens / median:,.0f} | {peak} |", flush=True,
        )  # fmt: skip
        _forget(device)

    def ours(packing: Packing, compiled: bool) -> list[float]:
        nonlocal flop, tokens
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype_on(device)).to(device)
        flop, tokens = work(model, threads), sum(len(turn.ids) for thread in threads for turn in thread.turns)
        learner = learner_of(model, packing, arguments.budget, BackendConfig(compile=compiled))
        return timed(lambda: reinforce(learner, threads, units), arguments.repeats, device)

    tell("ours", "padded", lambda: ours("off", False))
    if not arguments.eager:
        tell("ours", "packed, compiled", lambda: ours("rows", True))
        tell("ours", "prefix-shared, compiled", lambda: ours("prefixes", True))
    tried: dict[tuple[int, str], float] = {}
    for rows in arguments.batches:
        for dtype in ("bfloat16", "float32"):
            tell(
                "TRL",
                f"{rows} rows a pass, weights in {dtype}",
                lambda rows=rows, dtype=dtype: theirs(arguments, threads, rows, dtype, {}, device),
            )
            tried[rows, dtype] = last.pop("TRL", float("inf"))
    rows, dtype = min(tried, key=lambda setting: tried[setting])  # the best of them, and what may make it better
    for options in () if arguments.eager else ({"torch_compile": True}, {"gradient_checkpointing": True}):
        named = f"{rows} rows a pass, weights in {dtype}, {next(iter(options))}"
        tell("TRL", named, lambda options=options: theirs(arguments, threads, rows, dtype, options, device))
    if {"ours", "TRL"} <= best.keys():
        print(f"speed of ours / best of TRL's: {best['TRL'] / best['ours']:.2f} (neither makes a scoring pass of so small a batch)")


def theirs(
    arguments: argparse.Namespace, threads: Sequence[Thread], rows: int, dtype: str, options: dict[str, Any], device: torch.device
) -> list[float]:
    """Seconds of GRPOTrainer's steps, from the replies to the new weights: what its rollout function takes is not counted."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    on_gpu = device.type == "cuda"
    groups, members = arguments.groups, arguments.members
    replies = [([*t.turns[0].ids], [*t.turns[1].ids]) for t in threads]
    begun: list[float] = []
    found: list[float] = []

    def recorded(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        wait(device)
        begun.append(time.perf_counter())
        return {"prompt_ids": [p for p, _ in replies], "completion_ids": [c for _, c in replies], "logprobs": None}

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            wait(device)
            found.append(time.perf_counter() - begun[-1])

    number = iter(range(10**9))
    config = GRPOConfig(
        output_dir="/tmp/trl-out", per_device_train_batch_size=rows, gradient_accumulation_steps=groups * members // rows,
        num_generations=members, max_completion_length=between(arguments.own)[1], max_steps=WARM + arguments.repeats, bf16=on_gpu,
        use_cpu=not on_gpu, beta=0.0, learning_rate=LR, save_strategy="no", report_to=[], disable_tqdm=True, logging_steps=10**6,
        optim="adamw_torch_fused" if on_gpu else "adamw_torch", model_init_kwargs={"dtype": dtype}, **{"gradient_checkpointing": False, **options},
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=str(arguments.model), reward_funcs=[lambda completions, **_: [float(next(number) % 2) for _ in completions]], args=config,
        train_dataset=Dataset.from_dict({"prompt": [f"question {n}" for n in range(groups * (WARM + arguments.repeats))]}),
        processing_class=AutoTokenizer.from_pretrained(arguments.model), rollout_func=recorded, callbacks=[Clock()],
    )  # fmt: skip
    trainer.train()
    return found[WARM:]


def _forget(device: torch.device) -> None:
    gc.collect()
    torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def main() -> None:
    parser, command = commands_of(__doc__)
    against = command(trl, groups=8, members=8, prompt=256, own="64:448", budget=32768, repeats=5)
    against.add_argument("model", type=Path, help="a Hugging Face model directory with its tokenizer")
    against.add_argument("--batches", type=int, nargs="+", default=[8, 16, 32, 64], help="rows of a pass of TRL's to try")
    adapted = command(lora, shape="1.5b", rank=16, rows=64, lengths="256:1024", budget=16384, repeats=5)
    adapted.add_argument("--recompute", action="store_true", help="layers are computed again in the backward pass")
    adapted.add_argument("--ways", nargs="+", default=["padded", "packed"], help="padded, eager; packed, compiled")
    whole = command(zero, shape="1.5b", zero=2, rows=64, lengths="256:1024", budget=8192, packing="off", repeats=5)
    for asked in (against, adapted, whole):
        asked.add_argument("--eager", action="store_true", help="compile nothing")
    arguments = parser.parse_args()
    arguments.run(arguments, torch.device(arguments.device))


if __name__ == "__main__":
    main()
