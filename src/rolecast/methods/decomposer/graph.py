"""A plan: a typed graph without cycles, its validator, and the order in which it is executed (DecomposeR 3.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

NodeType = Literal["search", "aggregate", "answer"]
Structure = Literal["dag", "tree", "linear"]
TYPES: tuple[str, ...] = get_args(NodeType)


class PlanFault(ValueError):
    """Why a text is no plan, in one line."""


@dataclass(frozen=True, slots=True)
class Node:
    """`text` is a search's query, an aggregate's need or the answer's brief; the answer has no key points."""

    id: str
    type: str  # one of TYPES where the graph is valid
    text: str
    key_points: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """What the rubric is compared with: query or need, and key points, those that are not empty."""
        return tuple(text for text in (self.text, *self.key_points) if text.strip())


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in the order of the plan. An edge (producer, consumer) hands on what a search found or an aggregate concluded."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]

    def __getitem__(self, id: str) -> Node:
        return next(node for node in self.nodes if node.id == id)

    def of_type(self, type: NodeType) -> list[Node]:
        return [node for node in self.nodes if node.type == type]

    @property
    def searches(self) -> list[Node]:
        return self.of_type("search")

    @property
    def aggregates(self) -> list[Node]:
        return self.of_type("aggregate")

    @property
    def answer(self) -> Node:
        return self.of_type("answer")[0]

    def parents(self, id: str) -> list[Node]:
        """In the order of the edges, each once."""
        return [self[producer] for producer in dict.fromkeys(p for p, consumer in self.edges if consumer == id)]

    def children(self, id: str) -> list[Node]:
        return [self[consumer] for consumer in dict.fromkeys(c for producer, c in self.edges if producer == id)]

    def waves(self) -> list[list[Node]]:
        """Aggregates by the wave in which all of their inputs are there. A search's results are there before the first wave."""
        waves: list[list[Node]] = []
        done: set[str] = set()
        left = self.aggregates
        while left:
            ready = [node for node in left if all(p.id in done for p in self.parents(node.id) if p.type == "aggregate")]
            if not ready:
                raise PlanFault("the graph has a cycle")
            waves.append(ready)
            done |= {node.id for node in ready}
            left = [node for node in left if node.id not in done]
        return waves

    def edge_types(self) -> Counter[str]:
        """How many edges there are of each type, "search-aggregate" and so on (A.6)."""
        return Counter(f"{self[producer].type}-{self[consumer].type}" for producer, consumer in dict.fromkeys(self.edges))

    def completed(self, question: str) -> Self:
        """With what a plan may leave out: a search's key point is its query, an aggregate's are its parents', its need is its key points,
        and the answer's brief is the question."""
        points = {node.id: node.key_points or (node.text,) for node in self.searches}
        for node in [node for wave in self.waves() for node in wave]:
            inherited = dict.fromkeys(point for parent in self.parents(node.id) for point in points[parent.id])
            points[node.id] = node.key_points or tuple(inherited)

        def filled(node: Node) -> Node:
            if node.type == "answer":
                return replace(node, text=node.text or question)
            return replace(node, text=node.text or "; ".join(points[node.id]), key_points=points[node.id])

        return replace(self, nodes=tuple(map(filled, self.nodes)))


def check(graph: Graph, structure: Structure = "dag") -> None:
    """Raises PlanFault for what is no plan: ids unique and known, types allowed, no cycle, connected, exactly one answer node, which
    has no outgoing edge. `linear` allows no aggregates, `tree` no aggregate of two parents (A.8).
    """
    ids = [node.id for node in graph.nodes]
    if twice := [id for id, count in Counter(ids).items() if count > 1]:
        raise PlanFault(f"node {twice[0]!r} is there twice")
    if odd := [node for node in graph.nodes if node.type not in TYPES]:
        raise PlanFault(f"node {odd[0].id!r} is of type {odd[0].type!r}; there are {', '.join(TYPES)}")
    if unknown := [id for edge in graph.edges for id in edge if id not in ids]:
        raise PlanFault(f"an edge names {unknown[0]!r}, which is no node")
    answers = graph.of_type("answer")
    if len(answers) != 1:
        raise PlanFault(f"there are {len(answers)} answer nodes; a plan has one")
    if any(producer == answers[0].id for producer, _ in graph.edges):
        raise PlanFault(f"the answer node {answers[0].id!r} has an outgoing edge")
    if mute := [node for node in graph.searches if not node.text.strip()]:
        raise PlanFault(f"search {mute[0].id!r} has no query")
    _check_acyclic(ids, graph.edges)
    _check_connected(ids, graph.edges)
    if structure == "linear" and graph.aggregates:
        raise PlanFault("a linear plan has no aggregates")
    if structure == "tree" and (wide := [node for node in graph.aggregates if len(graph.parents(node.id)) > 1]):
        raise PlanFault(f"aggregate {wide[0].id!r} has more than one parent; in a tree it has one")


def _check_acyclic(ids: Sequence[str], edges: Sequence[tuple[str, str]]) -> None:
    left = set(ids)
    while left:
        free = {id for id in left if not any(consumer == id and producer in left for producer, consumer in edges)}
        if not free:
            raise PlanFault("the graph has a cycle")
        left -= free


def _check_connected(ids: Sequence[str], edges: Sequence[tuple[str, str]]) -> None:
    reached = set(ids[:1])
    while grown := {id for edge in edges for id in edge if reached & set(edge)} - reached:
        reached |= grown
    if apart := [id for id in ids if id not in reached]:
        raise PlanFault(f"node {apart[0]!r} is not connected to {ids[0]!r}")
