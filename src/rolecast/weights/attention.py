"""Who may attend to whom where many sequences lie in one: a forest of tokens, whose trees are what sequences share.

Tokens lie in depth-first order: behind each come the ones that follow it in some sequence, and then no more. So one number per token
says it all: k is before q in a sequence, or is q itself, exactly if k ≤ q < end[k].

    sequences   a b c    a b d e    f g          token      a  b  c  d  e  f  g
                                                 position   0  1  2  2  3  0  1
    forest      a ─ b ┬ c          f ─ g         end        5  5  3  5  5  7  7
                      └ d ─ e
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, PreTrainedConfig
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward

FULL, SLIDING = "full_attention", "sliding_attention"  # transformers' names of layer types
BLOCK = 128  # tokens of a side of flex_attention's blocks; what lies on a GPU is filled up to a multiple of it
NARROWEST = 16  # head width that its kernels take

Mask = Tensor | BlockMask


def windows_of(config: PreTrainedConfig) -> Mapping[str, int | None]:
    """How many positions back each kind of layer attends to, its own included; None is all."""
    window = getattr(config, "sliding_window", None)
    kinds = sorted(set(getattr(config, "layer_types", None) or ()))
    if not kinds:
        return {FULL if window is None else SLIDING: window}
    return {kind: window if kind == SLIDING else None for kind in kinds}


@dataclass(frozen=True, slots=True)
class Forest:
    """Of the tokens of one long row: `position` (tokens,) within their sequences, and `end` (tokens,), as above."""

    position: Tensor
    end: Tensor

    def inputs(self, config: PreTrainedConfig, dtype: torch.dtype) -> dict[str, Any]:
        """What a model with this config is given beside the tokens. A mask is dense, or of blocks where flex_attention runs."""
        blocks = self.end.is_cuda and config._attn_implementation == "sdpa" and _head_width(config) >= NARROWEST
        masks = {kind: self.blocks(window) if blocks else self._dense(config, dtype, window) for kind, window in windows_of(config).items()}
        return {"position_ids": self.position[None], "attention_mask": masks if len(masks) > 1 else next(iter(masks.values()))}

    def sees(self, window: int | None) -> Callable[[Tensor, Tensor], Tensor]:
        """Tells whether the token at q attends to that at k. A window counts positions, since siblings lie between."""
        end, position = self.end, self.position  # tensors, so that what is compiled of it is right for another pack

        def sees(q: Tensor, k: Tensor) -> Tensor:
            seen = (k <= q) & (q < end[k])
            return seen if window is None else seen & (position[k] > position[q] - window)

        return sees

    def _dense(self, config: PreTrainedConfig, dtype: torch.dtype, window: int | None) -> Tensor:
        places = torch.arange(len(self.end), device=self.end.device)
        seen = self.sees(window)(places[:, None], places[None])[None, None]
        if config._attn_implementation != "eager":
            return seen
        return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)  # eager attention adds it to the scores

    def blocks(self, window: int | None, size: int = BLOCK) -> BlockMask:
        """As a mask of blocks, found from the blocks' least and largest `end` instead of from all pairs of tokens.

        The number of tokens is a multiple of `size`.
        """
        end = self.end.view(-1, size)
        least, most = end.amin(1), end.amax(1)
        number = torch.arange(len(end), device=end.device)
        before = number[None] < number[:, None]  # (blocks of queries, blocks of keys)
        any_ = (before & (most[None] > number[:, None] * size)) | torch.eye(len(end), dtype=torch.bool, device=end.device)
        all_ = before & (least[None] >= (number[:, None] + 1) * size)
        if window is not None:
            all_ = torch.zeros_like(all_)
        partial, whole = (_listed(found) for found in (any_ & ~all_, all_))
        sees = self.sees(window)

        def mask(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return sees(q, k)

        return BlockMask.from_kv_blocks(*partial, *whole, BLOCK_SIZE=size, mask_mod=mask)


def _listed(found: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks each row of blocks has, and which, first; (1, 1, rows) and (1, 1, rows, columns)."""
    order = torch.argsort(found.to(torch.int8), dim=-1, descending=True, stable=True)
    return found.sum(-1, dtype=torch.int32)[None, None], order.to(torch.int32)[None, None]


def _head_width(config: PreTrainedConfig) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Mask | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """transformers' sdpa, which also takes a mask of blocks: the mask alone says what runs, so a recomputed layer runs as it did."""
    if isinstance(attention_mask, BlockMask):
        found: tuple[Tensor, Tensor | None] = flex_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return found
    plain: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return plain


AttentionInterface.register("sdpa", attention)
