"""How a plan and the answerer's reports are written and read.

The instruct prompts write a plan as JSON. The compact ones, for models that are too small for that, write the same graph in a short form,
whose nodes are numbered by their places: "search mentor of Brol Tan; search mayor of Zen Kol; join 1; join 2; answer 3 4".
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rolecast.methods.base import PromptStyle
from rolecast.methods.decomposer.graph import Graph, Node, PlanFault, Structure, check
from rolecast.tags import blocks

TEXT = {"search": "query", "aggregate": "need", "answer": "brief"}  # what a node's text is called, by its type
WORDS = {"search": "search", "aggregate": "join", "answer": "answer"}  # what begins a node in the short form
_NODE = re.compile(r'<node id="?([^\s<>"]+)"?>(.*?)</node>', re.DOTALL)
_CITATION = re.compile(r"\s*\[(\d+(?:\s*,\s*\d+)*)\]")


class _SearchRow(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    id: str = Field(pattern=r"^[\w.-]+$")
    type: Literal["search"]
    query: str
    key_points: list[str] = []


class _AggregateRow(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    id: str = Field(pattern=r"^[\w.-]+$")
    type: Literal["aggregate"]
    need: str = ""
    key_points: list[str] = []


class _AnswerRow(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    id: str = Field(pattern=r"^[\w.-]+$")
    type: Literal["answer"]
    brief: str = ""


class _Rows(BaseModel):
    """A plan's JSON."""

    model_config = ConfigDict(extra="ignore")

    nodes: list[Annotated[_SearchRow | _AggregateRow | _AnswerRow, Field(discriminator="type")]]
    edges: list[tuple[str, str]] = []


@dataclass(frozen=True, slots=True)
class PlanForm:
    """Reads and writes the plans of one prompt style. What is read is valid and complete."""

    style: PromptStyle
    structure: Structure = "dag"

    def read(self, text: str, question: str) -> Graph:
        """Raises PlanFault, which says what is wrong."""
        graph = _read_json(text) if self.style == "instruct" else _read_short(text)
        check(graph, self.structure)
        return graph.completed(question)

    def write(self, graph: Graph) -> str:
        return json.dumps(as_json(graph), ensure_ascii=False) if self.style == "instruct" else _write_short(graph)


def as_json(graph: Graph) -> dict[str, object]:
    rows = [
        {"id": node.id, "type": node.type, TEXT[node.type]: node.text}
        | ({} if node.type == "answer" else {"key_points": list(node.key_points)})
        for node in graph.nodes
    ]
    return {"nodes": rows, "edges": [list(edge) for edge in graph.edges]}


def from_json(data: object) -> Graph:
    """Raises PlanFault for what has another shape than a plan's JSON."""
    try:
        read = _Rows.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise PlanFault(f"{'.'.join(map(str, first['loc'])) or 'plan'}: {first['msg']}") from None
    nodes = [Node(row.id, row.type, getattr(row, TEXT[row.type]), tuple(getattr(row, "key_points", ()))) for row in read.nodes]
    return Graph(tuple(nodes), tuple(read.edges))


def _read_json(text: str) -> Graph:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise PlanFault("the plan is no JSON") from None
    return from_json(data)


def _read_short(text: str) -> Graph:
    nodes: list[Node] = []
    edges: list[tuple[str, str]] = []
    types = {word: type for type, word in WORDS.items()}
    for number, part in enumerate(text.split(";"), 1):
        word, _, rest = part.strip().partition(" ")
        if word not in types:
            raise PlanFault(f"node {number} begins with none of {', '.join(types)}")
        type, rest = types[word], rest.strip()
        if type == "search":
            nodes.append(Node(str(number), type, rest))
            continue
        if not re.fullmatch(r"\d+( \d+)*", rest):
            raise PlanFault(f"node {number} does not say by their numbers what it is made of")
        nodes.append(Node(str(number), type, ""))
        edges += [(producer, str(number)) for producer in rest.split(" ")]
    return Graph(tuple(nodes), tuple(edges))


def _write_short(graph: Graph) -> str:
    numbers = {node.id: str(place) for place, node in enumerate(graph.nodes, 1)}
    parts = []
    for node in graph.nodes:
        rest = node.text if node.type == "search" else " ".join(numbers[parent.id] for parent in graph.parents(node.id))
        parts.append(f"{WORDS[node.type]} {rest}")
    return "; ".join(parts)


# Replies. A block of thoughts may come first.


def read_blocks(text: str, *tags: str) -> dict[str, str] | None:
    return blocks(text, "think", *tags) or blocks(text, *tags)


def read_numbers(text: str) -> list[int] | None:
    """Numbers of search results, as a JSON list or one after the other; none of an empty text."""
    bare = text.strip().removeprefix("[").removesuffix("]").replace(",", " ")
    return [int(number) for number in bare.split()] if re.fullmatch(r"[\d\s]*", bare) else None


def read_reports(text: str, wanted: Sequence[str]) -> dict[str, str] | None:
    """A wave's reply: one block for each wanted node, in any order; None where one is missing, there twice or not asked for."""
    found = read_blocks(text, "nodes")
    if found is None or _NODE.sub("", found["nodes"]).strip():
        return None
    rows = [(match[1], match[2].strip()) for match in _NODE.finditer(found["nodes"])]
    ids = [id for id, _ in rows]
    return dict(rows) if sorted(ids) == sorted(wanted) else None


@dataclass(frozen=True, slots=True)
class Final:
    """What the answer node says: the report, and the short answer where one is asked for."""

    report: str
    answer: str | None = None


def read_final(text: str, id: str, short_answer: bool) -> Final | None:
    """The answer node's block, and after it the short answer. None for any other reply, or where one of them says nothing."""
    match = re.fullmatch(r"\s*(?:<think>.*?</think>)?\s*" + _NODE.pattern + r"\s*(.*)", text, re.DOTALL)
    if match is None or match[1] != id or not match[2].strip():
        return None
    if not short_answer:
        return Final(match[2].strip()) if not match[3].strip() else None
    found = blocks(match[3], "answer")
    return Final(match[2].strip(), found["answer"]) if found and found["answer"] else None


def node_block(id: str, text: str) -> str:
    return f"<node id={id}> {text}</node>" if text else f"<node id={id}></node>"


# Citations: numbers of passages in brackets, behind what they support.


def uncited(text: str) -> str:
    """The text without its citations."""
    return _CITATION.sub("", text)


def citations(text: str) -> list[int]:
    """Numbers of the passages that the text cites, in order, each once."""
    return list(dict.fromkeys(int(number) for match in _CITATION.finditer(text) for number in match[1].split(",")))


def cited_sentences(text: str) -> list[tuple[str, list[int]]]:
    """Sentences without their citations, each with the numbers of those that stand in it or right behind it."""
    marked = re.sub(r"([.!?])((?:\s*\[\d+(?:\s*,\s*\d+)*\])+)", r"\2\1", text)  # a citation behind the full stop goes before it
    parts = [part for part in re.split(r"(?<=[.!?])\s+", marked.strip()) if part]
    return [(uncited(part).strip(), citations(part)) for part in parts]
