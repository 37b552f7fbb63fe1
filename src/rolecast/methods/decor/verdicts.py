"""The lexical judge's rules for DECOR's roles."""

from __future__ import annotations

from collections.abc import Mapping

from rolecast.judge.evidence import OnChain, asks_for, holds, unresolved
from rolecast.judge.kinds import Rule
from rolecast.methods.decor.judge import AnswererInputs, FilterInputs, PlannerInputs
from rolecast.methods.decor.state import STOP
from rolecast.ports import Verdict
from rolecast.rewards.text import exact_match, normalize
from rolecast.world.grammar import names, sentences


def _planner(inputs: PlannerInputs) -> Verdict:
    """+1 iff the query is new, parses, names entity and relation of an unresolved hop and does not give the answer away.

    STOP: +1 iff nothing is left to find.
    """
    query, memory, queries = inputs.content, inputs.memory, inputs.queries
    missing = unresolved(inputs.gold.chain, memory, queries)
    if query == STOP:
        if not queries:
            return Verdict(-1.0, "stops before any search")
        return Verdict(-1.0, f"stops with {len(missing)} facts missing") if missing else Verdict(1.0, "stops with every fact in memory")
    if not query:
        return Verdict(-1.0, "does not parse")
    if normalize(query) in {normalize(past) for past in queries}:
        return Verdict(-1.0, "repeats a query")
    if any(names(query, answer) and not _asked_about(answer, inputs) for answer in inputs.gold.answers):
        return Verdict(-1.0, "contains the gold answer")
    if not any(asks_for(query, hop) for hop in missing):
        return Verdict(-1.0, "names no unresolved hop")
    return Verdict(1.0, "asks for an unresolved hop")


def _asked_about(answer: str, inputs: PlannerInputs) -> bool:
    """Some answers must be named on the way: candidates, or who is compared."""
    return names(inputs.question, answer) or any(names(hop.query, answer) for hop in inputs.gold.chain)


def _filter(inputs: FilterInputs) -> Verdict:
    """+1 iff every gold fact among the documents is kept, at most one other, and nothing that is not in the documents."""
    kept, documents = inputs.content, " ".join(inputs.documents)
    lost = [hop for hop in inputs.gold.chain if holds(documents, hop) and not holds(kept, hop)]
    if lost:
        return Verdict(-1.0, f"drops the gold fact {lost[0].fact!r}")
    statements = sentences(kept)
    foreign = [s for s in statements if not _stated(s, documents)]
    if foreign:
        return Verdict(-1.0, f"says what no document says: {foreign[0]!r}")
    others = [s for s in statements if not any(holds(s, hop) for hop in inputs.gold.chain)]
    if len(others) > 1:
        return Verdict(-1.0, f"keeps {len(others)} sentences that are not needed")
    return Verdict(1.0, "keeps the gold facts" if statements else "rightly keeps nothing")


def _stated(sentence: str, documents: str) -> bool:
    return normalize(sentence) in {normalize(s) for s in sentences(documents)}


def _answerer(inputs: AnswererInputs) -> Verdict:
    """Blames a wrong answer only where the memory held the evidence (DECOR 4.3)."""
    if exact_match(inputs.content, inputs.gold.answers):
        return Verdict(1.0, "right")
    if not unresolved(inputs.gold.chain, inputs.memory, inputs.queries):
        return Verdict(-1.0, "wrong with the evidence in memory")
    return Verdict(None, "wrong, but the evidence was not in memory")


RULES: Mapping[str, Rule] = {
    "decor.planner": OnChain(_planner),
    "decor.filter": OnChain(_filter),
    "decor.answerer": OnChain(_answerer),
}
