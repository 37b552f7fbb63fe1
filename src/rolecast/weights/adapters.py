"""LoRA by peft: small adapters are trained over weights that stay as they are, one for each slot.

Adapters are injected into the model, which keeps its class and its names; what peft adds is called `…lora_A.SLOT.weight`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from rolecast.errors import ArtifactError, InputError
from rolecast.installed import needing
from rolecast.types import Slot
from rolecast.weights.settings import LoraConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # that peft, and who reads its files, expects before every name


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def add_adapter(model: PreTrainedModel, slot: Slot, config: LoraConfig, seed: int) -> None:
    """A new adapter, the same on every rank; it changes nothing until it is trained. Freezes everything but adapters."""
    peft = _peft()
    torch.manual_seed(seed)
    lora = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, lora_dropout=0.0, target_modules=config.targets, task_type="CAUSAL_LM")
    try:
        _inject(lora, model, slot)
    except ValueError as error:
        raise InputError(f"model.lora.targets: {' '.join(str(error).split())[:300]}") from error
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    if model.config.tie_word_embeddings and any(hasattr(end, "base_layer") for end in ends):
        raise InputError("model.lora.targets names the embeddings or the head, which this model ties: merging would change both")


def load_adapter(model: PreTrainedModel, folder: Path, slot: Slot) -> None:
    """The adapter in `folder`, in peft's form, in the place of the slot's last one. Freezes everything but adapters."""
    peft = _peft()
    if slot not in getattr(model, "peft_config", {}):
        _inject(peft.PeftConfig.from_pretrained(str(folder)), model, slot)
    weights = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(folder / WEIGHTS).items()}
    try:
        result = peft.set_peft_model_state_dict(model, weights, slot)
    except RuntimeError as error:  # torch's word for tensors of another shape
        raise ArtifactError(f"{folder} does not fit the model: {' '.join(str(error).split())[:300]}") from error
    absent = [name for name in result.missing_keys if f".{slot}." in name]
    if absent or result.unexpected_keys:
        raise ArtifactError(f"{folder} does not fit the model: {(absent or result.unexpected_keys)[0]} has no counterpart")


def save_adapter(model: PreTrainedModel, weights: Mapping[str, Tensor], folder: Path, slot: Slot) -> None:
    """`weights`: the adapter's, under the model's names."""
    folder.mkdir(parents=True, exist_ok=True)
    model.peft_config[slot].save_pretrained(str(folder))
    named = _peft().get_peft_model_state_dict(model, state_dict=dict(weights), adapter_name=slot)
    save_file({PREFIX + name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}, folder / WEIGHTS)


def adapter_weights(folder: Path, slot: Slot) -> dict[str, Tensor]:
    """The adapter in `folder` under the names that a model gives it."""
    read = load_file(folder / WEIGHTS)
    return {re.sub(r"\.(lora_\w+)", rf".\1.{slot}", name.removeprefix(PREFIX), count=1): tensor for name, tensor in read.items()}


def of_adapter(name: str, slot: Slot) -> bool:
    """Whether a parameter of this name is of the slot's adapter."""
    return re.search(rf"\.lora_\w+\.{re.escape(slot)}(\.|$)", name) is not None


def activate(model: PreTrainedModel, slot: Slot | None) -> None:
    """From now on the model computes with this adapter alone, or with none.

    peft's own `set_adapter` says at the same time which adapter is trained; who speaks and who is trained are two questions here.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module._active_adapter = [slot] if slot is not None else []
            module._disable_adapters = slot is None


def merge(model: PreTrainedModel, slot: Slot) -> None:
    """The slot's adapter becomes part of the weights, and all adapters go. In float32 only: rounded, it is another model."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    if model.dtype != torch.float32:
        raise ValueError(f"an adapter cannot be merged in {model.dtype}")
    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge(adapter_names=[slot])
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module.get_base_layer())
    del model.peft_config


def _inject(config: Any, model: PreTrainedModel, slot: Slot) -> None:
    from rolecast.weights.folded import fold

    with warnings.catch_warnings():
        # A team is several adapters over one model; peft takes a second one for an oversight.
        warnings.filterwarnings("ignore", "Already found a `peft_config` attribute", UserWarning)
        _peft().inject_adapter_in_model(config, model, slot)
    fold(model)


def _peft() -> Any:
    with needing():
        import peft
    return peft
