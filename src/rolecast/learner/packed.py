"""A pack on a device: one long row, whose tokens attend along the trees of its rows, and what predicts each trained token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import pad

from rolecast.learner.batch import Ints, TokenBatch, on_device
from rolecast.learner.forest import Layout
from rolecast.learner.tally import Tally
from rolecast.weights.attention import BLOCK, Forest


@dataclass(frozen=True, slots=True)
class Packed:
    """`ids` (1, width). A trained token that rows share is asked for once.

    Behind the rows' tokens come as many as a mask of blocks wants; each attends to itself, and nothing is predicted from it.
    """

    ids: torch.Tensor
    forest: Forest
    row: torch.Tensor  # (asked,), all 0
    source: torch.Tensor  # (asked,) the token that each is predicted from
    target: torch.Tensor  # (asked,) the ids of the tokens of the forest that some row trains, in its order
    index: torch.Tensor | None  # (trained,) ascending: which of them each trained token is, where rows share some
    flat: Ints  # (trained,) its index in the TokenBatch
    held: int  # tokens of its rows, those that they share as often as they occur
    laid: int  # tokens of its forest

    @classmethod
    def of(cls, batch: TokenBatch, rows: Sequence[int], sharing: bool, device: torch.device) -> Packed:
        layout, trained = Layout.of(batch, rows, sharing), batch.trained
        nodes, before, flat = [], [], []
        for row, token in zip(layout.row.tolist(), layout.token, strict=True):
            start, end = batch.starts[row], batch.starts[row + 1]
            places = np.flatnonzero(trained[start:end])
            nodes.append(token[places])
            before.append(token[places - 1])
            flat.append(places + start)
        node, source, found = (np.concatenate(column) for column in (nodes, before, flat))
        order = np.argsort(node, kind="stable")
        asked, first, index = np.unique(node[order], return_index=True, return_inverse=True)
        arrays = (layout.ids[None], layout.position, layout.end, np.zeros_like(asked), source[order][first], layout.ids[asked])
        ids, position, end, zeros, predicting, target = (on_device(array, device) for array in arrays)
        shared = on_device(index, device) if len(asked) < len(node) else None
        held, laid = sum(map(len, layout.token)), len(layout.ids)
        bare = cls(ids, Forest(position, end), zeros, predicting, target, shared, found[order], held, laid)
        return bare.filled(BLOCK) if device.type == "cuda" else bare

    def filled(self, size: int) -> Packed:
        """With fillers up to a multiple of `size`."""
        width = self.ids.shape[1]
        filler = -width % size
        alone = torch.arange(width, width + filler, device=self.ids.device)
        forest = Forest(pad(self.forest.position, (0, filler)), torch.cat([self.forest.end, alone + 1]))
        return replace(self, ids=pad(self.ids, (0, filler)), forest=forest)

    def tell(self, tally: Tally, budget: int) -> None:
        """How full the pack is, of what is computed and of its budget, and how often its tokens are used."""
        width = self.ids.shape[1]
        tally.add("pack/fill", self.laid / width, width)
        tally.add("pack/of_budget", self.laid / max(budget, self.laid))
        tally.add("pack/trie_ratio", self.held / self.laid, self.laid)
