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
from rolecast.teachers.base import TeacherEnv, TeacherVoice, best_answer, reasoning
from rolecast.types import Gold, Passage, Question, Role, Trajectory
from rolecast.world.grammar import Fact
from rolecast.world.questions import Draft, draft_comparison, draft_intersection

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
