"""A key-value cache with one row per request in flight, which grows with what is in flight.

Rows 0 … n-1 are the requests that are being decoded, so a step works on views and copies nothing; when a row finishes,
the last one takes its place. Rows are as long as the longest of them needs, in blocks: most contexts end far below the limit.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache

BLOCK = 128  # tokens by which all rows grow: one copy of what they hold for so many decoded tokens


class StaticRows(Cache):  # type: ignore[misc]  # transformers ships no types
    """For each layer keys and values, (rows, kv_heads, length, head_dim); layers of their own, so that growth copies one at a time.

    At most `rows` rows of `length` tokens, and no more than `limit` bytes where one is given: whoever admits rows asks `fits`.
    """

    def __init__(
        self, config: PreTrainedConfig, rows: int, length: int, dtype: torch.dtype, device: torch.device, limit: int | None = None
    ) -> None:
        super().__init__(layers=[])
        self._heads: int = config.num_key_value_heads
        self._dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._most = (rows, length)
        self._limit = limit
        self.keys = [torch.zeros(0, self._heads, 0, self._dim, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]
        self.values = list(self.keys)
        self._first = 0  # row of the coming forward pass's first sequence
        self._places = torch.zeros(0, dtype=torch.long)  # position of each of its tokens, (batch, tokens)
        self._span = 0  # how much of the length attention looks at

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and tokens of each that are allocated."""
        rows, _, length, _ = self.keys[0].shape
        return rows, length

    @property
    def bytes(self) -> int:
        return self._bytes(*self.shape)

    def fits(self, rows: int, length: int) -> bool:
        """Whether so many rows can grow to `length` tokens. One row always may."""
        return rows <= 1 or self._limit is None or self._bytes(rows, self._whole(length)) <= self._limit

    def reserve(self, rows: int, length: int, live: int) -> None:
        """Makes room for `rows` rows of `length` tokens; what the first `live` of them hold stays. They fit."""
        have_rows, have_length = self.shape
        if rows <= have_rows and length <= have_length:
            return
        if rows > have_rows:  # more at once than one: rows are admitted one by one
            have_rows = min(have_rows + have_rows // 2, self._most[0])
        exact = (rows, self._whole(length))
        ample = (max(rows, have_rows), max(exact[1], have_length))
        self._allocate(*(ample if live and self.fits(*ample) else exact), live)

    def aim(self, first_row: int, places: torch.Tensor, span: int) -> None:
        """The coming forward pass writes its tokens at `places` (batch, tokens) of rows from `first_row` on."""
        self._first, self._places, self._span = first_row, places, span

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = slice(self._first, self._first + key_states.shape[0])
        keys, values = self.keys[layer_idx][rows], self.values[layer_idx][rows]
        index = self._places[:, None, :, None].expand_as(key_states)
        keys.scatter_(2, index, key_states)
        values.scatter_(2, index, value_states)
        return keys[:, :, : self._span], values[:, :, : self._span]

    def move(self, source: int, target: int, length: int) -> None:
        for layer in (*self.keys, *self.values):
            layer[target, :, :length] = layer[source, :, :length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._span

    def _whole(self, length: int) -> int:
        """The length in whole blocks."""
        return min(-(-length // BLOCK) * BLOCK, self._most[1])

    def _bytes(self, rows: int, length: int) -> int:
        return 2 * len(self.keys) * rows * self._heads * length * self._dim * self.keys[0].element_size()

    def _allocate(self, rows: int, length: int, live: int) -> None:
        for layers in (self.keys, self.values):
            for number, old in enumerate(layers):
                if not live:
                    layers[number] = old = old[:0, :, :0].clone()  # the old memory goes before the new one comes
                # Zeros, since masked places are multiplied by 0, which only numbers survive.
                new = old.new_zeros(rows, self._heads, length, self._dim)
                kept = min(length, old.shape[2])
                new[:live, :, :kept] = old[:live, :, :kept]
                layers[number] = new
