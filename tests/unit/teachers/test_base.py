"""What a teacher concludes from what was found."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from scripted import TableRetriever

from rolecast.methods.direct.teacher import DirectTeacher
from rolecast.methods.naive_rag.teacher import NaiveRagTeacher
from rolecast.methods.one_answer import AnswerState
from rolecast.rollout.env import Env
from rolecast.rollout.render import Renderer
from rolecast.teachers.base import TeacherEnv, TeacherErrors, TeacherVoice, best_answer, next_query, reasoning
from rolecast.types import Gold, Passage, Question, Role, Trajectory
from rolecast.world.grammar import Fact
from rolecast.world.questions import Draft, draft_choice, draft_comparison, draft_earlier, draft_intersection

MENTOR_A, MENTOR_B = Fact("Aal Ab", "mentor", "Tik Tok"), Fact("Bal Ba", "mentor", "Tik Tok")
OTHER = Fact("Bal Ba", "mentor", "Nix Nox")
CITY = Fact("Aal Ab", "birthplace", "Zon Zan")
SIBLING = Fact("Cal Ca", "birthplace", "Zon Zan")


def question(draft: Draft) -> Question:
    return draft.question("q", lambda fact: fact.sentence)


def said(*facts: Fact) -> str:
    return " ".join(fact.sentence for fact in facts)


@pytest.mark.parametrize(
    ("draft", "known", "thought", "answer"),
    [
        (draft_comparison(MENTOR_A, MENTOR_B), (MENTOR_A, MENTOR_B), "Tik Tok and Tik Tok", "yes"),
        (draft_comparison(MENTOR_A, OTHER), (OTHER, MENTOR_A), "Tik Tok and Nix Nox", "no"),
        (draft_comparison(MENTOR_A, MENTOR_B), (MENTOR_A,), "Tik Tok", "no"),
        (draft_comparison(MENTOR_A, MENTOR_B), (), "nothing", "no"),
        (draft_intersection("person", MENTOR_A, CITY), (MENTOR_B, MENTOR_A, CITY), "Bal Ba and Aal Ab and Aal Ab", "Aal Ab"),
        (draft_intersection("person", MENTOR_A, CITY), (MENTOR_A, SIBLING, CITY, CITY), "Aal Ab and Cal Ca and Aal Ab", "Aal Ab"),
        (draft_intersection("person", MENTOR_A, CITY), (MENTOR_A,), "Aal Ab", "Aal Ab"),
        (draft_intersection("person", MENTOR_A, CITY), (OTHER,), "nothing", "unknown"),
    ],
)  # fmt: skip
def test_reasoning_lists_what_is_compared_and_the_answer_follows(draft: Draft, known: tuple[Fact, ...], thought: str, answer: str) -> None:
    assert (reasoning(question(draft), said(*known)), best_answer(question(draft), said(*known))) == (thought, answer)


BORN_A, BORN_B, MAYOR = Fact("Aal Ab", "birth", "1911"), Fact("Bal Ba", "birth", "1905"), Fact("Zon Zan", "mayor", "Bal Ba")
EARLIER, LED = draft_earlier((BORN_A,), (BORN_B,)), draft_earlier((BORN_A,), (MAYOR, BORN_B))
COUNCIL = Fact("Zon Zan", "council", "Aal Ab and Bal Ba")
CHOICE = draft_choice(COUNCIL, (MENTOR_A, OTHER), OTHER)
MISSING = Fact("Bal Ba", "employer", "")
UNANSWERABLE = Draft("What?", ("unknown",), ((MAYOR, MAYOR.query), (MISSING, MISSING.query)), "unanswerable")
BOTH = ("mayor of Zon Zan", "employer of Bal Ba")


@pytest.mark.parametrize(
    ("draft", "known", "asked", "thought", "answer"),
    [
        (EARLIER, (BORN_B, BORN_A), (), f"{BORN_A.sentence} {BORN_B.sentence}", "Bal Ba"),
        (EARLIER, (BORN_A,), (), BORN_A.sentence, "unknown"),
        (LED, (BORN_A, MAYOR, BORN_B), (), f"{BORN_A.sentence} {BORN_B.sentence}", "Bal Ba"),
        (LED, (MAYOR,), (), "nothing", "unknown"),
        (CHOICE, (COUNCIL, MENTOR_A, OTHER), (), "mentor is Nix Nox: The mentor of Bal Ba is Nix Nox.", "Bal Ba"),
        (CHOICE, (COUNCIL, MENTOR_A), (), "mentor of Aal Ab", "unknown"),
        (CHOICE, (), (), "nothing", "unknown"),
        (UNANSWERABLE, (MAYOR,), BOTH, "nothing", "unknown"),
        (UNANSWERABLE, (MAYOR,), BOTH[:1], "mayor of Zon Zan", "Bal Ba"),  # it stopped early, as with any other chain
        (UNANSWERABLE, (), BOTH, "nothing", "unknown"),
        (Draft("What?", ("unknown",), ((MISSING, MISSING.query),), "unanswerable"), (), BOTH, "nothing", "unknown"),
    ],
)  # fmt: skip
def test_what_follows_in_a_crowd(draft: Draft | None, known: tuple[Fact, ...], asked: tuple[str, ...], thought: str, answer: str) -> None:
    assert draft is not None
    of = question(draft)
    assert (reasoning(of, said(*known), asked), best_answer(of, said(*known), asked)) == (thought, answer)


def test_what_no_passage_states_is_asked_for_once() -> None:
    asked: list[str] = []
    for known in ((), (MAYOR,), (MAYOR,)):
        query = next_query(question(UNANSWERABLE), said(*known), asked, TeacherErrors(), Random(0))
        if query is not None:
            asked.append(query)
    assert asked == list(BOTH)


def test_who_on_a_list_is_asked_for_in_its_order() -> None:
    of = question(CHOICE)
    asked = [next_query(of, said(*known), (), TeacherErrors(), Random(0)) for known in ((), (COUNCIL,), (COUNCIL, MENTOR_A))]
    assert asked == ["council of Zon Zan", "mentor of Aal Ab", "mentor of Bal Ba"]


def test_the_teacher_of_one_search_says_what_the_documents_support() -> None:
    asked = question(draft_comparison(MENTOR_A, MENTOR_B))
    episode = Trajectory("t", asked, "", 0, "naive_rag", 0)
    shown = [Passage("", "", fact.sentence) for fact in (MENTOR_B, CITY, MENTOR_A)]
    replies = [
        NaiveRagTeacher().reply("answerer", AnswerState(asked.text, documents), episode, Random(0)) for documents in (shown, shown[1:])
    ]
    assert replies == ["<answer> yes</answer>", "<answer> no</answer>"]
    assert DirectTeacher().reply("answerer", AnswerState(asked.text), episode, Random(0)) == "<answer> yes</answer>"


class ByText:
    """A teacher that says the state that it is asked in."""

    def reply(self, role: str, state: Any, episode: Trajectory, rng: Random) -> str:
        return f"{state} {rng.randrange(10)}"


def test_branches_of_a_teacher_are_played_one_after_the_other_without_an_event_loop(renderer: Renderer) -> None:
    role = Role("speaker", frozenset(), (), 9)

    def played() -> list[str]:
        trajectory = Trajectory("t", Question("q", "Q?", Gold(())), "g", 0, "m", 0)
        env = TeacherEnv(TeacherVoice(), TableRetriever([]), renderer, trajectory, 4096, teacher=ByText(), rng=Random(3))

        async def branch(part: Env) -> None:
            for _ in range(2):
                await part.open(role, [{"role": "user", "content": "x"}], state=part.path[0]).act(str)

        coroutine = env.gather({"left": branch, "right": branch})
        with pytest.raises(StopIteration):
            coroutine.send(None)
        return [action.text for action in trajectory.actions]

    said = played()
    assert [text.split()[0] for text in said] == ["left", "left", "right", "right"]
    assert said == played()
