"""What the rules of the lexical judge are made of: whether a text states a gold fact, and what is left to find."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from rolecast.judge.kinds import JudgeInputs
from rolecast.ports import Verdict
from rolecast.types import Hop
from rolecast.world.grammar import Fact, facts_in, names, words

Inputs = TypeVar("Inputs", bound=JudgeInputs)


class OnChain(Generic[Inputs]):
    """A rule where the question has a gold chain; unscored where it has none."""

    def __init__(self, rule: Callable[[Inputs], Verdict]) -> None:
        self._rule = rule

    def __call__(self, inputs: Inputs) -> Verdict:
        return self._rule(inputs) if inputs.gold.chain else Verdict(None, "the question has no gold chain")


def holds(text: str, hop: Hop) -> bool:
    """Whether `text` states the hop's fact, as its passage does or condensed."""
    return hop.stated and (Fact(hop.subject, hop.relation, hop.object) in facts_in(text) or says(text, hop.fact))


def unresolved(chain: Sequence[Hop], text: str, queries: Sequence[str]) -> list[Hop]:
    """The hops that `text` does not state. One that no passage states is resolved as soon as a query asks for it: there is no more to find."""
    return [hop for hop in chain if not (holds(text, hop) if hop.stated else any(asks_for(query, hop) for query in queries))]


def asks_for(query: str, hop: Hop) -> bool:
    """A hop is asked for by its relation and the entity that its gold query starts from."""
    entity = hop.subject if names(hop.query, hop.subject) else hop.object
    return names(query, hop.relation) and names(query, entity)


def says(text: str, fact: str) -> bool:
    """Whether `fact` stands in `text` as a whole clause, whatever the case and punctuation: a longer name is another name."""
    if not words(fact) or not names(text, fact):
        return False
    said = r"\W+".join(map(re.escape, words(fact)))
    before, after = r"(?:^|\n|[^\w\s])\s*(?<!\w[-'’])", r"(?![-'’]?\w|[^\S\n]+\w)"
    return re.search(before + said + after, text.lower()) is not None
