"""M-ASK's teacher on throw-away worlds: right without errors, and each error at its rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mask_episodes import mask, states
from scripted import EMPLOYER, MENTOR, TWO_HOPS

from rolecast.config import load_config
from rolecast.methods.mask import Mask
from rolecast.methods.mask.state import NOTHING, UNKNOWN, MaskState, Searched, Step
from rolecast.methods.mask.teacher import plan_of, sub_question
from rolecast.rewards.text import exact_match
from rolecast.rollout.render import Renderer
from rolecast.seeding import stream
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import throwaway_episode
from rolecast.types import Trajectory
from rolecast.world.grammar import Fact, facts_in
from rolecast.world.questions import draft_comparison
from rolecast.world.tokenizer import demo_tokenizer

EPISODES = 150
DEMO = load_config(Path(str(Mask.preset()))).sft("sft").errors.model_dump(exclude={"faultless"})


@pytest.fixture(scope="module")
def own(renderer: Renderer) -> Renderer:
    """As the demo's team has it: with the method's words and tags."""
    method = mask()
    return Renderer(demo_tokenizer(method.words, method.tags), method.tags)


def played(own: Renderer, method: Mask | None = None, max_context: int = 384, **errors: float) -> list[Trajectory]:
    method = method or mask(max_tokens=48)
    return [throwaway_episode(method, method.teacher(TeacherErrors(**errors)), own, 0, n, max_context) for n in range(EPISODES)]


def right(t: Trajectory) -> float:
    return exact_match(t.answer, t.question.gold.answers)


def share(values: list[bool]) -> float:
    assert values
    return sum(values) / len(values)


@pytest.mark.parametrize("options", [{}, {"planning": False}, {"starts_with": "question"}, {"update_sees": "latest"}])
def test_without_errors_it_is_right(own: Renderer, options: dict[str, Any]) -> None:
    done = played(own, mask(max_tokens=48, **options))
    assert sum(map(right, done)) / EPISODES >= 0.98
    assert {t.status for t in done} == {"ok"}
    assert all(action.valid for t in done for action in t.actions)
    assert not any(step.open for t in done for state in states(t, "answer")[-1:] for step in state.trajectory)


def test_without_errors_it_is_right_on_appended_documents_too(own: Renderer) -> None:
    done = played(own, mask(max_tokens=48, knowledge=False), 1024)
    assert sum(map(right, done)) / EPISODES >= 0.98


def test_with_the_demos_errors_it_is_mostly_wrong(own: Renderer) -> None:
    done = played(own, **DEMO)
    assert 0.1 < sum(map(right, done)) / EPISODES < 0.4
    assert all(action.valid for t in done for action in t.actions)


def test_replies_and_contexts_are_short_enough_for_a_small_model(own: Renderer) -> None:
    threads = [thread for t in played(own, **DEMO) for thread in t.threads]
    assert max(len(action.ids) for thread in threads for action in thread.actions) <= 40
    assert max(len(thread.ids) for thread in threads) <= 192
    assert own.tokenizer.unk_token_id not in {token for thread in threads for token in thread.ids}


def ends_early(t: Trajectory) -> list[bool]:
    """At every search after the first with a fact missing: whether it ended."""
    found = []
    for thread, state in zip(t.threads_of("search"), states(t, "search"), strict=True):
        known = set(facts_in(" ".join(step.answer for step in state.trajectory)))
        missing = [hop for hop in t.question.gold.chain if Fact(hop.subject, hop.relation, hop.object) not in known]
        if state.history and missing:
            found.append(thread.actions[0].text == "<end>")
    return found


def test_it_ends_early_at_its_rate(own: Renderer) -> None:
    assert share([end for t in played(own) for end in ends_early(t)]) == 0
    assert share([end for t in played(own, stop_early=0.4) for end in ends_early(t)]) == pytest.approx(0.4, abs=0.1)


def places(t: Trajectory) -> list[str]:
    """What each update did, where a step asked for its evidence: replaced it, added a step, or overwrote another."""
    found = []
    for thread, state in zip(t.threads_of("update"), states(t, "update"), strict=True):
        chain = t.question.gold.chain
        asked = [n for n, hop in enumerate(chain) if hop.query == state.query]
        right = [
            n for n, step in enumerate(state.trajectory, 1) if step.open and any(step.query == sub_question(chain, at) for at in asked)
        ]
        if right:
            text = thread.actions[0].text
            found.append("add" if "<Add>" in text else "right" if f"t{right[0]}<" in text else "overwrite")
    return found


def test_it_adds_instead_of_replacing_at_its_rate(own: Renderer) -> None:
    assert {place for t in played(own) for place in places(t)} == {"right"}
    found = [place for t in played(own, add_instead=0.35) for place in places(t)]
    assert share([place == "add" for place in found]) == pytest.approx(0.35, abs=0.08)
    assert "overwrite" not in found


def test_it_overwrites_another_step_at_its_rate(own: Renderer) -> None:
    several = [t for t in played(own, overwrite=0.3) if len(t.question.gold.chain) > 1]
    found = [place for t in several for place in places(t)]
    assert share([place == "overwrite" for place in found]) == pytest.approx(0.3, abs=0.08)
    assert "add" not in found


@pytest.mark.parametrize("error", ["stop_early", "add_instead", "overwrite"])
def test_each_error_of_its_own_costs_answers(own: Renderer, error: str) -> None:
    assert sum(map(right, played(own, **{error: 0.5}))) / EPISODES < 0.75


def test_it_asks_for_another_relation_at_its_rate(own: Renderer) -> None:
    def wrong(t: Trajectory) -> list[bool]:
        forward = {hop.query for hop in t.question.gold.chain if hop.query.split(" ")[1] == "of"}
        subjects = {query.partition(" of ")[2] for query in forward}
        asked = [state.query for state in states(t, "summary") if state.query.partition(" of ")[2] in subjects]
        return [query not in forward for query in asked]

    assert share([w for t in played(own) for w in wrong(t)]) == 0
    assert share([w for t in played(own, wrong_relation=0.3) for w in wrong(t)]) == pytest.approx(0.3, abs=0.1)


# Single replies

CHAIN = TWO_HOPS.gold.chain


def reply(role: str, state: MaskState, **errors: float) -> str:
    teacher = mask().teacher(TeacherErrors(**errors))
    return teacher.reply(role, state, Trajectory("t", TWO_HOPS, "", 0, "mask", 0), stream(0, "reply"))


def test_a_plan_calls_what_is_not_yet_known_by_its_step() -> None:
    assert plan_of(CHAIN) == (
        f"<q1> {MENTOR.query}</q1><a1> unknown</a1><q2> employer of t1</q2><a2> unknown</a2><predicted_answer> unknown</predicted_answer>"
    )
    pair = draft_comparison(MENTOR, Fact("Gam Gol", "mentor", "Tik Tok")).question("q", lambda fact: "").gold.chain
    assert [sub_question(pair, n) for n in (0, 1)] == ["mentor of Brol Tan", "mentor of Gam Gol"]


FIRST, SECOND = Step(MENTOR.query, MENTOR.sentence), Step(EMPLOYER.query, EMPLOYER.sentence)
WAITING, UNASKED = Step("employer of t1", UNKNOWN), Step(MENTOR.query, UNKNOWN)


def searched(*queries: str) -> list[Searched]:
    return [Searched(query, "") for query in queries]


@pytest.mark.parametrize(
    ("steps", "asked", "said"),
    [
        ([UNASKED, WAITING], [], f"<search> {MENTOR.query}</search>"),
        ([FIRST, WAITING], [MENTOR.query], f"<search> {EMPLOYER.query}</search>"),
        ([FIRST, SECOND], [MENTOR.query, EMPLOYER.query], "<end>"),
        # a step that stays open is asked for again in other words, once
        ([UNASKED, WAITING, FIRST], [MENTOR.query], "<search> Brol Tan mentor</search>"),
        ([Step(MENTOR.query, NOTHING), WAITING], [MENTOR.query], "<search> Brol Tan mentor</search>"),
        ([UNASKED, WAITING, FIRST], [MENTOR.query, "Brol Tan mentor"], "<end>"),
        # a fact that was overwritten is asked for again, with a step or without
        ([SECOND, WAITING], [MENTOR.query, EMPLOYER.query], "<search> Brol Tan mentor</search>"),
        ([], [], f"<search> {MENTOR.query}</search>"),
    ],
)
def test_it_searches_for_the_first_step_that_is_open_or_missing(steps: list[Step], asked: list[str], said: str) -> None:
    assert reply("search", MaskState(TWO_HOPS.text, steps, history=searched(*asked))) == said


@pytest.mark.parametrize(
    ("steps", "query", "said"),
    [
        ([UNASKED, WAITING], MENTOR.query, "<Update> t1</Update>"),
        ([UNASKED, WAITING], "Brol Tan mentor", "<Update> t1</Update>"),
        ([FIRST, WAITING], EMPLOYER.query, "<Update> t2</Update>"),
        ([UNASKED, WAITING], "mayor of Brol Tan", "<Add> t3</Add>"),
        ([FIRST, SECOND], MENTOR.query, "<Add> t3</Add>"),
        ([], MENTOR.query, "<Add> t1</Add>"),
        ([Step(TWO_HOPS.text, UNKNOWN)], MENTOR.query, "<Update> t1</Update>"),
        ([Step(TWO_HOPS.text, UNKNOWN)], "mayor of Brol Tan", "<Add> t2</Add>"),
    ],
)
def test_evidence_goes_to_the_step_that_asks_for_it_or_is_added(steps: list[Step], query: str, said: str) -> None:
    assert reply("update", MaskState(TWO_HOPS.text, steps, query=query)) == said


def test_it_answers_when_every_step_is_answered() -> None:
    for steps, said in (([FIRST, SECOND], "Kel Dax"), ([FIRST, WAITING], "unknown"), ([UNASKED, WAITING, FIRST, SECOND], "unknown")):
        assert reply("answer", MaskState(TWO_HOPS.text, steps)) == f"<predicted_answer> {said}</predicted_answer>"


def test_a_summary_of_nothing_says_so() -> None:
    assert reply("summary", MaskState(TWO_HOPS.text, query=MENTOR.query)) == "<evidence> nothing</evidence>"
