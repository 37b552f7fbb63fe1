"""The embedded judge for world rows: it reads gold chains and compares words. No model, no network.

Kinds: `answer` gives 0 or 1; role kinds give ±1, or no verdict. Each rule is one small function with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolecast.ports import Verdict
from rolecast.rewards.text import exact_match, normalize
from rolecast.types import Gold, Hop
from rolecast.world.grammar import Fact, facts_in, names, sentences, words

STOP = "None"


class LexicalJudge:
    """`Judge` over gold chains; rows without a chain are unscored by the role kinds."""

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        if kind not in _RULES:
            return Verdict(None, f"the lexical judge has no rule for {kind!r}")
        gold: Gold = inputs["gold"]
        if kind != "answer" and not gold.chain:
            return Verdict(None, "the question has no gold chain")
        return _RULES[kind](inputs, gold)


def holds(text: str, hop: Hop) -> bool:
    """Whether `text` states the hop's fact, as its passage does or condensed."""
    return Fact(hop.subject, hop.relation, hop.object) in facts_in(text) or _says(text, hop.fact)


def _says(text: str, fact: str) -> bool:
    """Whether `fact` stands in `text` as a whole clause, whatever the case and punctuation: a longer name is another name."""
    if not words(fact) or not names(text, fact):
        return False
    said = r"\W+".join(map(re.escape, words(fact)))
    before, after = r"(?:^|\n|[^\w\s])\s*(?<!\w[-'’])", r"(?![-'’]?\w|[^\S\n]+\w)"
    return re.search(before + said + after, text.lower()) is not None


def _answer(inputs: Mapping[str, Any], gold: Gold) -> Verdict:
    right = exact_match(inputs["prediction"], gold.answers)
    return Verdict(right, "matches a gold answer" if right else "matches no gold answer")


def _planner(inputs: Mapping[str, Any], gold: Gold) -> Verdict:
    """+1 iff the query is new, parses, names entity and relation of an unresolved hop and does not give the answer away."""
    query, memory, queries = inputs["content"], inputs["memory"], inputs["queries"]
    missing = [hop for hop in gold.chain if not holds(memory, hop)]
    if query == STOP:
        if not queries:
            return Verdict(-1.0, "stops before any search")
        return Verdict(-1.0, f"stops with {len(missing)} facts missing") if missing else Verdict(1.0, "stops with every fact in memory")
    if not query:
        return Verdict(-1.0, "does not parse")
    if normalize(query) in {normalize(past) for past in queries}:
        return Verdict(-1.0, "repeats a query")
    if any(names(query, answer) and not names(inputs["question"], answer) for answer in gold.answers):
        return Verdict(-1.0, "contains the gold answer")
    if not any(_asks_for(query, hop) for hop in missing):
        return Verdict(-1.0, "names no unresolved hop")
    return Verdict(1.0, "asks for an unresolved hop")


def _asks_for(query: str, hop: Hop) -> bool:
    """A hop is asked for by its relation and the entity that its gold query starts from."""
    entity = hop.subject if names(hop.query, hop.subject) else hop.object
    return names(query, hop.relation) and names(query, entity)


def _filter(inputs: Mapping[str, Any], gold: Gold) -> Verdict:
    """+1 iff every gold fact among the documents is kept, at most one other, and nothing that is not in the documents."""
    kept, documents = inputs["content"], " ".join(inputs["documents"])
    lost = [hop for hop in gold.chain if holds(documents, hop) and not holds(kept, hop)]
    if lost:
        return Verdict(-1.0, f"drops the gold fact {lost[0].fact!r}")
    statements = sentences(kept)
    foreign = [s for s in statements if not _stated(s, documents)]
    if foreign:
        return Verdict(-1.0, f"says what no document says: {foreign[0]!r}")
    others = [s for s in statements if not any(holds(s, hop) for hop in gold.chain)]
    if len(others) > 1:
        return Verdict(-1.0, f"keeps {len(others)} sentences that are not needed")
    return Verdict(1.0, "keeps the gold facts" if statements else "rightly keeps nothing")


def _stated(sentence: str, documents: str) -> bool:
    return normalize(sentence) in {normalize(s) for s in sentences(documents)}


def _answerer(inputs: Mapping[str, Any], gold: Gold) -> Verdict:
    """Blames a wrong answer only where the memory held the evidence (DECOR 4.3)."""
    if exact_match(inputs["content"], gold.answers):
        return Verdict(1.0, "right")
    if all(holds(inputs["memory"], hop) for hop in gold.chain):
        return Verdict(-1.0, "wrong with the evidence in memory")
    return Verdict(None, "wrong, but the evidence was not in memory")


_RULES: dict[str, Callable[[Mapping[str, Any], Gold], Verdict]] = {
    "answer": _answer,
    "decor.planner": _planner,
    "decor.filter": _filter,
    "decor.answerer": _answerer,
}
KINDS: Sequence[str] = tuple(_RULES)
