"""The reports world: the counterfactual world's facts, and questions that want several things at once, each found in two steps at most.

- `chain`: one or two facts, as in the counterfactual world: "What is the employer of the mentor of Brol Tan?"
- `pair`: two chains of one or two facts: "Report the employer of the mentor of Brol Tan and the mayor of Kel Dax."
- `fork`: two things of what a first fact leads to: "Report the employer and the birthplace of the mentor of Brol Tan."

Each has a short answer ("Kel Dax and Zen Kol"), and a rubric with one item for each fact, for which a report is scored.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from rolecast.types import Question, RubricItem
from rolecast.world.counterfactual import World, build_world
from rolecast.world.grammar import Fact
from rolecast.world.graph import Graph
from rolecast.world.questions import Draft, RelationsOf, draft_chain

DATASET = "reports"
SLOTS = (("chain", 1), ("chain", 2), ("fork", 3), ("pair", 4), ("pair", 2), ("pair", 3))  # (type, facts), in turn
LENGTHS = {2: (1, 1), 3: (1, 2), 4: (2, 2)}  # of a pair's chains
AND = " and "


def build_reports_world(seed: int, entities: dict[str, int], questions: dict[str, int]) -> World:
    """`entities` and `questions` per split; InputError where a split is too small for what it is asked."""

    def draw(graph: Graph, types: dict[str, str], number: int, rng: random.Random) -> Draft | None:
        return draw_question(graph, types, *SLOTS[number % len(SLOTS)], rng)

    world = build_world(seed, entities, questions, DATASET, draw)
    return replace(world, questions={split: [with_rubric(q) for q in rows] for split, rows in world.questions.items()})


def with_rubric(question: Question) -> Question:
    """An item for each gold fact."""
    rubric = tuple(RubricItem(hop.fact) for hop in question.gold.chain)
    return replace(question, gold=replace(question.gold, rubric=rubric))


def draw_question(graph: Graph, types: dict[str, str], kind: str, facts: int, rng: random.Random) -> Draft | None:
    """One try."""
    names = list(types)
    if kind == "chain":
        return draft_chain(graph, rng.choice(names), facts, rng, RelationsOf(types))
    if kind == "fork":
        lead = rng.choice(graph.about(rng.choice(names)))
        ends = [fact for fact in graph.about(lead.object) if fact.object != lead.subject]
        return draft_fork(lead, *rng.sample(ends, 2)) if len(ends) > 1 else None
    chains = [draft_chain(graph, rng.choice(names), length, rng, RelationsOf(types)) for length in rng.sample(LENGTHS[facts], 2)]
    paths = [tuple(fact for fact, _ in chain.facts) for chain in chains if chain is not None]
    return draft_pair(*paths) if len(paths) == 2 and not _names(paths[0]) & _names(paths[1]) else None


def draft_pair(first: Sequence[Fact], second: Sequence[Fact]) -> Draft:
    """The ends of two chains that share no entity."""
    text = f"Report {_path(first)} and {_path(second)}."
    return _draft(text, first[-1].object, second[-1].object, (*first, *second), "pair")


def draft_fork(lead: Fact, one: Fact, other: Fact) -> Draft:
    """Two things of what `lead` leads to."""
    text = f"Report the {one.relation} and the {other.relation} of {_path([lead])}."
    return _draft(text, one.object, other.object, (lead, one, other), "fork")


def _draft(text: str, one: str, other: str, facts: Sequence[Fact], kind: str) -> Draft:
    answers = tuple(dict.fromkeys((f"{one}{AND}{other}", f"{other}{AND}{one}")))
    return Draft(text, answers, tuple((fact, fact.query) for fact in facts), kind)


def _path(facts: Sequence[Fact]) -> str:
    return " of ".join([*(f"the {fact.relation}" for fact in reversed(facts)), facts[0].subject])


def _names(facts: Sequence[Fact]) -> set[str]:
    return {name for fact in facts for name in (fact.subject, fact.object)}
