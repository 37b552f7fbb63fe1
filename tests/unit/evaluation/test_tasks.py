"""What episodes are measured by, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rolecast.errors import InputError
from rolecast.evaluation.metrics import summarize
from rolecast.evaluation.table import results_table
from rolecast.evaluation.tasks import QA, find, means, right_by, together
from rolecast.types import Gold, Question, Reward, RubricItem, Trajectory


def episode(answer: str | None = None, *rewards: float | None, hops: int = 1) -> Trajectory:
    question = Question("q", "Which band is it?", Gold(("The Who",), rubric=(RubricItem("names the band", 2.0),)), hops=hops)
    return Trajectory(
        "t", question, "g", 0, "m", 0, answer=answer, rewards=[Reward("rubric", f"a{i}", value) for i, value in enumerate(rewards)]
    )


def test_answers_are_compared_with_gold_ones_and_none_is_zero() -> None:
    assert means(QA, [episode("The Who"), episode(None), episode("a band")]) == {
        "em": pytest.approx(1 / 3),
        "f1": pytest.approx(1 / 3),
        "cem": pytest.approx(1 / 3),
    }
    assert find("qa") is QA


def test_right_is_what_equals_a_gold_answer_or_has_all_of_another_score() -> None:
    said = [episode("the who"), episode("The Who band"), episode(None)]
    assert [right_by(t, QA) for t in said] == [True, False, False]
    rubric = find("reward:rubric")
    assert [right_by(episode("x", score), rubric) for score in (1.0, 0.9, None)] == [True, False, False]


def test_a_methods_own_reward_is_a_task_and_unscored_is_never_zero() -> None:
    task = find("reward:rubric")
    done = [episode("x", 0.2, 0.6), episode("y", None), episode("z", 0.8), episode("no reward")]
    assert means(task, done) == {"rubric": pytest.approx(0.6)}  # (.4 + .8) / 2
    result = summarize(done, 0, 100, task)
    assert (result["headline"], result["n"], result["unscored"]) == ("rubric", 2, 2)
    assert result["ci95"][0] <= result["rubric"] <= result["ci95"][1]
    assert result["by_hops"]["1"]["rubric"] == pytest.approx(0.6)


def about(answer: str | None, gold: str) -> Trajectory:
    return Trajectory("t", Question("q", "?", Gold((gold,))), "g", 0, "m", 0, answer=answer)


@pytest.mark.parametrize(
    ("name", "expected", "n"),
    [
        # a right name, half of one, a right yes, a wrong yes, a name where the gold is no, and an episode that failed
        ("qa", {"em": 2 / 6, "f1": (1 + 2 / 3 + 1 + 0 + 0 + 0) / 6}, 6),
        ("qa+answered", {"em": 2 / 5, "f1": (1 + 2 / 3 + 1 + 0 + 0) / 5}, 5),
        ("qa+spans", {"em": 2 / 6, "f1": (1 + 2 / 3 + 0 + 0) / 4}, 6),
        ("qa+answered+spans", {"em": 2 / 5, "f1": (1 + 2 / 3 + 0) / 3}, 5),
    ],
)
def test_what_released_code_leaves_out_is_a_task_of_its_own(name: str, expected: dict[str, float], n: int) -> None:
    done = [
        about("Kel Dax", "Kel Dax"),
        about("Kel", "Kel Dax"),
        about("yes", "Yes."),
        about("yes", "no"),
        about("Kel", "no"),
        about(None, "Kel Dax"),
    ]
    found = summarize(done, 0, 100, find(name))
    assert {score: found[score] for score in ("em", "f1")} == pytest.approx(expected)
    assert (found["task"], found["headline"], found["n"], found.get("unscored", 0)) == (name, "em", n, 6 - n)


def test_tasks_together_have_all_scores_and_the_first_ones_headline() -> None:
    done = [episode("The Who", 0.25), episode("no", 0.75), episode("no")]
    both = together(["qa", "reward:rubric"])
    assert (both.name, both.headline, both.others) == ("qa+reward:rubric", "em", ("rubric",))
    assert means(both, done) == {**means(QA, done), "rubric": 0.5}
    result, alone, rubric = (summarize(done, 0, 100, task) for task in (both, QA, find("reward:rubric")))
    assert {name: result[name] for name in ("em", "f1", "ci95", "n", "rubric")} == {
        **{name: alone[name] for name in ("em", "f1", "ci95", "n")}, "rubric": 0.5,
    }  # fmt: skip
    assert result["others"] == {"rubric": {name: rubric[name] for name in ("n", "ci95", "unscored")}}
    assert (rubric["n"], rubric["unscored"]) == (2, 1)
    assert "others" not in alone
    head, _, row = results_table({"rl": result}).splitlines()
    assert head.split()[1:7] == ["EM", "95", "%", "interval", "rubric", "95"]
    assert row.split()[1:8] == ["33.3", "0.0", "–", "100.0", "50.0", "25.0", "–"]


def test_a_question_without_gold_answers_has_no_score_of_answers() -> None:
    long = replace(episode("a report", 0.5), question=Question("r", "Report.", Gold((), rubric=(RubricItem("says it"),))))
    assert means(together(["qa", "reward:rubric"]), [long]) == {"rubric": 0.5}
    assert means(QA, [episode(None), long]) == {"em": 0, "f1": 0, "cem": 0}  # of the one that has golds


def test_of_nothing_scored_there_is_no_score_and_no_interval() -> None:
    result = summarize([episode("x")], 0, 100, find("reward:rubric"))
    assert (result["rubric"], result["ci95"], result["n"], result["unscored"]) == (None, None, 0, 1)


def test_of_episodes_without_actions_no_reply_was_valid() -> None:
    """As where every context was full before the first reply."""
    assert summarize([episode()], 0, 100)["valid"] == 0.0


@pytest.mark.parametrize("name", ["", "em", "reward:", "reward", "f1:x", "qa+", "qa+all"])
def test_what_is_no_task_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="no task"):
        find(name)


def test_a_table_shows_each_stages_own_score() -> None:
    done = [episode("The Who", 0.25), episode("no", 0.75, hops=2)]
    plan, answers = summarize(done, 0, 100, find("reward:rubric")), summarize(done, 0, 100)
    head, _, row = results_table({"planner_rl": plan}).splitlines()
    assert head.split()[1] == "rubric"
    assert row.split()[1] == "50.0"
    head, _, *rows = results_table({"planner_rl": plan, "sft": answers}).splitlines()
    assert head.split()[1] == "score"
    assert [row.split()[1] for row in rows] == ["50.0", "50.0"]
    assert rows[1].split()[2:5] != ["–", "–", "–"]
