"""What went wrong first, of hand-made episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from rolecast.evaluation.attribution import (
    DROPPED,
    ERRED,
    MISSED,
    NEVER_ASKED,
    NOT_FOUND,
    UNTOLD,
    answered_in,
    counted,
    first_fault,
    silent_on,
)
from rolecast.evaluation.metrics import summarize
from rolecast.types import Action, Gold, Hop, Observation, Passage, Question, Status, Thread, Trajectory

HOPS = (
    Hop("Vrek Stom", "was born in", "Kalm", "Vrek Stom was born in Kalm.", "p1", "birthplace of Vrek Stom"),
    Hop("Kalm", "lies on the", "Oda river", "Kalm lies on the Oda river.", "p2", "river of Kalm"),
)
CHAIN = Question("q", "On which river was Vrek Stom born?", Gold(("Oda river",), HOPS, ("p1", "p2")), "chain", 2)
PLAIN = Question("r", "On which river was Vrek Stom born?", Gold(("Oda river",), (), ("p1", "p2")), "", 2)


def thread(role: str, read: str, said: str, probe: bool = False) -> Thread:
    turns = [Observation((1,), read), Action(f"{role}{read}", (1,), (0.0,), "v", said, "stop")]
    return Thread(role + read, role, "shared", probe=probe, turns=list(turns))


def episode(question: Question, queries: Sequence[str], retrieved: Sequence[str], read: str, status: Status = "ok") -> Trajectory:
    threads = [
        thread("planner", "?", "<search>"),
        thread("answerer", read, "<answer>Lum"),
        thread("answerer", "Kalm Oda river", "<answer>Lum", True),
    ]
    return Trajectory(
        "t", question, "g", 0, "m", 0, answer="Lum", status=status, queries=list(queries), retrieved=list(retrieved), threads=threads
    )  # fmt: skip


BOTH = "He was born in Kalm. It lies on the Oda river."


@pytest.mark.parametrize(
    ("question", "queries", "retrieved", "read", "fault"),
    [
        (CHAIN, [], [], "", NEVER_ASKED),
        (CHAIN, ["rivers"], ["p9"], "", NEVER_ASKED),
        (CHAIN, ["where Vrek Stom was born"], ["p9"], "", MISSED),
        (CHAIN, ["birthplace of Vrek Stom"], ["p1"], "Kalm", NEVER_ASKED),  # nobody asked for Kalm
        (CHAIN, ["Vrek Stom", "the river of Kalm"], ["p1"], "Kalm", MISSED),
        (CHAIN, ["the river of Kalm"], ["p2"], "Oda river", NEVER_ASKED),  # the first that is missing says it
        (CHAIN, ["the river of Kalm"], [], "", NEVER_ASKED),
        (CHAIN, ["Vrek Stom", "Kalm"], ["p1", "p2", "p3"], "It lies on the Oda river.", DROPPED),
        (CHAIN, ["Vrek Stom", "Kalm"], ["p1", "p2"], "", DROPPED),
        (CHAIN, ["Vrek Stom", "Kalm"], ["p1", "p2"], BOTH, ERRED),
        (PLAIN, [], [], "", NEVER_ASKED),
        (PLAIN, ["Vrek Stom"], ["p1"], "", NOT_FOUND),
        (PLAIN, ["Vrek Stom"], ["p1", "p2"], "He was born in Kalm.", DROPPED),
        (PLAIN, ["Vrek Stom"], ["p1", "p2"], BOTH, ERRED),
        (replace(PLAIN, gold=Gold(("Oda river",))), ["Vrek Stom"], ["p1"], BOTH, UNTOLD),
    ],
)
def test_the_first_thing_that_went_wrong(question: Question, queries: list[str], retrieved: list[str], read: str, fault: str) -> None:
    t = episode(question, queries, retrieved, read)
    assert first_fault(t, 0.0) == first_fault(t, 0.5) == fault
    assert first_fault(t, 1.0) == first_fault(t, None) == ""


BORN = Passage("p1", "Vrek Stom", "Vrek Stom, a mason, was born in Kalm in 1812.")
RIVER = Passage("p2", "Kalm (town)", "The town of Kalm lies on the Oda river.")
TEXTS = {"p1": BORN, "p2": RIVER}


@pytest.mark.parametrize(
    ("queries", "retrieved", "fault"),
    [
        (["birthplace of Vrek Stom"], ["p9"], MISSED),  # the title's words
        (["town Kalm"], ["p1"], MISSED),
        (["which river does Kalm lie on"], ["p1"], MISSED),  # river and Kalm, of river, Kalm and lie
        (["river of his birthplace"], ["p1"], NEVER_ASKED),  # river, of river, his and birthplace
        (["what is it"], ["p1"], NEVER_ASKED),  # no word of its own
        ([], [], NEVER_ASKED),
        (["Vrek Stom"], ["p1"], NEVER_ASKED),  # what was found was asked for, the other one was not
    ],
)
def test_supporting_passages_tell_without_a_chain_what_was_asked_for(queries: list[str], retrieved: list[str], fault: str) -> None:
    t = episode(PLAIN, queries, retrieved, "")
    assert first_fault(t, 0.0, TEXTS) == fault
    assert first_fault(t, 0.0, {"p9": BORN}) == (NOT_FOUND if queries else NEVER_ASKED)  # of others nothing is told


@pytest.mark.parametrize(
    ("answer", "read", "fault"),
    [
        ("yes", "Vrek Stom was born there.", DROPPED),
        ("yes", "Vrek Stom was born in Kalm (town).", ERRED),
        ("Oda river", "The Oda river it is.", ERRED),  # where the gold answer tells, it does
        ("Oda river", "Vrek Stom was born in Kalm (town).", DROPPED),
    ],
)
def test_titles_tell_what_was_dropped_where_the_answer_is_silent(answer: str, read: str, fault: str) -> None:
    asked = replace(PLAIN, gold=replace(PLAIN.gold, answers=(answer,)))
    assert first_fault(episode(asked, ["Vrek Stom"], ["p1", "p2"], read), 0.0, TEXTS) == fault


def test_texts_are_wanted_of_what_is_wrong_and_has_no_chain() -> None:
    assert silent_on(episode(PLAIN, ["a"], [], ""), 0.0) == ("p1", "p2")
    assert silent_on(episode(PLAIN, ["a"], [], ""), 1.0) == silent_on(episode(PLAIN, ["a"], [], ""), None) == ()
    assert silent_on(episode(CHAIN, ["a"], [], ""), 0.0) == ()
    assert silent_on(episode(PLAIN, [], [], ""), 0.0) == ()
    assert silent_on(episode(PLAIN, ["a"], [], "", "length"), 0.0) == ()


@pytest.mark.parametrize("status", ["format", "length", "error"])
def test_an_episode_that_ended_early_failed_of_that(status: Status) -> None:
    assert first_fault(episode(CHAIN, [], [], "", status), 0.0) == status


def test_the_answer_was_given_where_it_was_said() -> None:
    answer, later = thread("planner", "?", "<answer>Lum</answer>"), thread("executor", "x", "done")
    t = Trajectory("t", CHAIN, "g", 0, "m", 0, answer="Lum", threads=[answer, later, thread("planner", "y", "Lum", True)])
    assert answered_in(t) is answer
    assert answered_in(replace(t, answer="else")) is later
    assert answered_in(replace(t, threads=[])) is None


def test_an_evaluation_counts_them_over_all_questions_and_by_hops() -> None:
    right = replace(episode(CHAIN, ["Vrek Stom", "Kalm"], ["p1", "p2"], BOTH), answer="Oda river")
    one = replace(episode(replace(PLAIN, hops=1), [], [], ""))
    found = summarize([right, episode(CHAIN, [], ["p1"], ""), one, episode(CHAIN, ["Vrek Stom"], [], "")], 0, 100)
    assert found["faults"] == {NEVER_ASKED: 2, MISSED: 1}
    assert (found["by_hops"]["1"]["faults"], found["by_hops"]["2"]["faults"]) == ({NEVER_ASKED: 1}, {NEVER_ASKED: 1, MISSED: 1})
    assert (found["gold_recall"], found["gold_recall_n"]) == (0.375, 4)
    assert found["gold_recall_ci95"][0] < 0.375 < found["gold_recall_ci95"][1]
    assert found["by_type"]["chain"]["gold_recall"] == 0.5
    assert counted(["", ERRED, "format"]) == {"format": 1, ERRED: 1}


def test_a_set_with_questions_without_an_answer_says_who_abstained() -> None:
    without = replace(PLAIN, gold=Gold(("unknown",), (), ("p1",)))
    said = [(without, "unknown"), (without, "Lum"), (PLAIN, "unknown"), (PLAIN, "Oda river"), (PLAIN, "Lum")]
    found = summarize([replace(episode(question, ["x"], [], ""), answer=answer) for question, answer in said], 0, 100)
    assert found["abstention"] == pytest.approx(
        {
            "n": 5, "unanswerable": 2, "abstention": 2 / 5, "abstain_accuracy": 3 / 5, "selective_accuracy": 1 / 3,
            "non_abstention_recall": 2 / 3, "unanswerable_accuracy": 1 / 2,
        }
    )  # fmt: skip
    assert "abstention" not in summarize([episode(PLAIN, [], [], "")], 0, 100)
