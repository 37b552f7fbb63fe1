"""What benchmarks share: shapes of models that get random weights, and the machine's name."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, PreTrainedTokenizerBase

SMOLLM2 = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_theta": 100000.0,
}  # fmt: skip
ONE_AND_A_HALF_B = {  # as Qwen2.5-1.5B
    "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "max_position_embeddings": 8192, "tie_word_embeddings": True, "rope_theta": 1000000.0,
}  # fmt: skip
EIGHT_B = {
    "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "max_position_embeddings": 8192, "tie_word_embeddings": False, "rope_theta": 500000.0,
}  # fmt: skip
TINY = {  # for trying a benchmark on a CPU
    "vocab_size": 49152, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 8192, "tie_word_embeddings": False, "rope_theta": 100000.0,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {"tiny": TINY, "135m": SMOLLM2, "1.5b": ONE_AND_A_HALF_B, "8b": EIGHT_B}


def card(device: torch.device | None = None) -> str:
    """What a table's figures were measured on."""
    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    return torch.cuda.get_device_name(device) if on_gpu else f"CPU, {torch.get_num_threads()} threads"


def commands_of(doc: str | None) -> tuple[ArgumentParser, Callable[..., ArgumentParser]]:
    """A parser whose namespace has a `device`, and what adds a command to it: a function, which is called after it, and its options' defaults."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    commands = parser.add_subparsers(required=True)

    def command(run: Callable[[Namespace, torch.device], None], **options: Any) -> ArgumentParser:
        asked: ArgumentParser = commands.add_parser(run.__name__)
        asked.set_defaults(run=run)
        for name, default in options.items():
            asked.add_argument(f"--{name}", type=type(default) if default is not None else str, default=default)
        return asked

    return parser, command


def write_shape(name: str, tokenizer: PreTrainedTokenizerBase, folder: Path) -> Path:
    """A model directory without weights, for an engine that makes them up (`load_format: dummy`)."""
    config = LlamaConfig(**SHAPES[name], bos_token_id=None, eos_token_id=tokenizer.eos_token_id, architectures=["LlamaForCausalLM"])
    assert config.vocab_size >= len(tokenizer), f"shape {name} has {config.vocab_size} tokens, the tokenizer {len(tokenizer)}"
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
