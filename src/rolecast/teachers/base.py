"""Scripted teachers: they know the gold chain and make decision errors at named rates.

SFT on a teacher makes reading and copying reliable; the errors are left for RL to mend.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from rolecast.identity import ADDED
from rolecast.judge.evidence import unresolved
from rolecast.ports import Completion, GenerateRequest
from rolecast.rewards.text import ABSTENTION
from rolecast.rollout.env import Env, LiveThread
from rolecast.types import Hop, Passage, Question, Trajectory
from rolecast.world.grammar import (
    DATED,
    LISTED,
    RELATIONS,
    RELATIONS_OF,
    Fact,
    facts_in,
    forward_query,
    inverse_query,
    names,
    rephrased,
    sentences,
)

T = TypeVar("T")


class TeacherErrors(BaseModel):
    """Probability of each error at each decision where it can be made, and the share of SFT's episodes without any."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stop_early: float = Field(0.0, ge=0, le=1)  # stops though a fact is missing
    wrong_relation: float = Field(0.0, ge=0, le=1)  # asks for another relation of the right entity
    keep_distractors: float = Field(0.0, ge=0, le=1)  # keeps two sentences that were not asked for
    drop_fact: float = Field(0.0, ge=0, le=1)  # refines another fact of the documents instead of the one that was asked for
    add_instead: float = Field(0.0, ge=0, le=1)  # mask's update: adds a step, though one of the trajectory asks for the evidence
    overwrite: float = Field(0.0, ge=0, le=1)  # mask's update: replaces a step that does not ask for the evidence
    guess: float = Field(0.0, ge=0, le=1)  # answers though the evidence is insufficient and it may abstain
    abstain: float = Field(0.0, ge=0, le=1)  # abstains though the evidence is sufficient
    drop_node: float = Field(0.0, ge=0, le=1)  # leaves a search that is needed out of a plan
    skip_aggregates: float = Field(0.0, ge=0, le=1)  # plans no aggregates: searches feed the answer
    skip_point: float = Field(0.0, ge=0, le=1)  # leaves one of a node's key points out of its report
    # share of SFT's episodes in which none of these errors is made, so that late states, which errors hide, are read often enough too
    faultless: float = Field(0.0, ge=0, le=1, json_schema_extra=ADDED)


class Teacher(Protocol):
    def reply(self, role: str, state: Any, episode: Trajectory, rng: random.Random) -> str:
        """What the role says in `state`; `episode` holds the question with its gold and all threads so far."""
        ...


class TeacherVoice:
    """Stands where an engine would: a teacher's episodes sample nothing."""

    version = "teacher"
    branches = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def generate(self, request: GenerateRequest) -> Completion:
        raise NotImplementedError("a teacher's episode asked the engine to speak")


@dataclass(slots=True)
class TeacherEnv(Env):
    """An `Env` in which the teacher speaks instead of the engine. Nothing waits in it: branches are played one after the other."""

    teacher: Teacher = field(kw_only=True)
    rng: random.Random = field(kw_only=True)

    async def complete(self, live: LiveThread) -> Completion:
        text = self.teacher.reply(live.role.name, live.state, self.trajectory, self.rng)
        text = text.removeprefix(live.opening.strip())  # a tag that the prompt opened is not said again
        tokens = self.renderer.encode(text)
        return Completion(tokens, (0.0,) * len(tokens), text, "stop")

    async def _together(self, branches: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
        return [await _end(branch) for branch in branches]


async def _end(branch: Coroutine[Any, Any, T]) -> T | BaseException:
    try:
        return await branch
    except Exception as error:
        return error


def next_query(question: Question, known: str, asked: Sequence[str], errors: TeacherErrors, rng: random.Random) -> str | None:
    """What to ask next when `known` is all that was found: None means that nothing is missing (or an early stop).

    A query is never repeated: after a miss it is put in other words once, then given up.
    """
    missing = unresolved(question.gold.chain, known, asked)
    if not missing or (asked and rng.random() < errors.stop_early):
        return None
    hop = missing[0]
    if hop.relation in RELATIONS and names(hop.query, hop.subject) and rng.random() < errors.wrong_relation:
        others = [r for r in RELATIONS_OF[RELATIONS[hop.relation][0]] if r != hop.relation]
        wrong = forward_query(rng.choice(others), hop.subject)
        if wrong not in asked:
            return wrong
    return next((query for query in (hop.query, rephrased(hop.query)) if query not in asked), None)


def kept_facts(documents: Sequence[Passage], query: str, errors: TeacherErrors, rng: random.Random) -> list[str]:
    """The sentences of the documents that answer `query`, in their order, or with `keep_distractors` two others among them."""
    said = [sentence for document in documents for sentence in sentences(document.text)]
    asked = [sentence for sentence in said if any(query in _phrasings(fact) for fact in facts_in(sentence))]
    others = [sentence for sentence in said if sentence not in asked]
    if rng.random() < errors.keep_distractors:
        asked += rng.sample(others, min(2, len(others)))
    return [sentence for sentence in said if sentence in asked]


def _phrasings(fact: Fact) -> set[str]:
    forward, inverse = forward_query(fact.relation, fact.subject), inverse_query(fact.relation, fact.object)
    return {forward, inverse, rephrased(forward), rephrased(inverse)}


def reasoning(question: Question, known: str, asked: Sequence[str] = ()) -> str:
    """What an answer follows from: what is compared, the names to intersect, who was chosen, else the query of the fact that has it.

    Years, and who was chosen, are quoted as reading drills have them: in a form of its own, a small model does not find them.
    `asked`: what was searched for. Where that is all and something was not stated anywhere, it follows from nothing.
    """
    facts = dict.fromkeys(facts_in(known))
    chain, found = question.gold.chain, _found(question, facts)
    if question.type == "comparison":
        if _dated(chain[-1]):
            return " ".join(hop.fact for hop in found if _dated(hop)) or "nothing"
        return " and ".join(hop.object for hop in found) or "nothing"
    if question.type == "intersection" and not checked(question):
        wanted = {(hop.relation, hop.object) for hop in chain}
        return " and ".join(fact.subject for fact in facts if (fact.relation, fact.object) in wanted) or "nothing"
    if not unresolved(chain, known, asked):
        if question.type == "unanswerable":
            return "nothing"
        if question.type == "intersection":
            chosen = next(hop for hop in reversed(chain) if hop.subject == question.gold.answers[0])
            return f"{inverse_query(chosen.relation, chosen.object)}: {chosen.fact}"
    return found[-1].query if found else "nothing"


def best_answer(question: Question, known: str, asked: Sequence[str] = ()) -> str:
    """The gold answer if `known` holds the whole chain, else the last thing that was found on the way.

    A hop that no passage states is held as soon as `asked` has it: the gold answer is then to abstain.
    """
    found = _found(question, facts_in(known))
    if not unresolved(question.gold.chain, known, asked):
        return question.gold.answers[0]
    if question.type == "comparison":
        return ABSTENTION if _dated(question.gold.chain[-1]) else "no"
    if question.type == "intersection":
        return found[0].subject if found and not checked(question) else ABSTENTION
    return found[-1].object if found else ABSTENTION


def _dated(hop: Hop) -> bool:
    return hop.relation in DATED.values()


def checked(question: Question) -> bool:
    """Whether it asks who on a list has something, so that everyone on it is asked for theirs."""
    return question.gold.chain[0].relation in LISTED.values()


def _found(question: Question, facts: Collection[Fact]) -> list[Hop]:
    """The hops of the gold chain that `facts` state."""
    return [hop for hop in question.gold.chain if Fact(hop.subject, hop.relation, hop.object) in facts]
