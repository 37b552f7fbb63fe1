"""DAC's teacher: right without errors, and each named error really happens at its rate."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from dac_episodes import dac
from scripted import EMPLOYER, MAYOR, MENTOR, TWO_HOPS, passage

from rolecast.config import load_config
from rolecast.methods.dac import Dac
from rolecast.methods.dac.state import DacState
from rolecast.methods.dac.teacher import DacTeacher, steps
from rolecast.rewards.text import exact_match
from rolecast.rollout.render import Renderer
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import throwaway_episode
from rolecast.types import Gold, Question, Trajectory
from rolecast.world.grammar import Fact
from rolecast.world.questions import draft_comparison, draft_intersection
from rolecast.world.tokenizer import demo_tokenizer

METHOD = dac(k=5, observation_tokens=80, max_tokens=48)
RENDERER = Renderer(demo_tokenizer(METHOD.words, METHOD.tags))


def episodes(errors: TeacherErrors, count: int, phase: str) -> list[Trajectory]:
    """On throw-away worlds, those that are played in this phase."""
    first = METHOD.taught.index(phase)
    return [throwaway_episode(METHOD, METHOD.teacher(errors), RENDERER, 0, number, 512) for number in range(first, 2 * count, 2)]


def share(found: list[bool]) -> float:
    return sum(found) / len(found)


def right(t: Trajectory) -> bool:
    return bool(exact_match(t.answer, t.question.gold.answers))


def test_without_errors_it_is_right_where_search_finds_everything() -> None:
    for phase, wrong in (("train", {"unknown"}), ("eval", None)):
        played = episodes(TeacherErrors(), 150, phase)
        assert share([right(t) for t in played]) >= 0.95  # some searches miss
        assert {t.status for t in played} == {"ok"}
        assert all(action.valid for t in played for action in t.actions)
        if wrong:
            assert {t.answer for t in played if not right(t)} <= wrong


def test_the_two_prompts_are_both_taught() -> None:
    prompts = [t.threads_of("generator")[0].turns[0].text for phase in METHOD.taught for t in episodes(TeacherErrors(), 10, phase)]
    assert [" or unknown" in prompt for prompt in prompts] == [True] * 10 + [False] * 10


def complete(t: Trajectory) -> bool:
    return {hop.fact for hop in t.question.gold.chain} <= {*t.retrieved}


@pytest.mark.parametrize(("errors", "expected"), [({"guess": 0.4}, 0.4), ({}, 0.0), ({"guess": 1.0}, 1.0)])
def test_it_guesses_on_insufficient_evidence_at_the_named_rate(errors: dict[str, float], expected: float) -> None:
    played = [t for t in episodes(TeacherErrors(stop_early=0.7, **errors), 400, "train") if not complete(t)]
    assert len(played) > 150
    assert share([t.answer != "unknown" for t in played]) == pytest.approx(expected, abs=0.08)


@pytest.mark.parametrize(("errors", "expected"), [({"abstain": 0.3}, 0.3), ({}, 0.0), ({"abstain": 1.0}, 1.0)])
def test_it_abstains_on_sufficient_evidence_at_the_named_rate(errors: dict[str, float], expected: float) -> None:
    played = [t for t in episodes(TeacherErrors(**errors), 800, "train") if complete(t)]
    assert len(played) > 700
    assert share([t.answer == "unknown" for t in played]) == pytest.approx(expected, abs=0.05)


def test_what_has_to_be_an_answer_is_one() -> None:
    played = episodes(TeacherErrors(stop_early=0.7, guess=0.3, abstain=0.3), 150, "eval")
    assert all(right(t) for t in played if complete(t))
    assert share([t.answer == "unknown" for t in played]) < 0.02


def test_it_stops_early_at_the_named_rate() -> None:
    """Of questions of two facts or more, where one is missing after the first search."""
    played = [t for t in episodes(TeacherErrors(stop_early=0.5), 300, "eval") if t.question.type == "chain" and t.question.hops > 1]
    assert share([t.searches == 1 for t in played]) == pytest.approx(0.5, abs=0.09)


def test_erring_as_in_the_preset_it_is_mostly_wrong(renderer: Renderer) -> None:
    """By the numbers of facts of the held-out questions, a quarter each; on the paper's three passages a search."""
    errors = load_config(Path(str(Dac.preset()))).sft("sft").errors
    for made, low, high in ((TeacherErrors(), 0.8, 1.0), (errors, 0.0, 0.4)):
        method = dac(observation_tokens=64, max_tokens=48)
        played = [throwaway_episode(method, method.teacher(made), RENDERER, 1, number, 512) for number in range(1, 1200, 2)]
        by_hops = [share([right(t) for t in played if t.question.hops == hops]) for hops in (1, 2, 3, 4)]
        assert low <= sum(by_hops) / 4 <= high


# What it thinks


def question(type: str = "chain") -> Question:
    return Question("q", TWO_HOPS.text, TWO_HOPS.gold, type, 2)


@pytest.mark.parametrize(
    ("known", "thought"),
    [
        ((MENTOR, EMPLOYER), f"{MENTOR.sentence} {EMPLOYER.sentence}"),
        ((EMPLOYER, MAYOR, MENTOR), f"{MENTOR.sentence} {EMPLOYER.sentence}"),
        ((MENTOR, MAYOR), MENTOR.sentence),
        ((EMPLOYER,), "nothing"),  # the second fact alone is no step
        ((), "nothing"),
    ],
)
def test_it_says_the_facts_of_a_chain_in_order_up_to_the_first_that_is_missing(known: tuple[Fact, ...], thought: str) -> None:
    assert steps(question(), " ".join(fact.sentence for fact in known)) == thought


def test_it_says_what_is_compared_and_names_what_is_intersected() -> None:
    first, second = Fact("Aal Ab", "mentor", "Tik Tok"), Fact("Bal Ba", "mentor", "Tik Tok")
    compared = draft_comparison(first, second).question("q", lambda fact: fact.sentence)
    assert steps(compared, second.sentence) == second.sentence
    city = Fact("Aal Ab", "birthplace", "Zon Zan")
    common = draft_intersection("person", first, city).question("q", lambda fact: fact.sentence)
    assert steps(common, f"{second.sentence} {first.sentence} {city.sentence}") == "Bal Ba and Aal Ab and Aal Ab"


@pytest.mark.parametrize(
    ("asked", "known", "guesses"),
    [
        (question(), (MENTOR, MAYOR), {"Vrek Stom"}),  # the last name on the way
        (question(), (MAYOR,), {"Zen Kol"}),  # just a name
        (question(), (), {"unknown"}),
        (Question("q", "?", Gold(("yes",), TWO_HOPS.gold.chain), "comparison", 2), (MENTOR,), {"yes", "no"}),
    ],
)
def test_guesses(asked: Question, known: tuple[Fact, ...], guesses: set[str]) -> None:
    teacher, episode = DacTeacher(TeacherErrors(), "think"), Trajectory("t", asked, "", 0, "dac", 0)
    state = DacState(asked.text, documents=[passage(fact) for fact in known])
    said = {
        teacher.reply("generator", state, episode, Random(seed)).rpartition("<answer> ")[2].removesuffix("</answer>") for seed in range(9)
    }
    assert said == guesses
