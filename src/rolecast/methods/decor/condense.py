"""The demo's frozen text processor: evidence to atomic facts, by extraction. Nothing is inferred, nothing is dropped."""

from rolecast.world.grammar import facts_in, sentences


def condense(evidence: str) -> str:
    """The sentences of `evidence`, each once: one that states a fact in its shortest form, any other word for word."""
    return " ".join(dict.fromkeys(map(_shortest, sentences(evidence))))


def _shortest(sentence: str) -> str:
    facts = facts_in(sentence)
    return facts[0].atom if [fact.sentence for fact in facts] == [sentence] else sentence
