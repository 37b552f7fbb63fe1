"""What each token of a forward pass may attend to, for every kind of layer that a model has."""

from __future__ import annotations

import torch
from transformers import PreTrainedConfig

from rolecast.weights.attention import windows_of


class AttentionMasks:
    """The masks of one model; made from positions, since the rows of a batch are at different ones."""

    def __init__(self, config: PreTrainedConfig, dtype: torch.dtype) -> None:
        self._windows = windows_of(config)
        self._dtype = dtype if config._attn_implementation == "eager" else None  # eager attention adds its mask to the scores

    def of(self, places: torch.Tensor, span: int, rows: int) -> torch.Tensor | dict[str, torch.Tensor]:
        """`places`: positions (rows or 1, tokens); keys are at positions 0 … `span` − 1. Each mask is (rows, 1, tokens, span)."""
        masks = {kind: self._mask(places, span, window, rows) for kind, window in self._windows.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _mask(self, places: torch.Tensor, span: int, window: int | None, rows: int) -> torch.Tensor:
        keys = torch.arange(span, device=places.device)
        seen = keys <= places[..., None]
        if window is not None:
            seen &= keys > places[..., None] - window
        if self._dtype is not None:
            seen = torch.zeros_like(seen, dtype=self._dtype).masked_fill(~seen, torch.finfo(self._dtype).min)
        return seen[:, None].expand(rows, -1, -1, -1)
