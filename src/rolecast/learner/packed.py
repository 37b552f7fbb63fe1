"""A pack on a device: one long row, whose tokens attend along the trees of its rows, and what predicts each trained token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rolecast.learner.batch import Ints, TokenBatch
from rolecast.learner.forest import Layout
from rolecast.weights.attention import BLOCK, Forest


@dataclass(frozen=True, slots=True)
class Packed:
    """`ids` (1, width). A token whose logits are wanted may predict several trained ones: what members of a group said next.

    Behind the rows' tokens come as many as a mask of blocks wants; each attends to itself, and nothing is predicted from it.
    """

    ids: torch.Tensor
    forest: Forest
    row: torch.Tensor  # (sources,), all 0
    source: torch.Tensor  # (sources,) ascending: the tokens that something trained is predicted from
    index: torch.Tensor  # (trained,) ascending: which of them predicts it
    target: torch.Tensor  # (trained,) its id
    flat: Ints  # (trained,) its index in the TokenBatch

    @classmethod
    def of(cls, batch: TokenBatch, rows: Sequence[int], sharing: bool, device: torch.device) -> Packed:
        layout = Layout.of(batch, rows, sharing)
        before, flat = [], []
        for row, token in zip(layout.row.tolist(), layout.token, strict=True):
            start, end = batch.starts[row], batch.starts[row + 1]
            places = np.flatnonzero(batch.trained[start:end])
            before.append(token[places - 1])
            flat.append(places + start)
        predicting, found = np.concatenate(before), np.concatenate(flat)
        order = np.argsort(predicting, kind="stable")
        source, index = np.unique(predicting[order], return_inverse=True)
        found = found[order]
        filler = -len(layout.ids) % BLOCK if device.type == "cuda" else 0
        alone = np.arange(len(layout.ids), len(layout.ids) + filler)
        arrays = (
            np.pad(layout.ids, (0, filler))[None], np.pad(layout.position, (0, filler)), np.concatenate([layout.end, alone + 1]),
            np.zeros(len(source), dtype=np.int64), source, index, batch.ids[found],
        )  # fmt: skip
        ids, position, ends, zeros, source_, index_, target = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays)
        return cls(ids, Forest(position, ends), zeros, source_, index_, target, found)
