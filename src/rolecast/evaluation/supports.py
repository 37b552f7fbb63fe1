"""How well an index finds what questions rest on: their gold passages, with the question as the query."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolecast.errors import InputError
from rolecast.evaluation.intervals import interval
from rolecast.ports import Retriever
from rolecast.types import Question

AT_ONCE = 256  # queries of one search
SAMPLES = 2000  # of the bootstrap


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean over questions with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Support:
    """`measures`: `recall@k` (share of a question's gold passages within the first k), `any@k`, `all@k`, and `mrr@K` of the largest k: one
    over the rank of the first gold passage. `without`: questions that name no gold passage, which are left out. `absent`: questions with one
    that the corpus lacks, so that no search finds it; they count.
    """

    questions: int
    without: int
    absent: int
    measures: Mapping[str, Measure]

    def record(self) -> dict[str, Any]:
        of = {name: {"mean": m.mean, "ci95": [m.low, m.high]} for name, m in self.measures.items()}
        return {"questions": self.questions, "without": self.without, "absent": self.absent, "measures": of}


async def measure_supports(
    retriever: Retriever, questions: Sequence[Question], ks: Sequence[int], corpus: Collection[str] | None = None, seed: int = 0
) -> Support:
    """`corpus`: ids of the passages, where they are known. `InputError` if no question names a gold passage."""
    asked = [question for question in questions if question.gold.passages]
    if not asked:
        raise InputError("no question names its gold passages; nothing can be measured (docs/data.md: `passages`)")
    depth = max(ks)
    ranks: list[list[int]] = []
    for at in range(0, len(asked), AT_ONCE):
        part = asked[at : at + AT_ONCE]
        found = await retriever.search([question.text for question in part], depth)
        ranks += [_ranks(question, [passage.id for passage in hits]) for question, hits in zip(part, found, strict=True)]
    golds = [len(set(question.gold.passages)) for question in asked]
    scores: dict[str, list[float]] = {}
    for k in sorted(set(ks)):
        within = [sum(rank <= k for rank in of) for of in ranks]
        scores[f"recall@{k}"] = [n / gold for n, gold in zip(within, golds, strict=True)]
        scores[f"any@{k}"] = [float(n > 0) for n in within]
        scores[f"all@{k}"] = [float(n == gold) for n, gold in zip(within, golds, strict=True)]
    scores[f"mrr@{depth}"] = [1 / of[0] if of else 0.0 for of in ranks]
    absent = 0 if corpus is None else sum(not set(question.gold.passages) <= set(corpus) for question in asked)
    measures = {name: Measure(float(np.mean(values)), *interval(np.array(values), seed, SAMPLES)) for name, values in scores.items()}
    return Support(len(asked), len(questions) - len(asked), absent, measures)


def _ranks(question: Question, found: Sequence[str]) -> list[int]:
    """Of the gold passages that were found, ascending, from 1."""
    gold = set(question.gold.passages)
    return [rank for rank, id in enumerate(found, 1) if id in gold]


def support_table(rows: Mapping[str, Support]) -> str:
    """A line for each set of questions, a column for each measure."""
    names = list(next(iter(rows.values())).measures)
    head = ["questions", "n", *names]
    body = [[name, str(found.questions), *(str(found.measures[measure]) for measure in names)] for name, found in rows.items()]
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in [head, *body])
