"""LoRA by peft: a small adapter is trained over weights that stay as they are.

Adapters are injected into the model, which keeps its class and its names; what peft adds is called `…lora_A.SLOT.weight`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rolecast.errors import ArtifactError, InputError
from rolecast.learner.backends import Weights
from rolecast.learner.settings import LoraConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # that peft, and who reads its files, expects before every name


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def add_adapter(model: PreTrainedModel, slot: str, config: LoraConfig, seed: int) -> None:
    """A new adapter, the same on every rank; it changes nothing until it is trained. Freezes everything else."""
    peft = _peft()
    torch.manual_seed(seed)
    lora = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, lora_dropout=0.0, target_modules=config.targets, task_type="CAUSAL_LM")
    try:
        peft.inject_adapter_in_model(lora, model, slot)
    except ValueError as error:
        raise InputError(f"model.lora.targets: {' '.join(str(error).split())[:300]}") from error
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    if model.config.tie_word_embeddings and any(hasattr(end, "base_layer") for end in ends):
        raise InputError("model.lora.targets names the embeddings or the head, which this model ties: merging would change both")


def load_adapter(model: PreTrainedModel, folder: Path, slot: str) -> None:
    """The adapter in `folder`, in peft's form, in the place of the slot's last one. Freezes everything else."""
    peft = _peft()
    if slot not in getattr(model, "peft_config", {}):
        peft.inject_adapter_in_model(peft.PeftConfig.from_pretrained(str(folder)), model, slot)
    weights = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    try:
        result = peft.set_peft_model_state_dict(model, weights, slot)
    except RuntimeError as error:  # torch's word for tensors of another shape
        raise ArtifactError(f"{folder} does not fit the model: {' '.join(str(error).split())[:300]}") from error
    absent = [name for name in result.missing_keys if f".{slot}." in name]
    if absent or result.unexpected_keys:
        raise ArtifactError(f"{folder} does not fit the model: {(absent or result.unexpected_keys)[0]} has no counterpart")


def save_adapter(model: PreTrainedModel, weights: Weights, folder: Path, slot: str) -> None:
    """`weights`: the adapter's, under the model's names."""
    folder.mkdir(parents=True, exist_ok=True)
    model.peft_config[slot].save_pretrained(str(folder))
    named = _peft().get_peft_model_state_dict(model, state_dict=weights, adapter_name=slot)
    save_file({PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}, folder / WEIGHTS)


def merge_adapter(folder: Path, base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Turns a folder that holds an adapter into a whole model, `base` with the adapter merged; the adapter is kept in `adapter/`."""
    adapter = folder / "adapter"
    files = [path for path in folder.iterdir() if path.name.startswith("adapter_")]
    adapter.mkdir()
    for path in files:
        shutil.move(path, adapter / path.name)
    merged = _peft().PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
    merged.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise InputError("model.lora needs peft; pip install 'rolecast[learner]'") from None
    return peft
