"""CoDA's teacher on throw-away worlds: right without errors, each error at its rate, and believing what its executors report."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from coda_episodes import coda
from scripted import EMPLOYER, MENTOR, TWO_HOPS, hop

from rolecast.config import load_config
from rolecast.methods.coda import Coda
from rolecast.methods.coda.state import Pair
from rolecast.methods.coda.teacher import NOTHING, take_at_word
from rolecast.rewards.text import exact_match
from rolecast.rollout.render import Renderer
from rolecast.tags import blocks
from rolecast.teachers.base import TeacherErrors, best_answer
from rolecast.teachers.examples import throwaway_episode
from rolecast.types import Gold, Question, Trajectory
from rolecast.world.grammar import Fact, facts_in
from rolecast.world.tokenizer import demo_tokenizer

COUNT = 240
NONE = TeacherErrors()
PRESET = load_config(Path(str(Coda.preset("demo"))))
VARIANTS: dict[str, dict[str, Any]] = {"hierarchy": {}, "nested": {"depth": 2}, "monolithic": {"structure": "monolithic"}}


def method_of(variant: str = "hierarchy") -> Coda:
    return Coda(type(PRESET.method).model_validate({**PRESET.method.model_dump(), **VARIANTS[variant]}))


def played(method: Coda, errors: TeacherErrors = NONE, count: int = COUNT) -> list[Trajectory]:
    renderer = Renderer(demo_tokenizer(method.words, method.tags), method.tags)
    teacher = method.teacher(errors)
    return [throwaway_episode(method, teacher, renderer, 0, number, PRESET.model.max_context) for number in range(count)]


def score(episodes: list[Trajectory]) -> float:
    """As on the indexed world: equal parts of one to four facts, and of two facts equal parts of the three kinds."""
    kinds: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for t in episodes:
        kinds[t.question.hops][t.question.type].append(exact_match(t.answer, t.question.gold.answers))
    assert sorted(kinds) == [1, 2, 3, 4]
    return fmean(fmean(fmean(values) for values in of.values()) for of in kinds.values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_errors_its_episodes_are_right_and_well_formed(variant: str) -> None:
    episodes = played(method_of(variant))
    assert score(episodes) >= 0.98
    assert {t.status for t in episodes} == {"ok"}
    assert all(action.valid for t in episodes for action in t.actions)
    limit = PRESET.method.max_tokens  # type: ignore[attr-defined]
    assert max(len(action.ids) for t in episodes for action in t.actions) <= limit - 8
    assert max(len(thread.ids) for t in episodes for thread in t.threads) <= PRESET.model.max_context - limit


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_last_turn_is_an_answer(variant: str) -> None:
    method = Coda(method_of(variant).config.model_copy(update={"max_turns": 3}))
    episodes = played(method, count=60)
    assert max(len(thread.actions) for t in episodes for thread in t.threads) == 3
    assert all(t.answer is not None for t in episodes)


def test_with_the_demos_errors_much_is_left_to_learn() -> None:
    errors = PRESET.sft("sft").errors
    assert score(played(method_of(), errors, 2 * COUNT)) <= 0.4


def share(hits: int, chances: int) -> float:
    assert chances > 100
    return hits / chances


def test_stopping_early_has_its_rate() -> None:
    stops = chances = 0
    for t in played(method_of(), TeacherErrors(stop_early=0.3)):
        tasks = len(t.threads_of("executor"))
        missing = t.question.hops > tasks
        stops, chances = stops + missing, chances + max(0, min(tasks, t.question.hops - 1))
    assert share(stops, chances) == pytest.approx(0.3, abs=0.05)


def test_asking_for_the_wrong_relation_has_its_rate() -> None:
    """Of the tasks that name what they are about in the chain's own direction; the next task is the right one."""
    wrong = chances = 0
    for t in played(method_of(), TeacherErrors(wrong_relation=0.3)):
        assert exact_match(t.answer, t.question.gold.answers) or len(t.threads_of("planner")[0].actions) == 6 or misses(t)
        if t.question.type == "intersection":
            continue
        wanted = {hop.query for hop in t.question.gold.chain}
        tasks = [(blocks(action.text, "think", "task") or {"task": ""})["task"] for action in t.threads[0].actions[:-1]]
        wrong += sum(task not in wanted and " of " in task for task in tasks)
        chances += sum(task in wanted or " of " in task for task in tasks)
    assert share(wrong, chances) == pytest.approx(0.3 / 1.3, abs=0.05)  # each wrong one is a task more


def misses(t: Trajectory) -> bool:
    return any(NOTHING in thread.actions[-1].text for thread in t.threads_of("executor"))


@pytest.mark.parametrize("variant", ["hierarchy", "monolithic"])
def test_a_refine_drops_the_needed_fact_at_its_rate(variant: str) -> None:
    dropped = chances = 0
    for t in played(method_of(variant), TeacherErrors(drop_fact=0.3)):
        for thread in t.threads_of("executor") + t.threads_of("monolith"):
            for query, reply, told in zip(thread.actions, thread.actions[1:], thread.turns[2::2], strict=False):
                asked = query.text.partition("<search> ")[2].partition("</search>")[0]
                needed = [fact for fact in facts_in(told.text) if asked in (fact.query, fact.inverse_query)]
                kept = facts_in(reply.text.partition("<refine>")[2].partition("</refine>")[0])
                if needed and len(facts_in(told.text)) > len(needed):
                    chances, dropped = chances + 1, dropped + (kept != needed)
                    assert len(kept) == 1 or kept == needed
    assert share(dropped, chances) == pytest.approx(0.3, abs=0.05)


def test_an_executor_reports_what_it_refined_and_the_planner_believes_it() -> None:
    """A dropped fact misleads: the next task is about what was reported, and no task is given twice for that."""
    for t in played(method_of(), TeacherErrors(drop_fact=0.5), 60):
        if t.question.type != "chain" or t.question.hops < 2:
            continue
        planner, *executors = t.threads
        results = [turn.text.partition("<result> ")[2].partition("</result>")[0] for turn in planner.turns[2::2]]
        tasks = [(blocks(action.text, "think", "task") or {"task": ""})["task"] for action in planner.actions[:-1]]
        for result, executor in zip(results, executors, strict=True):
            assert f"<answer> {result}</answer>" in executor.actions[-1].text
        for result, following in zip(results, tasks[1:], strict=False):
            assert result == NOTHING or following.endswith(f" of {result}")


def test_a_planner_takes_results_at_their_word() -> None:
    believed, known = take_at_word(TWO_HOPS, [Pair(MENTOR.query, "Kel Kol")])
    assert [(h.subject, h.object, h.query) for h in believed.gold.chain] == [
        ("Brol Tan", "Kel Kol", MENTOR.query), ("Kel Kol", "Kel Dax", "employer of Kel Kol"),
    ]  # fmt: skip
    assert known == "The mentor of Brol Tan is Kel Kol."
    believed, known = take_at_word(TWO_HOPS, [Pair(MENTOR.query, "Kel Kol"), Pair("employer of Kel Kol", "Zen Zun")])
    assert best_answer(believed, known) == "Zen Zun"
    for nothing in (NOTHING, ""):
        believed, known = take_at_word(TWO_HOPS, [Pair(MENTOR.query, nothing)])
        assert (believed.gold.chain, known) == (TWO_HOPS.gold.chain, "")
    believed, known = take_at_word(TWO_HOPS, [Pair("Brol Tan mentor", "Vrek Stom")])  # in other words
    assert known == MENTOR.sentence
    believed, known = take_at_word(TWO_HOPS, [Pair("employer of the mentor of Brol Tan", "Zen Zun")])  # of a lead
    assert (best_answer(believed, known), facts_in(known)) == ("Zen Zun", [MENTOR, Fact("Vrek Stom", "employer", "Zen Zun")])


@pytest.mark.parametrize(
    ("kind", "facts", "results", "answer"),
    [
        ("comparison", (MENTOR, Fact("Aal Ab", "mentor", "Vrek Stom")), ("Vrek Stom", "Vrek Stom"), "yes"),
        ("comparison", (MENTOR, Fact("Aal Ab", "mentor", "Vrek Stom")), ("Vrek Stom", "Kel Kol"), "no"),
        ("intersection", (MENTOR, Fact("Brol Tan", "birthplace", "Zon Zan")), ("Aal Ab and Brol Tan", "Brol Tan and Cal Ca"), "Brol Tan"),
        ("intersection", (MENTOR, Fact("Brol Tan", "birthplace", "Zon Zan")), ("Aal Ab", "Aal Ab and Cal Ca"), "Aal Ab"),
        ("intersection", (MENTOR, EMPLOYER), ("Aal Ab", "Cal Ca"), "Aal Ab"),
    ],
)
def test_conclusions_follow_from_the_results(kind: str, facts: tuple[Fact, ...], results: tuple[str, ...], answer: str) -> None:
    queries = [fact.inverse_query if kind == "intersection" else fact.query for fact in facts]
    question = Question("q", "Q?", Gold(("gold",), tuple(map(hop, facts, queries))), kind, 2)
    believed, known = take_at_word(question, list(map(Pair, queries, results)))
    assert best_answer(believed, known) == answer


def test_a_nested_teacher_uses_both_levels() -> None:
    episodes = played(method_of("nested"), count=120)
    leads = [thread for t in episodes for thread in t.threads_of("lead")]
    executors = [thread for t in episodes for thread in t.threads_of("executor")]
    assert {thread.parent for thread in executors} <= {lead.id for lead in leads}
    delegating = {thread.parent for thread in executors}
    assert 0.3 < len(delegating) / len(leads) < 0.9  # the others search themselves


def test_every_word_that_is_said_is_a_token_of_its_own() -> None:
    for variant in VARIANTS:
        method = method_of(variant)
        renderer = Renderer(demo_tokenizer(method.words, method.tags), method.tags)
        bytes_of = {renderer.encode(chr(code))[-1] for code in range(97, 123)}
        for t in played(method, count=40):
            assert not bytes_of & {token for thread in t.threads for token in thread.ids}
    assert coda().tags >= {
        f"<{slash}{tag}>" for tag in ("think", "task", "result", "search", "documents", "refine", "answer") for slash in ("", "/")
    }
