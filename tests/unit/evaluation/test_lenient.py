"""The rule of lenient reading, by hand, and that the strict scores beside it do not move."""

from __future__ import annotations

import pytest

from rolecast.evaluation.lenient import answering, lenient, with_lenient
from rolecast.evaluation.tasks import QA
from rolecast.methods.registry import make_method, read_config
from rolecast.types import Action, Gold, Question, Thread, Trajectory


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<answer> Paris </answer>", "Paris"),
        ("<answer>Rome</answer> no, <answer>Paris</answer>", "Paris"),
        ("It is <answer>Paris", "Paris"),
        ("I think the answer is Paris.\nIt is large.", "Paris."),
        ("Answer: Rome\nFinal answer: **Paris**", "**Paris**"),
        ("<think>hm</think> The capital is Paris", "hm The capital is Paris"),
        ("Paris", "Paris"),
        ("answers vary", "answers vary"),
        ("", ""),
    ],
)
def test_the_rule(reply: str, answer: str) -> None:
    assert lenient(reply) == answer


def played(answer: str | None, *replies: str, role: str = "answerer", probe: bool = False) -> Trajectory:
    turns = [Action(str(n), (1,), (0.0,), "v", reply, "stop") for n, reply in enumerate(replies)]
    t = Trajectory("t", Question("q", "?", Gold(("Paris",))), "g", 0, "direct", 0, answer=answer)
    t.threads = [Thread("a", role, "shared", probe=probe, turns=list(turns))]
    return t


@pytest.mark.parametrize(
    ("trajectory", "expected"),
    [
        (played("Paris", "<answer>Paris</answer>"), (1.0, 1.0, 1.0, 1.0)),
        (played("Paris", "<answer>Rome</answer>"), (1.0, 1.0, 1.0, 0.0)),
        (played(None, "Rome", "the answer is Paris"), (0.0, 1.0, 1.0, 1.0)),
        (played(None, "It is Paris of course"), (0.0, 0.0, 1 / 3, 1.0)),
        (played("Rome", "<answer>Rome</answer> not Paris"), (0.0, 0.0, 0.0, 1.0)),
        (played(None), (0.0, 0.0, 0.0, 0.0)),
        (played(None, "Paris", role="planner"), (0.0, 0.0, 0.0, 0.0)),
        (played(None, "Paris", probe=True), (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_lenient_scores_stand_beside_the_strict_one(trajectory: Trajectory, expected: tuple[float, ...]) -> None:
    task = with_lenient(QA, make_method(read_config({"name": "decor"})))
    scores = task.scores(trajectory)
    assert {name: scores[name] for name in QA.scores(trajectory)} == QA.scores(trajectory)
    assert tuple(scores[name] for name in ("em", "lenient_em", "lenient_f1", "reply_cem")) == pytest.approx(expected)


def test_who_answers() -> None:
    assert answering(make_method(read_config({"name": "decor"}))) == "answerer"
    assert answering(make_method(read_config({"name": "search_r1"}))) is not None
