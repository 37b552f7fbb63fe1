"""The demo's frozen text processor: evidence to atomic facts, by extraction. Nothing is inferred, no fact is dropped."""

from rolecast.world.grammar import facts_in


def condense(evidence: str) -> str:
    """Distinct facts of `evidence` in their shortest form; text that states no fact it can read is kept as it is."""
    atoms = list(dict.fromkeys(fact.atom for fact in facts_in(evidence)))
    return " ".join(atoms) if atoms else evidence
