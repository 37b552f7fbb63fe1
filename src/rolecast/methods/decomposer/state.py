"""What a DecomposeR episode knows at a decision, and what of it a later stage's question carries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from rolecast.methods.decomposer.form import as_json, citations, from_json
from rolecast.methods.decomposer.graph import Graph, Node, Structure
from rolecast.types import Passage


@dataclass(slots=True)
class Source:
    """A passage that was found, with the number that citations name it by. `text`: its first words until it is fetched."""

    number: int
    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """A search and what it found."""

    query: str
    sources: Sequence[Source]


@dataclass(frozen=True, slots=True)
class Assigned:
    """A node that the answerer is to fill: what it asks for, its parents' reports, and the evidence of its own searches."""

    id: str
    text: str
    key_points: Sequence[str]
    reports: Mapping[str, str]  # by the aggregate that wrote it
    evidence: Sequence[Found]

    @property
    def sources(self) -> list[Source]:
        return [source for found in self.evidence for source in found.sources]


@dataclass(slots=True)
class DecomposerState:
    """`draft`: the first graph, as it was written; "" where it was no plan. `results`: what its searches found, nothing of it fetched.
    `plan`: the graph that is executed.

    `structure`, `turns`, `fetches` and `short_answer` are what the config allows or asks for, as prompts tell it.
    """

    question: str
    structure: Structure = "dag"
    turns: int = 2
    fetches: int = 4
    short_answer: bool = True
    draft: str = ""
    results: list[Found] = field(default_factory=list)
    plan: Graph | None = None
    wave: list[Assigned] = field(default_factory=list)
    final: Assigned | None = None
    catalogue: list[Source] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)  # all that were found, in the order of their numbers
    found: dict[str, list[int]] = field(default_factory=dict)  # numbers by query
    reports: dict[str, str] = field(default_factory=dict)  # of the aggregates that are filled

    def add(self, query: str, passages: Sequence[Passage], words: int) -> None:
        """What a search found. A passage that was found before keeps its number."""
        numbers = {source.id: source.number for source in self.sources}
        for passage in passages:
            if passage.id not in numbers:
                numbers[passage.id] = len(self.sources) + 1
                self.sources.append(Source(numbers[passage.id], passage.id, passage.title, first_words(passage.text, words)))
        self.found[query] = [numbers[passage.id] for passage in passages]

    def shown(self, numbers: Sequence[int]) -> list[Source]:
        return [self.sources[number - 1] for number in dict.fromkeys(numbers)]

    def assigned(self, node: Node) -> Assigned:
        assert self.plan is not None
        parents = self.plan.parents(node.id)
        reports = {parent.id: self.reports[parent.id] for parent in parents if parent.type == "aggregate"}
        evidence = [Found(parent.text, self.shown(self.found[parent.text])) for parent in parents if parent.type == "search"]
        return Assigned(node.id, node.text, node.key_points, reports, evidence)

    def citable(self) -> list[Source]:
        """What the final report may cite: the evidence that the branches cite, and that of searches which feed the answer."""
        assert self.final is not None
        cited = [number for report in self.final.reports.values() for number in citations(report)]
        direct = [source.number for source in self.final.sources]
        return self.shown(sorted({*direct, *(number for number in cited if 0 < number <= len(self.sources))}))

    def kept(self) -> dict[str, Any]:
        """The plan with what it found, as JSON has it."""
        assert self.plan is not None
        return {"plan": as_json(self.plan), "sources": [asdict(source) for source in self.sources], "found": self.found}

    @classmethod
    def of(cls, question: str, given: Mapping[str, Any], structure: Structure, turns: int, fetches: int, short_answer: bool) -> Self:
        """A state to begin with, or one whose plan was made before."""
        state = cls(question, structure, turns, fetches, short_answer)
        if "plan" in given:
            state.plan, state.found = from_json(given["plan"]), dict(given["found"])
            state.sources = [Source(**source) for source in given["sources"]]
        return state


def first_words(text: str, count: int) -> str:
    """The text up to its word number `count`; all of a shorter one, as it is."""
    words = text.split()
    return text if len(words) <= count else " ".join(words[:count]) + " …"
