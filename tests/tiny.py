"""A random two-layer Llama over the demo's tokenizer: small enough that a test can afford it, real enough to matter."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rolecast.rollout.render import Renderer
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import Casting, Team, assemble
from rolecast.world.tokenizer import demo_tokenizer


def tiny_model(seed: int = 0, kv_heads: int = 2, scale: float = 1.0, head_dim: int = 8) -> LlamaForCausalLM:
    """`scale` sharpens the distribution: a random model is close to uniform."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=kv_heads, head_dim=head_dim, max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=TOKENIZER.eos_token_id, pad_token_id=TOKENIZER.pad_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(scale)
    return model.eval()


def save_tiny(folder: Path) -> Path:
    """A model directory as users have one."""
    tiny_model().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


TOKENIZER = demo_tokenizer()
RENDERER = Renderer(TOKENIZER)


SHARED = Casting(frozenset({"shared"}), ("shared",))


def tiny_team(casting: Casting = SHARED, seed: int = 0, lora: LoraConfig | None = None, scale: float = 1.0) -> Team:
    """A team over a tiny model that trains what `casting` says."""
    return assemble(tiny_model(seed, scale=scale), TOKENIZER, casting, lora=lora)
