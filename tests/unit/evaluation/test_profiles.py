"""Evaluation profiles: each switch changes what it says, and nothing else."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any

import pytest

from rolecast.errors import InputError, RolecastError
from rolecast.evaluation.profiles import OURS, PROFILES, Profile, find_profile
from rolecast.evaluation.tasks import QA, find, together
from rolecast.ports import Sampling
from rolecast.types import Action, Gold, Observation, Question, Reward, Status, Thread, Trajectory


def episode(answer: str | None = None, gold: str = "The The", status: Status = "ok", *texts: str) -> Trajectory:
    turns = (
        [Observation((1,), texts[0]), *(Action(f"a{n}", (1,), (0.0,), "v", text, "stop") for n, text in enumerate(texts[1:]))]
        if texts
        else []
    )
    return Trajectory("t", Question("q", "Which?", Gold((gold,))), "g", 0, "m", 0, answer=answer, status=status, threads=[Thread("t", "r", "s", turns=turns)])  # fmt: skip


QUESTIONS = [Question(str(n), "Which?", Gold(("The The",))) for n in range(700)]


def test_ours_changes_nothing() -> None:
    done = [episode("a"), episode(None, "yes", "format", "<answer> no </answer>")]
    assert (OURS.sampling, OURS.asked(QUESTIONS), OURS.counted(done), OURS.switches) == (Sampling(0.0), QUESTIONS, done, {})
    assert OURS.task(QA) is QA


def test_names_set_the_switches_of_their_project_together() -> None:
    sampled = {"temperature": 1.0, "top_p": 0.95, "batch": 256}
    assert {name: profile.switches for name, profile in PROFILES.items()} == {
        "faithful_search_r1": {**sampled, "prompt_answers": True, "loses_beginning": True},
        "faithful_coda": sampled,
        "faithful_mask": {"drops_failed": True, "without_yes_no": True},
        **{name: {"rules": name} for name in ("hotpotqa", "squad", "triviaqa", "nq")},
    }
    assert {key for profile in PROFILES.values() for key in profile.switches} == {field.name for field in fields(Profile)} - {"name"}
    assert find_profile("squad") is PROFILES["squad"]
    assert find_profile("") is OURS
    with pytest.raises(InputError, match="no evaluation profile 'faithful'; there are faithful_search_r1, "):
        find_profile("faithful")
    assert asdict(Profile("a", temperature=1.0))["temperature"] == 1.0


def test_the_last_batch_is_dropped_unless_it_is_full() -> None:
    profile = Profile("p", batch=256)
    assert [len(profile.asked(QUESTIONS[:count])) for count in (256, 257, 511, 512, 700)] == [256, 256, 256, 512, 512]
    assert profile.asked(QUESTIONS) == QUESTIONS[:512]
    with pytest.raises(InputError, match=r"of 255 questions none is left; raise eval\.n to 256"):
        profile.asked(QUESTIONS[:255])


def test_an_unanswered_episode_has_the_last_answer_of_its_context() -> None:
    """The prompt's own example, or what a reply held that was no answer."""
    shown = "Write <answer> Beijing </answer> or so."
    done = [
        episode(None, "The The", "ok", shown, "I think so"), episode(None, "The The", "ok", shown, "<answer>here</answer> and on"),
        episode("mine", "The The", "ok", shown), episode(None, "The The", "ok", "no example"), episode(None),
    ]  # fmt: skip
    assert [t.answer for t in Profile("p", prompt_answers=True).counted(done)] == ["Beijing", "here", "mine", None, None]
    assert [t.answer for t in done] == [None, None, "mine", None, None]  # the episodes themselves stay


def test_failed_episodes_count_for_nothing() -> None:
    done = [episode("a"), episode("a", "x", "error"), episode(None, "x", "format"), episode(None, "x", "length"), episode(None, "x")]
    profile = Profile("p", drops_failed=True)
    assert profile.counted(done) == done[:2]
    with pytest.raises(RolecastError, match="all 3 are"):
        profile.counted(done[2:])


@pytest.mark.parametrize(
    ("answer", "gold", "hotpot", "squad", "left_out"),
    [
        ("yes it is", "yes", 0.0, 0.5, 0.0), ("yes", "yes", 1.0, 1.0, None), ("no", "yes", 0.0, 0.0, None), ("no one", "no man", 0.5, 0.5, 0.5),
        ("no", "no one", 0.0, 2 / 3, 0.0), (None, "No.", 0.0, 0.0, 0.0),
    ],
)  # fmt: skip
def test_rules_for_yes_and_no(answer: str | None, gold: str, hotpot: float, squad: float, left_out: float | None) -> None:
    t = episode(answer, gold)
    found = [profile.task(QA).scores(t) for profile in (OURS, Profile("p", rules="squad"), Profile("p", without_yes_no=True))]
    assert [scores["f1"] for scores in found] == [
        pytest.approx(value) if value is not None else None for value in (hotpot, squad, left_out)
    ]
    assert len({scores["em"] for scores in found}) == 1


def test_a_task_that_compares_no_answers_has_no_rule_for_them() -> None:
    t = replace(episode("yes", "yes"), rewards=[Reward("report", "t", 0.5)])
    for profile in (Profile("p", rules="squad"), Profile("p", without_yes_no=True)):
        assert profile.task(find("reward:report")).scores(t) == {"report": 0.5}


def test_a_rule_holds_for_tasks_that_have_answers_among_other_scores() -> None:
    t = replace(episode("yes it is", "yes"), rewards=[Reward("report", "t", 0.5)])
    found = Profile("p", rules="squad").task(together(["reward:report", "qa"])).scores(t)
    assert (found["report"], found["f1"], found["em"]) == (0.5, 0.5, 0.0)


@pytest.mark.parametrize(
    ("rules", "unknown", "parted"),
    [("ours", 0, 0), ("hotpotqa", 2 / 3, 0), ("squad", 2 / 3, 0), ("triviaqa", 2 / 3, 1), ("nq", 2 / 3, 0)],
)
def test_a_profile_compares_answers_as_its_script_does(rules: Any, unknown: float, parted: float) -> None:
    """ "unknown" is a word to all but ours; to TriviaQA's a hyphen parts words."""
    scores = Profile("p", rules=rules).task(QA).scores
    assert scores(episode("unknown", "unknown soldier")) == {"em": 0, "f1": unknown, "cem": 0}
    assert scores(episode("co-op", "co op")) == {"em": parted, "f1": parted, "cem": parted}
