"""M-ASK's teacher: it plans the gold chain without knowing an answer, and fills the plan step by step."""

from __future__ import annotations

import random
from collections.abc import Sequence

from rolecast.methods.mask.replies import END
from rolecast.methods.mask.state import NOTHING, UNKNOWN, MaskState
from rolecast.tags import tagged
from rolecast.teachers.base import TeacherErrors, best_answer, kept_facts, next_query
from rolecast.types import Hop, Question, Trajectory
from rolecast.world.grammar import Fact, facts_in, rephrased


class MaskTeacher:
    """`knowledge`: whether summary and update fill the plan's steps; else documents are appended and its steps stay open."""

    def __init__(self, errors: TeacherErrors, knowledge: bool) -> None:
        self._errors = errors
        self._knowledge = knowledge

    def reply(self, role: str, state: MaskState, episode: Trajectory, rng: random.Random) -> str:
        question = episode.question
        if role == "planning":
            return plan_of(question.gold.chain)
        if role == "search":
            asked = [item.query for item in state.history]
            query = next_query(question, self._settled(state, question.gold.chain), asked, self._errors, rng)
            return tagged("search", query) if query else END
        if role == "summary":
            kept = kept_facts(state.documents, state.query, self._errors, rng)
            return tagged("evidence", " ".join(kept) or NOTHING)
        if role == "update":
            number = self._place(state, question, rng)
            return tagged("Update" if number <= len(state.trajectory) else "Add", f"t{number}")
        unfinished = self._knowledge and any(step.open for step in state.trajectory)
        return tagged("predicted_answer", UNKNOWN if unfinished else best_answer(question, _known(state)))

    def _settled(self, state: MaskState, chain: Sequence[Hop]) -> str:
        """The gold facts that are known and whose step is no longer open."""
        known = set(facts_in(_known(state)))
        waiting = {step.query for step in state.trajectory if step.open} if self._knowledge else set()
        settled = [
            hop.fact
            for number, hop in enumerate(chain)
            if Fact(hop.subject, hop.relation, hop.object) in known and not waiting & _wordings(chain, number)
        ]
        return " ".join(settled)

    def _place(self, state: MaskState, question: Question, rng: random.Random) -> int:
        """The open step that asks for what the query asked for, or the whole question; else a new one. Errors: a new one, or another."""
        steps, chain = state.trajectory, question.gold.chain
        asked = [_wordings(chain, number) for number in range(len(chain)) if state.query in _wordings(chain, number)]
        wanted = {question.text}.union(*asked) if asked else set()
        right = next((place for place, step in enumerate(steps, 1) if step.open and step.query in wanted), len(steps) + 1)
        if right <= len(steps) and rng.random() < self._errors.add_instead:
            return len(steps) + 1
        others = [place for place in range(1, len(steps) + 1) if place != right]
        if others and rng.random() < self._errors.overwrite:
            return rng.choice(others)
        return right


def plan_of(chain: Sequence[Hop]) -> str:
    """A sub-question for each hop, all unanswered: nothing of an invented world is known by heart."""
    steps = "".join(
        tagged(f"q{number + 1}", sub_question(chain, number)) + tagged(f"a{number + 1}", UNKNOWN) for number in range(len(chain))
    )
    return steps + tagged("predicted_answer", UNKNOWN)


def sub_question(chain: Sequence[Hop], number: int) -> str:
    """The hop's query; what the hop before is to find is called by its step."""
    hop = chain[number]
    if number and hop.subject == chain[number - 1].object:
        return hop.query.replace(hop.subject, f"t{number}")
    return hop.query


def _wordings(chain: Sequence[Hop], number: int) -> set[str]:
    return {sub_question(chain, number), chain[number].query, rephrased(chain[number].query)}


def _known(state: MaskState) -> str:
    return " ".join(step.answer for step in state.trajectory)
