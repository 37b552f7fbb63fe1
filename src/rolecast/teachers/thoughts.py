"""How a scripted teacher words what it thinks.

The demo's small model learns shorthand of two words, which a language model would learn to say in place of an answer. Language models, whose
prompts are full instructions, are shown sentences that say what is done and why.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thoughts:
    sentences: bool = False

    def seek(self, query: str) -> str:
        """Before something is asked for."""
        return f"I do not know this yet: {query}. I ask for it." if self.sentences else "next fact"

    def done(self) -> str:
        return "Nothing that the question needs is missing." if self.sentences else "nothing missing"

    def keep(self, found: bool) -> str:
        """Of documents."""
        if not self.sentences:
            return "keep" if found else "nothing"
        return "These sentences answer the query." if found else "No document answers the query."

    def begin(self, task: str) -> str:
        return f"I search for {task}." if self.sentences else "find"

    def conclude(self, reasons: str) -> str:
        """Before an answer: `reasons` are what it follows from, or "nothing"."""
        if not self.sentences:
            return reasons
        return "No evidence answers the question." if reasons == "nothing" else f"The answer follows from this evidence: {reasons}"


SHORTHAND = Thoughts()
