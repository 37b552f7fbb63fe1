"""A model's weights by name and shape, without loading them: from the headers of its safetensors, from its config, or as made from scratch."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.methods.registry import make_method
from rolecast.weights.settings import LoraConfig

Tensors = Mapping[str, tuple[int, ...]]
ENDS = ("embed_tokens.weight", "wte.weight", "lm_head.weight", "embed_out.weight")  # which all-linear leaves out
WANTED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")


@dataclass(frozen=True, slots=True)
class Shape:
    """`origin`: where the numbers are from."""

    tensors: Tensors
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    origin: str

    @property
    def parameters(self) -> int:
        return sum(prod(shape) for shape in self.tensors.values())

    @property
    def matrices(self) -> int:
        """Those of hidden layers, which Muon trains."""
        return sum(prod(shape) for name, shape in self.tensors.items() if ".layers." in name and len(shape) == 2)

    def adapter(self, lora: LoraConfig) -> int:
        """Parameters of one adapter: rank · (in + out) for each matrix it acts on (Hu et al. 2021, 4.1)."""
        return sum(lora.rank * sum(shape) for name, shape in self.tensors.items() if _adapted(name, shape, lora.targets))


def _adapted(name: str, shape: tuple[int, ...], targets: str | list[str]) -> bool:
    if len(shape) != 2 or not name.endswith(".weight"):
        return False
    if targets == "all-linear":
        return not name.endswith(ENDS)
    return any(f".{name}".endswith(f".{target}.weight") for target in targets)


def shape_of(config: RunConfig) -> Shape:
    """Of the model that a run starts from. Raises InputError where its config says too little."""
    if config.model.path is not None:
        return read_shape(Path(config.model.path))
    from rolecast.world.grammar import crowded_lexicon
    from rolecast.world.throwaway import CROWDED
    from rolecast.world.tokenizer import demo_tokenizer

    s, method = config.model.scratch, make_method(config.method)
    words = crowded_lexicon() if config.data.thrown_away == CROWDED else ()
    vocabulary = len(demo_tokenizer((*method.words, *words), method.tags))
    return llama(s.layers, s.hidden, s.heads, s.heads, s.head_dim, s.feed_forward, vocabulary, False, "model.scratch")


def read_shape(path: Path) -> Shape:
    file = path / "config.json"
    try:
        told = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({type(error).__name__}); model.path is to be a model's folder") from None
    told = told.get("text_config", told)
    if missing := [name for name in WANTED if not isinstance(told.get(name), int)]:
        raise InputError(f"{file} names no {missing[0]}, so its size is not known; plan with a model of the Llama kind")
    heads = told["num_attention_heads"]
    numbers = (
        told["num_hidden_layers"], told["hidden_size"], heads, told.get("num_key_value_heads") or heads,
        told.get("head_dim") or told["hidden_size"] // heads, told["intermediate_size"], told["vocab_size"],
    )  # fmt: skip
    # A config leaves out what is its class's default: ties are Gemma's, and no Llama's.
    made = llama(*numbers, bool(told.get("tie_word_embeddings", told.get("model_type", "").startswith("gemma"))), str(file))
    tensors = _headers(path)
    return made if tensors is None else Shape(tensors, *numbers, f"the weights' headers in {path}")


def llama(layers: int, hidden: int, heads: int, kv_heads: int, dim: int, feed_forward: int, vocabulary: int, tied: bool, origin: str) -> Shape:  # fmt: skip
    """A decoder with gated feed-forward blocks and without biases."""
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for number in range(layers):
        blocks = {
            "self_attn.q_proj": (heads * dim, hidden), "self_attn.k_proj": (kv_heads * dim, hidden),
            "self_attn.v_proj": (kv_heads * dim, hidden), "self_attn.o_proj": (hidden, heads * dim), "mlp.gate_proj": (feed_forward, hidden),
            "mlp.up_proj": (feed_forward, hidden), "mlp.down_proj": (hidden, feed_forward), "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
        }  # fmt: skip
        tensors |= {f"model.layers.{number}.{name}.weight": shape for name, shape in blocks.items()}
    if not tied:
        tensors["lm_head.weight"] = (vocabulary, hidden)
    return Shape(tensors, layers, hidden, heads, kv_heads, dim, feed_forward, vocabulary, origin)


def _headers(path: Path) -> dict[str, tuple[int, ...]] | None:
    """Shapes by name; None where there are no safetensors. A file begins with the length of a JSON header, 8 bytes, little-endian."""
    tensors: dict[str, tuple[int, ...]] = {}
    for file in sorted(path.glob("*.safetensors")):
        header: dict[str, Any] = {}
        try:
            with file.open("rb") as stream:
                header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
        except (OSError, ValueError, struct.error) as error:
            raise InputError(f"{file} is no safetensors file ({type(error).__name__}); mend the model's folder") from None
        tensors |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    return tensors or None


def headers_of(path: Path) -> int | None:
    """Parameters of whatever model lies there in safetensors; None where there is none."""
    tensors = _headers(path)
    return sum(prod(shape) for shape in tensors.values()) if tensors is not None else None
