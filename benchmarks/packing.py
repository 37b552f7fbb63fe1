"""The learner's step on one card: padded rows, packs, and packs in which what rows begin with alike is computed once.

    python benchmarks/packing.py step [--model DIR] [--groups 8] [--members 8] [--prompt 1024] [--own 64:448] [--budget 32768] [--repeats 5]
    python benchmarks/packing.py fill [--rows 512] [--lengths 64:1024] [--budget 32768]
    python benchmarks/packing.py memory [--tokens 32768] [--vocabulary 152000] [--width 576]
    python benchmarks/packing.py ratio RUN/STAGE/trajectories [MORE …] [--budget 32768]

step    forward and backward pass over one batch: padded eager; packed and shared, each eager and compiled. Rounds of all of them in turn,
        medians; the ratio that counts is shared / packed, both compiled, beside what it could be at most: the trie ratio
fill    what packs of rows of mixed lengths hold, of what is computed and of their budget
memory  the loss over all tokens: peak bytes beyond weights, their gradients and hidden states
ratio   how often a token of recorded episodes is used: tokens of a slot's rows / tokens of their forest, by method and slot
        (stages.STAGE.record keeps episodes)

Without --model: the shape of SmolLM2-135M with random weights. --dtype and --device default to what is there; on a CPU choose small numbers.
MFU = (4 · N_frozen + 6 · N_trained + attention) × real tokens / peak: N of the layers' weights per token laid, of the head's per position
that it is asked about, attention 12 · heads · head width per layer and visible pair; without recomputation, padding and fillers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from shapes import SMOLLM2, card, commands_of
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from rolecast.learner.batch import Padded, TokenBatch, make_batch
from rolecast.learner.cut import Micro, microbatches, packs
from rolecast.learner.forest import Layout, Rows
from rolecast.learner.packed import Packed
from rolecast.types import Action, Observation, Thread, Unit, endpoint_of
from rolecast.weights.logprobs import PLAIN, Kernels, in_chunks
from rolecast.weights.settings import CHUNK, COMPILED_CHUNK
from rolecast.weights.team import FROZEN, Team
from rolecast.wire.coordinator import unpack

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}  # dense bfloat16, FLOP/s


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def between(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    return int(least), int(most or least)


def groups_of(groups: int, members: int, prompt: int, own: tuple[int, int], vocabulary: int, seed: int) -> TokenBatch:
    """Rows of groups that share a prompt; everything behind it is sampled."""
    draw = np.random.default_rng(seed)
    threads, units = [], []
    for group in range(groups):
        shared = Observation(tuple(draw.integers(10, vocabulary, prompt).tolist()), "")
        for member in range(members):
            name, ids = f"{group}.{member}", tuple(draw.integers(10, vocabulary, int(draw.integers(own[0], own[1] + 1))).tolist())
            threads.append(Thread(name, "r", "shared", turns=[shared, Action(name, ids, (0.0,) * len(ids), "v", "", "stop")]))
            units.append(Unit(name, (name,), 1.0, "o", tag="r", group=str(group), rollout=name))
    return make_batch("shared", threads, units)


def model_of(arguments: argparse.Namespace, device: torch.device) -> PreTrainedModel:
    dtype = getattr(torch, arguments.dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    torch.manual_seed(0)
    if arguments.model:
        read: PreTrainedModel = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype)
        return read.to(device)
    shape = {**SMOLLM2, **json.loads(arguments.shape)}
    return LlamaForCausalLM(LlamaConfig(**shape, bos_token_id=None, eos_token_id=0, pad_token_id=0)).to(device, dtype)


@dataclass(frozen=True)
class Way:
    """One way to take a step. `micros`: with `sharing` None padded, else packed."""

    name: str
    team: Team
    micros: Sequence[Micro]
    sharing: bool | None
    width: int = 0  # that every pack is filled up to; 0: a multiple of a block

    def rows(self, batch: TokenBatch, micro: Micro, device: torch.device) -> Padded | Packed:
        if self.sharing is None:
            return Padded.of(batch, micro.rows, device)
        pack = Packed.of(batch, micro.rows, self.sharing, device)
        return pack.filled(self.width) if self.width else pack

    def step(self, batch: TokenBatch, device: torch.device) -> None:
        for micro in self.micros:
            rows = self.rows(batch, micro, device)
            chosen, _ = self.team(FROZEN, rows)
            (-chosen.sum() / len(batch.ids)).backward()
        self.team.zero_grad(set_to_none=True)


def flops(batch: TokenBatch, way: Way, model: PreTrainedModel) -> float:
    """Of a step that trains all weights, without recomputation, padding and fillers."""
    config = model.config
    head = config.vocab_size * config.hidden_size
    layers = sum(p.numel() for p in model.base_model.parameters()) - head
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pair = 12 * config.num_hidden_layers * config.num_attention_heads * width
    total = 0.0
    for micro in way.micros:
        layout = Layout.of(batch, micro.rows, bool(way.sharing))
        asked = len(Packed.of(batch, micro.rows, bool(way.sharing), torch.device("cpu")).source.unique())
        total += 6 * layers * len(layout.ids) + 6 * head * asked + pair * float((layout.position + 1).sum())
    return total


def step(arguments: argparse.Namespace, device: torch.device) -> None:
    batch = groups_of(arguments.groups, arguments.members, arguments.prompt, between(arguments.own), 1000, 0)
    model = model_of(arguments, device)
    sets, budget = list(batch.rows_of_units().values()), arguments.budget
    plain, compiled = Team(model, None), Team(model, None)  # type: ignore[arg-type]
    compiled.compile_layers(dynamic=not arguments.static)
    width = budget if arguments.static else 0
    packed, shared = (packs(batch, sets, budget, together=False, sharing=sharing) for sharing in (False, True))
    ways = [
        Way("padded", plain, microbatches(batch, sets, budget, together=False), None),
        Way("packed", plain, packed, False),
        Way("shared", plain, shared, True),
    ]
    if not arguments.eager:
        ways += [Way("packed, compiled", compiled, packed, False, width), Way("shared, compiled", compiled, shared, True, width)]
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    peaks: dict[str, float] = {}
    for round_ in range(arguments.repeats + 1):  # the first one warms up
        for way in ways:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            wait(device)
            start = time.perf_counter()
            way.step(batch, device)
            wait(device)
            if round_:
                times[way.name].append(time.perf_counter() - start)
            if device.type == "cuda":
                peaks[way.name] = torch.cuda.max_memory_allocated(device) / 2**30
    medians = {name: statistics.median(found) for name, found in times.items()}
    every = Rows.of(batch, range(batch.rows), sharing=True)
    peak = next((peak for name, peak in PEAKS.items() if name in card(device)), None)
    print(
        f"{card(device)}, torch {torch.__version__}, {model.dtype}, {batch.rows} rows, {len(batch.ids)} tokens, {every.total} of their forest"
    )
    print(
        "\n| way | passes | s / step (min to max) | tokens of rows / s | MFU | floor, s | peak GiB |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for way in ways:
        seconds, work = medians[way.name], flops(batch, way, model)
        mfu, floor = (f"{100 * work / seconds / peak:.1f} %", f"{work / peak:.3f}") if peak else ("", "")
        spread = f"{seconds:.3f} ({min(times[way.name]):.3f} to {max(times[way.name]):.3f})"
        memory = f"{peaks[way.name]:.1f}" if peaks else ""
        print(f"| {way.name} | {len(way.micros)} | {spread} | {len(batch.ids) / seconds:,.0f} | {mfu} | {floor} | {memory} |")
    for one, other in (("packed", "shared"), ("packed, compiled", "shared, compiled"), ("padded", "shared, compiled")):
        if one in medians and other in medians:
            print(f"{other} / {one}: {medians[one] / medians[other]:.2f}x (trie ratio {len(batch.ids) / every.total:.2f})")


def fill(arguments: argparse.Namespace, device: torch.device) -> None:
    """In packs as a GPU has them."""
    least, most = between(arguments.lengths)
    batch = groups_of(arguments.rows, 1, 1, (least - 1, most - 1), 1000, 0)
    print("| packs of | packs | fill of what is computed | of the budget | trie ratio |\n| --- | --- | --- | --- | --- |")
    for name, of in (("rows", batch), ("groups", groups_of(arguments.rows // 8, 8, most // 2, (least, most // 2), 1000, 0))):
        sets = list(of.rows_of_units().values())
        start = time.perf_counter()
        micros = packs(of, sets, arguments.budget, together=False, sharing=True)
        seconds = time.perf_counter() - start
        laid = [Rows.of(of, micro.rows, sharing=True).total for micro in micros]
        computed = sum(-(-size // 128) * 128 for size in laid)
        of_budget = sum(laid) / (len(laid) * arguments.budget)
        print(
            f"| {name} | {len(laid)} | {sum(laid) / computed:.3f} | {of_budget:.3f} | {len(of.ids) / sum(laid):.2f} |  (packed in {seconds:.2f} s)"
        )


def memory(arguments: argparse.Namespace, device: torch.device) -> None:
    if device.type != "cuda":
        raise SystemExit("memory counts a GPU's bytes; on a CPU tests/unit/learner/test_packing.py holds the bound at a small size")
    torch.manual_seed(0)
    n, v = arguments.tokens, arguments.vocabulary
    head = torch.nn.Linear(arguments.width, v, bias=False, device=device, dtype=torch.bfloat16)
    head.weight.grad = torch.zeros_like(head.weight)
    hidden = torch.randn(n, arguments.width, device=device, dtype=torch.bfloat16, requires_grad=True)
    hidden.grad = torch.zeros_like(hidden)
    target = torch.randint(v, (n,), device=device)
    print(f"{card(device)}, {n} tokens, V = {v}, width {arguments.width}; all logits in float32 would be {4 * n * v / 2**30:.1f} GiB")
    kinds = {"plain": (PLAIN, CHUNK), "compiled": (Kernels.compiled(), COMPILED_CHUNK // head.weight.itemsize)}
    for train, (name, (kernels, chunk)) in itertools.product((True, False), kinds.items()):
        head.requires_grad_(train)
        for _ in range(2):  # the first round compiles
            before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)
            start = time.perf_counter()
            chosen, _ = in_chunks(head, hidden, target, 1.0, -(-n * v // chunk), kernels, head_trains=train)
            (-chosen.sum() / n).backward()
            wait(device)
            seconds = time.perf_counter() - start
            peak = (torch.cuda.max_memory_allocated(device) - before) / 2**30
            del chosen
        print(f"head {'trained' if train else 'frozen'}, {name}: {peak:.3f} GiB, {seconds:.3f} s; the bound is 1 GiB")


def ratio(arguments: argparse.Namespace, device: torch.device) -> None:
    """Of every step on its own, as an update takes it."""
    held: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for folder in arguments.folders:
        for shard in sorted(folder.rglob("trajectories.json.gz")):
            trajectories = unpack(shard.read_bytes())
            threads = [thread for t in trajectories for thread in t.threads if thread.actions and endpoint_of(thread.slot) is None]
            for slot in sorted({thread.slot for thread in threads}):
                own = [thread for thread in threads if thread.slot == slot]
                units = [Unit(thread.id, tuple(a.id for a in thread.actions), 1.0, "o", tag=thread.role, group=thread.id) for thread in own]
                batch = make_batch(slot, own, units)
                sets = list(batch.rows_of_units().values())
                laid = sum(Rows.of(batch, micro.rows, True).total for micro in packs(batch, sets, arguments.budget, False, True))
                whole = Rows.of(batch, range(batch.rows), sharing=True).total
                held.setdefault((trajectories[0].method, slot), []).append((len(batch.ids), whole, laid))
    print("| method | slot | steps | tokens of rows | trie ratio | in packs |\n| --- | --- | --- | --- | --- | --- |")
    for (method, slot), found in sorted(held.items()):
        tokens, whole, laid = (sum(column) for column in zip(*found, strict=True))
        print(f"| {method} | {slot} | {len(found)} | {tokens} | {tokens / whole:.2f} | {tokens / laid:.2f} |")


def main() -> None:
    parser, command = commands_of(__doc__)
    stepping = command(step, model=None, shape="{}", dtype=None, groups=8, members=8, prompt=1024, own="64:448", budget=32768, repeats=5)
    stepping.add_argument("--eager", action="store_true", help="compile nothing")
    stepping.add_argument("--static", action="store_true", help="compile for one width, and fill every pack up to the budget")
    command(fill, rows=512, lengths="64:1024", budget=32768)
    command(memory, tokens=32768, vocabulary=152000, width=576)
    command(ratio, budget=32768).add_argument("folders", nargs="+", type=Path)
    arguments = parser.parse_args()
    arguments.run(arguments, torch.device(arguments.device))


if __name__ == "__main__":
    main()
