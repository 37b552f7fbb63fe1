"""Reading a model and its tokenizer from a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rolecast.errors import InputError

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}  # by their names in a config


def check_model(path: Path) -> None:
    """Raises InputError unless `path` looks like a model directory with a tokenizer."""
    if not (path / "config.json").is_file():
        raise InputError(f"{path} is no model directory: it has no config.json")
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise InputError(f"{path} has no tokenizer; save one beside the model (tokenizer.save_pretrained)")


def read_model(path: Path, dtype: torch.dtype, place: torch.device) -> PreTrainedModel:
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).to(place)
    except Exception as error:  # safetensors has its own for a file that is cut off
        raise InputError(f"{path} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    return model


def read_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise InputError(f"the tokenizer in {path} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
    return tokenizer


def end_tokens(path: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Tokens that end a turn: the tokenizer's, and those that the model in `path` names, which may be several."""
    named = next(file for name in ("generation_config.json", "config.json") if (file := path / name).is_file())
    listed = json.loads(named.read_text()).get("eos_token_id")
    ends = {tokenizer.eos_token_id, *(listed if isinstance(listed, list) else [listed])}
    return frozenset(end for end in ends if end is not None)
