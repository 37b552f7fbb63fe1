"""A pack on a device: one long row, whose tokens attend along the trees of its rows, and what predicts each trained token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import pad

from rolecast.learner.batch import Ints, TokenBatch
from rolecast.learner.forest import Layout
from rolecast.learner.tally import Tally
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
    held: int  # tokens of its rows, those that they share as often as they occur
    laid: int  # tokens of its forest

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
        arrays = (layout.ids[None], layout.position, layout.end, np.zeros(len(source), dtype=np.int64), source, index, batch.ids[found])
        ids, position, end, zeros, source_, index_, target = (torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays)
        held, laid = sum(map(len, layout.token)), len(layout.ids)
        bare = cls(ids, Forest(position, end), zeros, source_, index_, target, found, held, laid)
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
