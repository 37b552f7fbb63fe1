"""What vLLM can play of a team: refused before anything is sampled, in one line, instead of being left out without a word.

vLLM adapts linear layers alone, takes one rank for all of an adapter, and counts the adapters of a batch. Of what peft knows besides,
its older versions read nothing at all (`lora_bias`, `rank_pattern`), so that an adapter would be played as another one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from rolecast.errors import InputError
from rolecast.rollout.engines.settings import ENDS, RANKS, VllmConfig
from rolecast.types import Slot
from rolecast.weights.adapters import CONFIG, WEIGHTS

# Settings of peft that make another computation of an adapter than vLLM's.
OTHER = (
    "modules_to_save", "use_dora", "lora_bias", "rank_pattern", "alpha_pattern", "layer_replication", "trainable_token_indices",
    "target_parameters", "alora_invocation_tokens", "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "velora_config",
    "monteclora_config",
)  # fmt: skip
PLAIN = ("gaussian", "eva", "orthogonal")  # beginnings that leave the base as it is


def room_for(adapters: Mapping[Slot, Path], config: VllmConfig) -> tuple[int, int]:
    """(max_lora_rank, max_loras) for these adapters. `InputError` for what cannot be played."""
    ranks = {slot: check_adapter(folder, slot) for slot, folder in adapters.items()}
    highest = config.max_lora_rank or max(ranks.values())
    check_ranks(ranks, highest)
    count = config.max_loras or len(adapters)
    check_count(adapters, count)
    if highest > RANKS[-1]:
        raise InputError(f"adapters of rank {highest} are more than vLLM takes, which is {RANKS[-1]}; lower model.lora.rank")
    return next(rank for rank in RANKS if rank >= highest), count


def check_precision(dtype: str) -> None:
    """Of the sampler, on this machine, where adapters speak."""
    if dtype == "float32" and torch.cuda.is_available():
        raise InputError("vLLM's kernels for adapters take no float32 on a GPU; set engine.dtype to bfloat16, or model.dtype")


def check_ranks(ranks: Mapping[Slot, int], highest: int) -> None:
    if above := [slot for slot, rank in sorted(ranks.items()) if rank > highest]:
        raise InputError(
            f"slot {above[0]}: its adapter has rank {ranks[above[0]]}, and the engine has room for rank {highest}; raise engine.max_lora_rank"
        )


def check_count(adapters: Mapping[Slot, Path], count: int) -> None:
    if len(adapters) > count:
        raise InputError(
            f"{len(adapters)} slots have adapters ({', '.join(sorted(adapters))}), and the engine has room for {count}; raise engine.max_loras"
        )


def check_adapter(folder: Path, slot: Slot) -> int:
    """The adapter's rank."""
    told: dict[str, Any] = json.loads((folder / CONFIG).read_text())
    found = [key for key in OTHER if told.get(key)]
    if told.get("bias", "none") != "none":
        found.append("bias")
    if isinstance(begun := told.get("init_lora_weights", True), str) and begun.lower() not in PLAIN:
        found.append("init_lora_weights")
    with safe_open(folder / WEIGHTS, "pt") as weights:
        if ends := sorted(ENDS & {part for name in weights.keys() for part in name.split(".")}):  # noqa: SIM118  # it is no mapping
            found.append(f"{ends[0]}, an embedding or a head,")
    if found:
        raise InputError(f"slot {slot}: vLLM cannot play the adapter in {folder} for its {found[0]}; train a plain LoRA of linear layers")
    return int(told["r"])


def silence(adapter: Path, folder: Path) -> Path:
    """An adapter like that one, which changes nothing: with it the base has a number of its own in a batch."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(adapter / CONFIG, folder / CONFIG)
    weights = load_file(adapter / WEIGHTS)
    save_file({name: torch.zeros_like(tensor) if ".lora_B." in name else tensor for name, tensor in weights.items()}, folder / WEIGHTS)
    return folder
