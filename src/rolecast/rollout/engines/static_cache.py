"""A static key-value cache with one row per request in flight.

Rows 0 … n-1 are the requests that are being decoded, so a step works on views and copies nothing; when a row finishes,
the last one takes its place.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache


class StaticRows(Cache):  # type: ignore[misc]  # transformers ships no types
    """Keys and values, each (layers, rows, kv_heads, length, head_dim), allocated once."""

    def __init__(self, config: PreTrainedConfig, rows: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers=[])
        heads = config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, rows, heads, length, dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self._first = 0  # row of the coming forward pass's first sequence
        self._places = torch.zeros(0, dtype=torch.long)  # position of each of its tokens, (batch, tokens)
        self._span = 0  # how much of the length attention looks at

    def aim(self, first_row: int, places: torch.Tensor, span: int) -> None:
        """The coming forward pass writes its tokens at `places` (batch, tokens) of rows from `first_row` on."""
        self._first, self._places, self._span = first_row, places, span

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = slice(self._first, self._first + key_states.shape[0])
        keys, values = self.keys[layer_idx, rows], self.values[layer_idx, rows]
        index = self._places[:, None, :, None].expand_as(key_states)
        keys.scatter_(2, index, key_states)
        values.scatter_(2, index, value_states)
        return keys[:, :, : self._span], values[:, :, : self._span]

    def move(self, source: int, target: int, length: int) -> None:
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._span
