"""CoDA's teacher. Each role reads what its own context holds: the planner takes results at their word, so an executor's error misleads it.

Its errors are the planner's (which task comes next, stopping early) and the executor's: a refine that drops the needed fact.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rolecast.methods.coda.state import CodaState, Pair
from rolecast.tags import tagged
from rolecast.teachers.base import TeacherErrors, best_answer, checked, next_query, reasoning
from rolecast.teachers.thoughts import SHORTHAND, Thoughts
from rolecast.types import Hop, Question, Trajectory
from rolecast.world.grammar import DATED, Fact, facts_in, forward_query, inverse_query, names, rephrased

NOTHING = "unknown"  # an executor's word for: not found
_TWO_FACTS = re.compile(r"^(\w+) of the (\w+) of (\w+ \w+)$")


class CodaTeacher:
    """`depth` 2: tasks of two facts go to a lead, who delegates each of them."""

    def __init__(self, errors: TeacherErrors, max_turns: int, depth: int, thoughts: Thoughts = SHORTHAND) -> None:
        self._errors = errors
        self._thoughts = thoughts
        self._max_turns = max_turns
        self._depth = depth

    def reply(self, role: str, state: CodaState, episode: Trajectory, rng: random.Random) -> str:
        if role == "planner":
            return self._plan(episode.question, state, rng)
        if role == "monolith":
            return self._work_alone(episode.question, state, rng)
        if role == "lead" and (parts := _TWO_FACTS.match(state.task)):
            return self._lead(parts[2], parts[1], parts[3], state)
        return self._execute(state, rng)

    def _plan(self, question: Question, state: CodaState, rng: random.Random) -> str:
        believed, known = take_at_word(question, state.pairs)
        asked = [pair.task for pair in state.pairs]
        task = next_query(believed, known, asked, self._errors, rng) if len(asked) < self._max_turns - 1 else None
        if task is None:
            return tagged("think", self._thoughts.conclude(reasoning(believed, known, asked))) + tagged(
                "answer", best_answer(believed, known, asked)
            )
        if self._depth > 1 and (both := _two_facts(believed, task)) and both not in asked:
            task = both
        return tagged("think", self._thoughts.seek(task)) + tagged("task", task)

    def _lead(self, first: str, second: str, subject: str, state: CodaState) -> str:
        """Delegates the two facts one after the other."""
        if state.pairs and state.pairs[-1].result in ("", NOTHING):
            return tagged("think", self._thoughts.conclude("nothing")) + tagged("answer", NOTHING)
        if len(state.pairs) == 2:
            return tagged("think", self._thoughts.conclude(state.pairs[-1].task)) + tagged("answer", state.pairs[-1].result)
        task = forward_query(second, state.pairs[0].result) if state.pairs else forward_query(first, subject)
        return tagged("think", self._thoughts.seek(task)) + tagged("task", task)

    def _execute(self, state: CodaState, rng: random.Random) -> str:
        """Searches for the task as it stands, once more in other words, and reports what it refined."""
        if not state.queries:
            return tagged("think", self._thoughts.begin(state.task)) + tagged("search", state.task)
        kept = self._refine(state, rng)
        refine = tagged("refine", " ".join(fact.sentence for fact in kept))
        other = _other_words(state.task)
        if not kept and other is not None and other not in state.queries:
            return refine + tagged("search", other)
        return refine + tagged("answer", _report(state.task, kept))

    def _work_alone(self, question: Question, state: CodaState, rng: random.Random) -> str:
        kept = self._refine(state, rng) if state.queries else []
        refine = tagged("refine", " ".join(fact.sentence for fact in kept)) if state.queries else ""
        known = " ".join([*state.notes, *(fact.sentence for fact in kept)])
        query = next_query(question, known, state.queries, self._errors, rng) if len(state.queries) < self._max_turns - 1 else None
        if query is None:
            thought, answer = (
                self._thoughts.conclude(reasoning(question, known, state.queries)),
                best_answer(question, known, state.queries),
            )
            return refine + tagged("think", thought) + tagged("answer", answer)
        return refine + tagged("think", self._thoughts.seek(query)) + tagged("search", query)

    def _refine(self, state: CodaState, rng: random.Random) -> list[Fact]:
        """The facts among the last documents that the last query asked for; in error another one instead."""
        facts = [fact for document in state.documents for fact in facts_in(document.text)]
        asked = [fact for fact in facts if state.queries[-1] in _phrasings(fact)]
        others = [fact for fact in facts if fact not in asked]
        if asked and others and rng.random() < self._errors.drop_fact:
            return [rng.choice(others)]
        return asked


def take_at_word(question: Question, pairs: Sequence[Pair]) -> tuple[Question, str]:
    """The question as the results so far have it, and what they say, right or wrong: a chain goes on from the entity that was reported."""
    results = {pair.task: pair.result for pair in pairs if pair.result not in ("", NOTHING)}
    hops: list[Hop] = []
    known: list[Fact] = []
    for hop, ahead in zip(question.gold.chain, (*question.gold.chain[1:], None), strict=True):
        if question.type == "chain" and hops:
            hop = replace(hop, subject=hops[-1].object, query=forward_query(hop.relation, hops[-1].object))
        result = next((results[task] for task in (hop.query, rephrased(hop.query)) if task in results), "")
        if not result and ahead is not None and (both := f"{ahead.relation} of the {hop.query}") in results:
            result = hop.object  # nobody reported what lies between
            results[forward_query(ahead.relation, hop.object)] = results[both]
        facts = _facts(hop, result)
        if facts and facts[0].object != hop.object:
            hop = replace(hop, object=facts[0].object)
        elif facts and hop.subject not in [fact.subject for fact in facts]:
            hop = replace(hop, subject=facts[0].subject)
        known += facts
        hops.append(hop)
    gold = replace(question.gold, answers=(_conclusion(question, hops, known),), chain=tuple(hops))
    return replace(question, gold=gold), " ".join(fact.sentence for fact in known)


def _facts(hop: Hop, result: str) -> list[Fact]:
    """What a result says about a hop: its object, or all the subjects that have it."""
    if not result:
        return []
    if names(hop.query, hop.subject):
        return [Fact(hop.subject, hop.relation, result)]
    return [Fact(subject, hop.relation, hop.object) for subject in result.split(" and ")]


def _conclusion(question: Question, hops: Sequence[Hop], known: Sequence[Fact]) -> str:
    """The answer that follows if these are all facts."""
    if question.type in ("chain", "unanswerable"):
        return hops[-1].object or NOTHING
    if question.type == "comparison":
        if dated := [hop for hop in hops if hop.relation in DATED.values()]:
            return min(dated, key=lambda hop: hop.object).subject
        return "yes" if hops[0].object == hops[1].object else "no"
    if checked(question):
        [wanted] = {hop.object for hop in question.gold.chain if hop.subject == question.gold.answers[0]}
        return next((hop.subject for hop in hops[1:] if hop.object == wanted), NOTHING)
    return Counter(fact.subject for fact in known).most_common(1)[0][0] if known else NOTHING


def _two_facts(question: Question, task: str) -> str | None:
    """The task together with the one after it, if it is a step of a chain."""
    if question.type != "chain":
        return None
    following = zip(question.gold.chain, question.gold.chain[1:], strict=False)
    return next((f"{after.relation} of the {task}" for hop, after in following if hop.query == task), None)


def _report(task: str, kept: Sequence[Fact]) -> str:
    """What the refined facts say to the task."""
    if not kept:
        return NOTHING
    inverse = " is " in task or " as " in task
    return " and ".join(dict.fromkeys(fact.subject if inverse else fact.object for fact in kept))


def _phrasings(fact: Fact) -> set[str]:
    forward, inverse = forward_query(fact.relation, fact.subject), inverse_query(fact.relation, fact.object)
    return {forward, inverse, rephrased(forward), rephrased(inverse)}


def _other_words(query: str) -> str | None:
    """None for what is in other words already."""
    words = query.split()
    return rephrased(query) if len(words) > 2 and words[1] in ("of", "is") else None
