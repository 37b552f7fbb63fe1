"""DecomposeR's rewards as pure functions (App. A.5). What its text lost (weights, φ, the factor of partial credit) is ours; see docs/methods/decomposer.md.

Texts are compared by `Vectors`: unit vectors of an encoder, of which negative cosines count as 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import fsum
from statistics import fmean

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from rolecast.methods.decomposer.form import cited_sentences, uncited
from rolecast.methods.decomposer.graph import Graph
from rolecast.rewards.reports import met
from rolecast.rewards.text import normalize
from rolecast.types import RubricItem

SHIFT = 0.1  # ε of eq. 29
DIGITS = 4  # of a cosine: an encoder's last bits depend on what a text is encoded with, and equal plans must earn the same
_EMPTY = frozenset(
    [
        "and",
        "as",
        "at",
        "be",
        "been",
        "but",
        "by",
        "do",
        "does",
        "did",
        "for",
        "from",
        "had",
        "has",
        "have",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "of",
        "on",
        "or",
        "so",
        "than",
        "that",
        "their",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "to",
        "was",
        "were",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whom",
        "whose",
        "will",
        "with",
        "would",
    ]
)


class Weights(BaseModel):
    """Of each term, ours. A term that is left out has weight 0, and the others keep theirs (A.7)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    coverage: float = Field(0.4, ge=0)  # of the planner's reward: rubric coverage (eq. 18)
    search: float = Field(0.3, ge=0)  # search quality (eq. 19)
    expressiveness: float = Field(0.3, ge=0)  # of the graph (eq. 21)
    recall: float = Field(0.7, ge=0)  # of search quality: rubric coverage by queries alone
    distinctness: float = Field(0.3, ge=0)  # of queries from each other (eq. 20)
    branches: float = Field(0.4, ge=0)  # of expressiveness: distinct aggregates that feed the answer (eq. 22)
    connectivity: float = Field(0.3, ge=0)  # shared searches and aggregates of several parents (eq. 23)
    breadth: float = Field(0.3, ge=0)  # number of searches (eq. 24)
    execution: float = Field(0.5, ge=0)  # of the answerer's reward: aggregates against their key points (eq. 26-29)
    synthesis: float = Field(0.5, ge=0)  # the final report (eq. 30)
    matching: float = Field(0.5, ge=0)  # of a node's score: key points matched to sentences by meaning (eq. 27)
    lexical: float = Field(0.5, ge=0)  # words of key points that the node says (eq. 28)
    judge: float = Field(0.8, ge=0)  # of synthesis: the rubric, judged
    utilisation: float = Field(0.2, ge=0)  # words of the branches that the report says (eq. 31)


class Vectors:
    """Clamped cosines between texts: max(0, cos), rounded."""

    def __init__(self, texts: Sequence[str], rows: npt.NDArray[np.float32]) -> None:
        self._rows = {text: row.astype(np.float64) for text, row in zip(texts, rows, strict=True)}

    def cosine(self, one: str, other: str) -> float:
        return round(min(1.0, max(0.0, float(self._rows[one] @ self._rows[other]))), DIGITS)


def saturating(count: int) -> float:
    """φ, the diminishing-returns function: φ(0) = 0, φ(n) = 1 − 2^(1−n)."""
    return 1 - 2.0 ** (1 - count) if count else 0.0


def distinctness(texts: Sequence[str], vectors: Vectors) -> float:
    """1 − the mean clamped cosine over unordered pairs (eq. 20); 0 below two texts."""
    pairs = list(combinations(texts, 2))
    return 1 - fmean(vectors.cosine(one, other) for one, other in pairs) if pairs else 0.0


def coverage(rubric: Sequence[RubricItem], fields: Sequence[str], vectors: Vectors) -> float:
    """The weighted mean of each item's best match among the fields (eq. 18). 0 without fields. What a report should not say, an item of
    negative weight, is nothing to plan for."""
    wanted = [item for item in rubric if item.weight > 0]
    if not wanted or not fields:
        return 0.0
    total = fsum(item.weight for item in wanted)
    return fsum(item.weight * max(vectors.cosine(item.text, field) for field in fields) for item in wanted) / total


def fields_of(graph: Graph) -> list[str]:
    """Queries, needs and key points of all nodes but the answer."""
    return [field for node in graph.nodes if node.type != "answer" for field in node.fields]


def queries_of(graph: Graph) -> list[str]:
    return [node.text for node in graph.searches]


def branch_texts(graph: Graph) -> list[str]:
    """What the aggregates say that feed the answer directly."""
    return ["; ".join(node.fields) for node in graph.parents(graph.answer.id) if node.type == "aggregate"]


def branches(graph: Graph, vectors: Vectors) -> float:
    """φ(number of aggregates that feed the answer) · their distinctness (eq. 22)."""
    texts = branch_texts(graph)
    return saturating(len(texts)) * distinctness(texts, vectors)


def connectivity(graph: Graph) -> float:
    """φ(number of aggregates) · the mean of two shares: searches with two children or more, aggregates with two parents or more (eq. 23)."""
    shared = [len(graph.children(node.id)) > 1 for node in graph.searches]
    joined = [len(graph.parents(node.id)) > 1 for node in graph.aggregates]
    return saturating(len(joined)) * fmean([fmean(shared) if shared else 0.0, fmean(joined) if joined else 0.0])


def breadth(graph: Graph) -> float:
    """φ(number of searches) (eq. 24)."""
    return saturating(len(graph.searches))


def planner_terms(graph: Graph, rubric: Sequence[RubricItem], vectors: Vectors) -> dict[str, float]:
    """Every term by the name of its weight, from the revised graph alone."""
    queries = queries_of(graph)
    return {
        "coverage": coverage(rubric, fields_of(graph), vectors),
        "recall": coverage(rubric, queries, vectors),
        "distinctness": distinctness(queries, vectors),
        "branches": branches(graph, vectors),
        "connectivity": connectivity(graph),
        "breadth": breadth(graph),
    }


def planner_reward(terms: Mapping[str, float], weights: Weights) -> float:
    """Eq. 17, of a valid graph; 19 and 21 inside."""
    w = weights
    search = w.recall * terms["recall"] + w.distinctness * terms["distinctness"]
    expressive = w.branches * terms["branches"] + w.connectivity * terms["connectivity"] + w.breadth * terms["breadth"]
    return w.coverage * terms["coverage"] + w.search * search + w.expressiveness * expressive


# The answerer


def content_words(text: str) -> frozenset[str]:
    """Normalised words without citations, articles and words that carry no content."""
    return frozenset(re.sub(r"[^\w\s]", " ", normalize(uncited(text))).split()) - _EMPTY


def share_said(wanted: str, said: str) -> float:
    """Share of the content words of `wanted` that `said` has; 1 if there are none to be said."""
    words = content_words(wanted)
    return len(words & content_words(said)) / len(words) if words else 1.0


def sentences_of(text: str) -> list[str]:
    return [sentence for sentence, _ in cited_sentences(text) if sentence]


def matching(key_points: Sequence[str], text: str, vectors: Vectors) -> float:
    """Greedy one-to-one matches of key points to sentences, the best pair first, over the number of key points (eq. 27)."""
    points, said = list(enumerate(key_points)), list(enumerate(sentences_of(text)))
    pairs = sorted(((-vectors.cosine(point, sentence), i, j) for i, point in points for j, sentence in said))
    taken: set[tuple[str, int]] = set()
    score = 0.0
    for cosine, i, j in pairs:
        if ("point", i) not in taken and ("sentence", j) not in taken:
            taken |= {("point", i), ("sentence", j)}
            score -= cosine
    return score / len(key_points) if key_points else 0.0


def lexical(key_points: Sequence[str], text: str) -> float:
    """The mean share of each key point's content words that the text says (eq. 28)."""
    return fmean(share_said(point, text) for point in key_points) if key_points else 0.0


def node_score(key_points: Sequence[str], text: str, vectors: Vectors, weights: Weights) -> float:
    """Eq. 26. A text that says nothing scores 0."""
    if not text.strip():
        return 0.0
    return weights.matching * matching(key_points, text, vectors) + weights.lexical * lexical(key_points, text)


def shifted_harmonic_mean(scores: Sequence[float], shift: float = SHIFT) -> float:
    """n / Σ 1/(s + ε) − ε (eq. 29): all 0 gives 0, all 1 gives 1, one 0 does not give 0. Of no scores it is 0."""
    return len(scores) / fsum(1 / (score + shift) for score in scores) - shift if scores else 0.0


def execution(graph: Graph, reports: Mapping[str, str], vectors: Vectors, weights: Weights) -> float:
    """Over all aggregates; one without a report scores 0 (eq. 26-29)."""
    return shifted_harmonic_mean([
        node_score(node.key_points, reports.get(node.id, ""), vectors, weights) for node in graph.aggregates
    ])  # fmt: skip


def utilisation(reports: Sequence[str], final: str) -> float:
    """The mean share of each branch's content words that the final report says (eq. 31). A branch that says nothing does not count;
    without any it is 0."""
    said = [report for report in reports if content_words(report)]
    return fmean(share_said(report, final) for report in said) if said else 0.0


def answerer_reward(execution: float, judged: float, utilised: float, weights: Weights) -> float:
    """Eq. 25, with 30 inside. After a fault of form `judged` and `utilised` are 0, and what was executed still counts."""
    return weights.execution * execution + weights.synthesis * (weights.judge * judged + weights.utilisation * utilised)


def judged_report(levels: Sequence[float], rubric: Sequence[RubricItem], answer: float | None) -> float:
    """The weighted mean of the rubric's five-level scores (`rewards.reports.met`); a short answer counts as one item more, of weight 1."""
    scored = [(item.weight, level) for item, level in zip(rubric, levels, strict=True)]
    scored += [(1.0, answer)] if answer is not None else []
    return met(scored)
