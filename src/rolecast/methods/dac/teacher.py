"""DAC's teacher. Its errors are decisions: it stops early, guesses where evidence is insufficient, abstains where it is sufficient."""

from __future__ import annotations

import random
from itertools import takewhile

from rolecast.methods.dac.state import STOP, UNKNOWN, DacState, evidence
from rolecast.tags import tagged
from rolecast.teachers.base import TeacherErrors, next_query, reasoning
from rolecast.teachers.thoughts import SHORTHAND, Thoughts
from rolecast.types import Question, Trajectory
from rolecast.world.grammar import Fact, facts_in


class DacTeacher:
    def __init__(self, errors: TeacherErrors, think: str, thoughts: Thoughts = SHORTHAND) -> None:
        self._errors = errors
        self._think = think
        self._thoughts = thoughts

    def reply(self, role: str, state: DacState, episode: Trajectory, rng: random.Random) -> str:
        if role == "searcher":
            return self._search(state, episode, rng)
        known = " ".join(passage.text for passage in state.documents)
        return tagged(self._think, self._thoughts.conclude(steps(episode.question, known))) + tagged(
            "answer", self._answer(known, state, episode.question, rng)
        )

    def _search(self, state: DacState, episode: Trajectory, rng: random.Random) -> str:
        known = " ".join(passage.text for passage in evidence(state.found))
        asked = [action.text.split("<search>")[1].split("</search>")[0].strip() for action in episode.threads[-1].actions]
        query = next_query(episode.question, known, asked, self._errors, rng)
        if query is None:
            return tagged(self._think, self._thoughts.done()) + STOP
        return tagged(self._think, self._thoughts.seek(query)) + tagged("search", query)

    def _answer(self, known: str, state: DacState, question: Question, rng: random.Random) -> str:
        """The two errors are made where it may abstain at all; what has to be an answer is a guess where evidence is missing."""
        enough = len(_held(question, known)) == len(question.gold.chain)
        if state.abstains and rng.random() < (self._errors.abstain if enough else 1 - self._errors.guess):
            return UNKNOWN
        return question.gold.answers[0] if enough else _guess(question, known, rng)


def steps(question: Question, known: str) -> str:
    """What the answer follows from, so that it can be read off: the facts of a chain in order, up to the first that is missing; those
    that are compared; of an intersection the names in question."""
    if question.type == "intersection":
        return reasoning(question, known)
    held, needed = _held(question, known), _needed(question)
    if question.type != "comparison":
        held = [fact for fact, _ in takewhile(lambda pair: pair[0] == pair[1], zip(held, needed, strict=False))]
    return " ".join(fact.sentence for fact in held) or "nothing"


def _needed(question: Question) -> list[Fact]:
    return [Fact(hop.subject, hop.relation, hop.object) for hop in question.gold.chain]


def _held(question: Question, known: str) -> list[Fact]:
    """The gold facts that `known` states, in the order of the chain."""
    said = set(facts_in(known))
    return [fact for fact in _needed(question) if fact in said]


def _guess(question: Question, known: str, rng: random.Random) -> str:
    """From what there is: yes or no, one of the names that have a property in question, the last name on the way, or just a name."""
    if question.type == "comparison":
        return rng.choice(("yes", "no"))
    facts = facts_in(known)
    if question.type == "intersection":
        wanted = {(hop.relation, hop.object) for hop in question.gold.chain}
        names = [fact.subject for fact in facts if (fact.relation, fact.object) in wanted]
    else:
        names = [fact.object for fact in _held(question, known)][-1:]
    return rng.choice(names or [fact.object for fact in facts] or [UNKNOWN])
