"""Rows as a forest: what sequences begin with alike is one tree, and is computed once. And packs: the forest cut to a token budget.

Sorted as words are, sequences that share a beginning are neighbours, and the length that each shares with the one before it (`shared`)
is all that is to know of their tree: a set of rows has Σ length − Σ shared tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rolecast.learner.batch import Ints, TokenBatch

Bundle = Sequence[int]  # rows that stay in one pack


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a batch in the order of their trees: number `i` in it is `row[i]`. Without sharing each row is a tree of its own."""

    row: Ints
    length: Ints
    shared: Ints  # tokens that it begins with as the row before it does

    @classmethod
    def of(cls, batch: TokenBatch, rows: Iterable[int], sharing: bool) -> Rows:
        ids = {row: batch.ids[batch.starts[row] : batch.starts[row + 1]] for row in rows}
        # As bytes, the highest first, numbers are in the order of words.
        order = sorted(ids, key=lambda row: (ids[row].astype(">i8").tobytes(), row)) if sharing else sorted(ids)
        shared = [0] * len(order)
        if sharing:
            shared[1:] = [_alike(ids[a], ids[b]) for a, b in pairwise(order)]
        lengths = [len(ids[row]) for row in order]
        return cls(*(np.array(column, dtype=np.int64) for column in (order, lengths, shared)))

    @property
    def total(self) -> int:
        return self.tokens(np.arange(len(self.row)))

    def tokens(self, numbers: Ints) -> int:
        """How many the forest of these rows has. `numbers`: ascending places in the order."""
        if len(numbers) < 2:
            return int(self.length[numbers].sum())
        # Two rows share what every step between them shares.
        between = np.minimum.reduceat(self.shared[: numbers[-1] + 1], numbers[:-1] + 1)
        return int(self.length[numbers].sum() - between.sum())

    def packs(self, bundles: Sequence[Bundle], budget: int) -> list[tuple[int, ...]]:
        """The rows of every pack: at most `budget` tokens each, but a bundle that is larger is a pack of its own.

        First fit, decreasing. What is put into a pack is a family, which is a tree, or where that is larger than a pack, what it
        falls apart into further down; what they have in common is then in several packs. A family goes where it adds the
        fewest tokens, which is where its kin are, and among equals to the first.
        """
        number = np.empty(int(self.row.max()) + 1, dtype=np.int64)
        number[self.row] = np.arange(len(self.row))
        families = [np.sort(number[rows]) for rows in self._families(bundles, number, budget)]
        families.sort(key=lambda family: (-self.tokens(family), int(family[0])))
        tree = np.cumsum(self.shared == 0)  # rows of different ones have nothing in common
        packs: list[Ints] = []
        sizes: list[int] = []
        trees: list[set[int]] = []
        for family in families:
            own, of = self.tokens(family), set(tree[family].tolist())
            new = [
                size + own if of.isdisjoint(held) else self.tokens(_joined(pack, family))
                for pack, size, held in zip(packs, sizes, trees, strict=True)
            ]
            room = [place for place, size in enumerate(new) if size <= budget]
            if room:
                best = min(room, key=lambda place: (new[place] - sizes[place], place))
                packs[best], sizes[best] = _joined(packs[best], family), new[best]
                trees[best] |= of
            else:
                packs.append(family)
                sizes.append(own)
                trees.append(of)
        return [tuple(sorted(self.row[pack].tolist())) for pack in packs]

    def _families(self, bundles: Sequence[Bundle], number: Ints, budget: int) -> list[list[int]]:
        """Bundles joined that share more than some depth; the depth grows until each family fits, or is one bundle."""
        done: list[list[int]] = []
        open_: list[tuple[Sequence[Bundle], int]] = [(bundles, 0)]
        while open_:
            kin, depth = open_.pop()
            for family in self._kin(kin, number, depth):
                rows = [row for bundle in family for row in bundle]
                places = np.sort(number[rows])
                if len(family) == 1 or self.tokens(places) <= budget:
                    done.append(rows)
                else:
                    steps = np.minimum.reduceat(self.shared[: places[-1] + 1], places[:-1] + 1)
                    deeper = steps[steps > depth]
                    # Nothing is shared any deeper: bundles that other bundles joined come apart.
                    open_.append((family, int(deeper.min()))) if len(deeper) else done.extend(list(bundle) for bundle in family)
        return done

    def _kin(self, bundles: Sequence[Bundle], number: Ints, depth: int) -> list[list[Bundle]]:
        """Bundles in groups: two are in one where rows of theirs share more than `depth` tokens."""
        owner = {int(number[row]): index for index, bundle in enumerate(bundles) for row in bundle}
        places = np.array(sorted(owner))
        root = list(range(len(bundles)))

        def find(index: int) -> int:
            while root[index] != index:
                root[index] = root[root[index]]
                index = root[index]
            return index

        if len(places) > 1:
            steps = np.minimum.reduceat(self.shared[: places[-1] + 1], places[:-1] + 1)
            for at in np.flatnonzero(steps > depth):
                a, b = find(owner[int(places[at])]), find(owner[int(places[at + 1])])
                root[max(a, b)] = min(a, b)
        groups: dict[int, list[Bundle]] = {}
        for index, bundle in enumerate(bundles):
            groups.setdefault(find(index), []).append(bundle)
        return list(groups.values())


def _joined(a: Ints, b: Ints) -> Ints:
    """Of two ascending arrays without a common number, all numbers, ascending."""
    return np.sort(np.concatenate([a, b]))


def _alike(a: Ints, b: Ints) -> int:
    """How many tokens two sequences begin with alike."""
    n = min(len(a), len(b))
    other = np.flatnonzero(a[:n] != b[:n])
    return int(other[0]) if len(other) else n


@dataclass(frozen=True, slots=True)
class Layout:
    """A pack's tokens in depth-first order, and where the tokens of its rows are among them."""

    ids: Ints  # (tokens,)
    position: Ints  # (tokens,) within their rows
    end: Ints  # (tokens,) where the last token ends that follows in some row (weights.attention)
    row: Ints  # the rows, in their order in the forest
    token: list[Ints]  # of each of them: the places of its tokens

    @classmethod
    def of(cls, batch: TokenBatch, rows: Iterable[int], sharing: bool) -> Layout:
        forest = Rows.of(batch, rows, sharing)
        ids, position, end = (np.empty(forest.total, dtype=np.int64) for _ in range(3))
        path = np.empty(int(forest.length.max()), dtype=np.int64)  # from the root to the last token laid
        deep = laid = 0
        token: list[Ints] = []
        for row, length, shared in zip(forest.row.tolist(), forest.length.tolist(), forest.shared.tolist(), strict=True):
            end[path[shared:deep]] = laid
            new = slice(laid, laid + length - shared)
            path[shared:length] = np.arange(new.start, new.stop)
            ids[new] = batch.ids[batch.starts[row] + shared : batch.starts[row + 1]]
            position[new] = np.arange(shared, length)
            token.append(path[:length].copy())
            deep, laid = length, new.stop
        end[path[:deep]] = laid
        return cls(ids, position, end, forest.row, token)
