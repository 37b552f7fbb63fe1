"""Parameters of a model that is not loaded: from headers, from a config, and of one from scratch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.planning.shape import llama, read_shape, shape_of
from rolecast.stages.team import first_model
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import Casting, assemble
from tests.tiny import TOKENIZER, tiny_model

LLAMA_3_8B = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "tie_word_embeddings": False, "model_type": "llama",
}  # fmt: skip


def written(path: Path, **told: object) -> Path:
    (path / "config.json").write_text(json.dumps(told))
    return path


def test_a_config_alone_says_how_large_llama_3_is(tmp_path: Path) -> None:
    """8,030,261,248, as its model card has it."""
    shape = read_shape(written(tmp_path, **LLAMA_3_8B))
    assert shape.parameters == 8_030_261_248
    assert (shape.head_dim, shape.kv_heads) == (128, 8)
    # By hand: 32 layers × 16 × (q 4096+4096, k and v 4096+1024, o 4096+4096, gate, up and down 4096+14336).
    assert shape.adapter(LoraConfig(rank=16)) == 32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432) == 41_943_040
    assert shape.adapter(LoraConfig(rank=8, targets=["q_proj", "v_proj"])) == 32 * 8 * (8192 + 5120)
    tied = read_shape(written(tmp_path, **{**LLAMA_3_8B, "tie_word_embeddings": True}))
    assert shape.parameters - tied.parameters == 128256 * 4096


@pytest.mark.parametrize("lora", [LoraConfig(rank=4), LoraConfig(rank=4, targets=["q_proj", "down_proj"])])
def test_headers_say_what_a_model_and_its_adapter_really_have(tmp_path: Path, lora: LoraConfig) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    shape = read_shape(tmp_path)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert "headers" in shape.origin
    team = assemble(model, TOKENIZER, Casting(frozenset({"a"}), ("a",)), lora=lora)
    assert shape.adapter(lora) == sum(parameter.numel() for _, parameter in team.trained("a"))


def test_a_config_without_weights_is_read_as_a_llama(tmp_path: Path) -> None:
    model = tiny_model()
    model.config.save_pretrained(tmp_path)
    assert read_shape(tmp_path).parameters == sum(parameter.numel() for parameter in model.parameters())


def test_other_architectures_are_counted_by_their_headers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    model = Gemma3ForCausalLM(config)
    model.save_pretrained(tmp_path)
    assert read_shape(tmp_path).parameters == sum(parameter.numel() for parameter in model.parameters())


def test_a_model_from_scratch_is_what_the_run_will_make() -> None:
    config = RunConfig()
    model, _ = first_model(config, torch.device("cpu"))
    assert shape_of(config).parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("text", "said"), [("{", "cannot be read"), ('{"hidden_size": 8}', "names no num_hidden_layers"), (None, "cannot be read")]
)
def test_what_says_too_little_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=said):
        read_shape(tmp_path)


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    written(tmp_path, **LLAMA_3_8B)
    (tmp_path / "model.safetensors").write_bytes(b"\x10\x00")
    with pytest.raises(InputError, match=r"model\.safetensors is no safetensors file"):
        read_shape(tmp_path)


def test_a_llama_by_hand() -> None:
    """Embedding 10 × 4, head 10 × 4, norm 4; a layer: q 8 × 4, k and v 4 × 4, o 4 × 8, three of 6 × 4, two norms of 4."""
    shape = llama(1, 4, 2, 1, 4, 6, 10, False, "here")
    assert shape.parameters == 40 + 40 + 4 + (32 + 16 + 16 + 32 + 72 + 8)
    assert shape.matrices == 32 + 16 + 16 + 32 + 72
