"""The embedded judge: one table per rule of its specification."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from scripted import EMPLOYER, MAYOR, MENTOR, RIVAL, TWO_HOPS, hop

from rolecast.judge.evidence import holds, unresolved
from rolecast.judge.lexical import LexicalJudge
from rolecast.methods.decor.judge import KINDS as ROLE_KINDS
from rolecast.ports import Verdict
from rolecast.types import Gold, Hop, Question
from rolecast.world.grammar import Fact

BOTH = f"{MENTOR.sentence}\n{EMPLOYER.sentence}"
ARCHITECT, SPONSOR = Fact("Dral Vim", "architect", "Zen Kol"), Fact("Dral Vim", "sponsor", "Kel Dax")
INTERSECTION = Question(
    "qi", "Which city has the architect Zen Kol and the sponsor Kel Dax?",
    Gold(("Dral Vim",), (hop(ARCHITECT, ARCHITECT.inverse_query), hop(SPONSOR, SPONSOR.inverse_query))), "intersection", 2,
)  # fmt: skip
COMPARISON = Question(
    "qc", "Do Brol Tan and Dral Vim have the same rival?",
    Gold(("no",), (hop(RIVAL), hop(Fact("Dral Vim", "rival", "Zen Kol")))), "comparison", 2,
)  # fmt: skip
MISSING = Fact("Vrek Stom", "employer", "")  # no passage states it
UNANSWERABLE = Question(
    "qu", "Who is the founder of the employer of the mentor of Brol Tan?",
    Gold(("unknown",), (hop(MENTOR), Hop("Vrek Stom", "employer", "", MISSING.missing, "", MISSING.query))), "unanswerable", 2,
)  # fmt: skip
COUNCIL, CHECKS = Fact("Dral Vim", "council", "Brol Tan and Zen Kol"), (MENTOR, Fact("Zen Kol", "mentor", "Grel Pon"))
CHOICE = Question(
    "qk", "Who of the council of Dral Vim has the mentor Grel Pon?", Gold(("Zen Kol",), tuple(map(hop, (COUNCIL, *CHECKS)))), "intersection", 3
)  # fmt: skip
NAMED = Question("qn", "Is Kel Dax the employer of Vrek Stom?", Gold(("Kel Dax",), (hop(EMPLOYER),)), "chain", 1)


def verdict(kind: str, question: Question = TWO_HOPS, **inputs: Any) -> Verdict:
    given = {"question": question.text, "gold": question.gold, **inputs}
    return asyncio.run(LexicalJudge().judge(kind, given))


def planner(query: str, memory: str = "", queries: Sequence[str] = (), question: Question = TWO_HOPS) -> float | None:
    return verdict("decor.planner", question, content=query, memory=memory, queries=list(queries)).score


def filter_(kept: str, *documents: str, question: Question = TWO_HOPS) -> float | None:
    return verdict("decor.filter", question, content=kept, sub_query="", documents=list(documents)).score


def answerer(answer: str, memory: str, question: Question = TWO_HOPS, queries: Sequence[str] = ()) -> float | None:
    return verdict("decor.answerer", question, content=answer, memory=memory, queries=list(queries)).score


# The answer


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("Kel Dax", ("Kel Dax",), 1.0),
        ("the kel dax.", ("Kel Dax",), 1.0),
        ("Dax", ("Kel Dax", "Dax"), 1.0),
        ("Kel", ("Kel Dax",), 0.0),
        ("Kel Dax Pon", ("Kel Dax",), 0.0),
        ("", ("Kel Dax",), 0.0),
        ("yes", ("no",), 0.0),
    ],
)
def test_answer_is_one_iff_it_matches_a_gold(prediction: str, golds: tuple[str, ...], score: float) -> None:
    assert verdict("answer", Question("q", "Who?", Gold(golds)), prediction=prediction).score == score


# The planner


@pytest.mark.parametrize(
    ("query", "score"),
    [
        ("mentor of Brol Tan", 1.0),
        ("Brol Tan mentor", 1.0),
        ("Who is the MENTOR of brol tan?", 1.0),
        ("employer of Vrek Stom", 1.0),  # the second hop is unresolved too
        ("mentor of Vrek Stom", -1.0),  # relation of one hop, entity of the other
        ("employer of Brol Tan", -1.0),
        ("rival of Brol Tan", -1.0),
        ("mentor of Brol", -1.0),
        ("mentors of Brol Tan", -1.0),
        ("Brol Tan", -1.0),
        ("mentor", -1.0),
        ("mentor of Brol Tank", -1.0),
        ("", -1.0),
    ],
)
def test_a_query_names_entity_and_relation_of_an_unresolved_hop(query: str, score: float) -> None:
    assert planner(query) == score


@pytest.mark.parametrize(
    ("query", "memory", "score"),
    [
        ("mentor of Brol Tan", MENTOR.sentence, -1.0),  # already resolved
        ("mentor of Brol Tan", MENTOR.atom, -1.0),
        ("mentor of Brol Tan", RIVAL.sentence, 1.0),
        ("employer of Vrek Stom", MENTOR.sentence, 1.0),
        ("employer of Vrek Stom", EMPLOYER.sentence, -1.0),
        ("mentor of Brol Tan", EMPLOYER.sentence, 1.0),
        ("mentor of Brol Tan", "The mentor of Brol Tan is Grel Pon.", 1.0),  # a wrong fact resolves nothing
    ],
)
def test_a_query_for_a_resolved_hop_earns_nothing(query: str, memory: str, score: float) -> None:
    assert planner(query, memory, ["something else"]) == score


@pytest.mark.parametrize(
    ("query", "past", "score"),
    [
        ("mentor of Brol Tan", ["mentor of Brol Tan"], -1.0),
        ("mentor of Brol Tan", ["employer of Vrek Stom", "The Mentor of Brol Tan?"], -1.0),
        ("Brol Tan mentor", ["mentor of Brol Tan"], 1.0),  # other words are a new query
        ("mentor of Brol Tan", ["mentor of Brol"], 1.0),
    ],
)
def test_a_query_is_new(query: str, past: list[str], score: float) -> None:
    assert planner(query, "", past) == score


@pytest.mark.parametrize(
    ("query", "question", "score"),
    [
        ("employer of Vrek Stom Kel Dax", TWO_HOPS, -1.0),
        ("is kel dax the employer of Vrek Stom", TWO_HOPS, -1.0),
        ("employer of Vrek Stom Kel", TWO_HOPS, 1.0),
        ("is Kel Dax the employer of Vrek Stom", NAMED, 1.0),  # the question says it itself
        ("architect is Zen Kol", INTERSECTION, 1.0),
        ("architect of Dral Vim is Zen Kol", INTERSECTION, -1.0),
        ("rival of Brol Tan no", COMPARISON, -1.0),
        ("rival of Brol Tan", COMPARISON, 1.0),
    ],
)
def test_a_query_does_not_contain_the_answer_unless_the_question_does(query: str, question: Question, score: float) -> None:
    assert planner(query, question=question) == score


@pytest.mark.parametrize(
    ("query", "score"),
    [
        ("architect is Zen Kol", 1.0),
        ("Kel Dax as sponsor", 1.0),
        ("architect is Kel Dax", -1.0),
        ("sponsor of Zen Kol", -1.0),
    ],
)
def test_hops_of_an_intersection_are_asked_for_by_their_objects(query: str, score: float) -> None:
    assert planner(query, question=INTERSECTION) == score


@pytest.mark.parametrize(
    ("memory", "queries", "score"),
    [
        (BOTH, ["a", "b"], 1.0),
        (f"{MENTOR.atom} {EMPLOYER.atom}", ["a", "b"], 1.0),
        (f"{EMPLOYER.sentence}\n{RIVAL.sentence}\n{MENTOR.sentence}", ["a"], 1.0),
        (MENTOR.sentence, ["a"], -1.0),
        (EMPLOYER.sentence, ["a"], -1.0),
        (RIVAL.sentence, ["a"], -1.0),
        ("", ["a"], -1.0),
        ("", [], -1.0),
        (BOTH, [], -1.0),
    ],
)
def test_stop_is_right_iff_the_memory_holds_every_gold_fact_and_something_was_asked(memory: str, queries: list[str], score: float) -> None:
    assert planner("None", memory, queries) == score


@pytest.mark.parametrize(
    ("query", "memory", "queries", "score"),
    [
        ("mentor of Brol Tan", "", [], 1.0),
        ("employer of Vrek Stom", MENTOR.sentence, ["mentor of Brol Tan"], 1.0),
        ("Vrek Stom employer", MENTOR.sentence, ["mentor of Brol Tan", "employer of Vrek Stom"], -1.0),  # asking again finds no more
        ("None", MENTOR.sentence, ["mentor of Brol Tan"], -1.0),  # it was not asked for yet
        ("None", MENTOR.sentence, ["mentor of Brol Tan", "employer of Vrek Stom"], 1.0),
        ("None", "", ["mentor of Brol Tan", "employer of Vrek Stom"], -1.0),
        ("None", f"{MENTOR.sentence} {MISSING.missing}", ["mentor of Brol Tan"], -1.0),  # saying so is not asking
    ],
)
def test_what_no_passage_states_is_left_to_ask_once(query: str, memory: str, queries: list[str], score: float) -> None:
    assert planner(query, memory, queries, UNANSWERABLE) == score


@pytest.mark.parametrize(
    ("query", "memory", "score"),
    [
        ("council of Dral Vim", "", 1.0),
        ("mentor of Brol Tan", COUNCIL.sentence, 1.0),
        ("mentor of Zen Kol", COUNCIL.sentence, 1.0),  # it names the answer, as it must
        ("council of Dral Vim Zen Kol", "", 1.0),
        ("employer of Zen Kol", COUNCIL.sentence, -1.0),
    ],
)
def test_an_answer_that_is_asked_about_may_be_named(query: str, memory: str, score: float) -> None:
    assert planner(query, memory, question=CHOICE) == score


# The filter


@pytest.mark.parametrize(
    ("kept", "documents", "score"),
    [
        (MENTOR.sentence, [MENTOR.sentence, RIVAL.sentence], 1.0),
        ("the mentor of Brol Tan is Vrek Stom", [MENTOR.sentence], 1.0),
        (f"{MENTOR.sentence} {EMPLOYER.sentence}", [EMPLOYER.sentence, RIVAL.sentence, MENTOR.sentence], 1.0),
        (MENTOR.sentence, [MENTOR.sentence, EMPLOYER.sentence], -1.0),  # the other gold fact is lost
        (RIVAL.sentence, [MENTOR.sentence, RIVAL.sentence], -1.0),
        ("", [MENTOR.sentence, RIVAL.sentence], -1.0),
        ("Brol Tan. Vrek Stom.", [MENTOR.sentence], -1.0),
    ],
)
def test_every_gold_fact_among_the_documents_is_kept(kept: str, documents: list[str], score: float) -> None:
    assert filter_(kept, *documents) == score


@pytest.mark.parametrize(
    ("kept", "score"),
    [
        (MENTOR.sentence, 1.0),
        (f"{MENTOR.sentence} {RIVAL.sentence}", 1.0),
        (f"{RIVAL.sentence} {MENTOR.sentence}", 1.0),
        (f"{RIVAL.sentence} {MENTOR.sentence} {MAYOR.sentence}", -1.0),
    ],
)
def test_at_most_one_other_sentence_is_kept(kept: str, score: float) -> None:
    assert filter_(kept, MENTOR.sentence, RIVAL.sentence, MAYOR.sentence) == score


@pytest.mark.parametrize(
    ("kept", "score"),
    [
        (f"{MENTOR.sentence} {MAYOR.sentence}", -1.0),
        (f"{MENTOR.sentence} {EMPLOYER.sentence}", -1.0),  # a gold fact, but no document says so
        (f"{MENTOR.sentence} So the mentor is known.", -1.0),
        ("The mentor of Brol Tan is Vrek Stom and the rival of Brol Tan is Grel Pon.", -1.0),
        (f"{MENTOR.sentence}\n{RIVAL.sentence}", 1.0),
    ],
)
def test_nothing_is_added_that_no_document_says(kept: str, score: float) -> None:
    assert filter_(kept, MENTOR.sentence, RIVAL.sentence) == score


@pytest.mark.parametrize(
    ("kept", "documents", "score"),
    [
        ("", [RIVAL.sentence, MAYOR.sentence], 1.0),
        ("", [], 1.0),
        (RIVAL.sentence, [RIVAL.sentence, MAYOR.sentence], 1.0),
        (f"{RIVAL.sentence} {MAYOR.sentence}", [RIVAL.sentence, MAYOR.sentence], -1.0),
        (RIVAL.sentence, [], -1.0),
        (MENTOR.sentence, [RIVAL.sentence], -1.0),
    ],
)
def test_where_no_document_holds_a_gold_fact_nothing_need_be_kept(kept: str, documents: list[str], score: float) -> None:
    assert filter_(kept, *documents) == score


# The answerer


@pytest.mark.parametrize(
    ("answer", "memory", "score"),
    [
        ("Kel Dax", BOTH, 1.0),
        ("kel dax.", "", 1.0),
        ("Vrek Stom", BOTH, -1.0),
        ("Vrek Stom", f"{MENTOR.atom} {EMPLOYER.atom}", -1.0),
        ("", BOTH, -1.0),
        ("Vrek Stom", MENTOR.sentence, None),
        ("Vrek Stom", EMPLOYER.sentence, None),
        ("unknown", "", None),
    ],
)
def test_a_wrong_answer_is_blamed_only_with_the_gold_chain_in_memory(answer: str, memory: str, score: float | None) -> None:
    assert answerer(answer, memory) == score


@pytest.mark.parametrize(
    ("answer", "memory", "queries", "score"),
    [
        ("unknown", MENTOR.sentence, ["employer of Vrek Stom"], 1.0),
        ("unknown", "", [], 1.0),
        ("Vrek Stom", MENTOR.sentence, ["mentor of Brol Tan", "employer of Vrek Stom"], -1.0),
        ("Vrek Stom", MENTOR.sentence, ["mentor of Brol Tan"], None),  # it had not been asked for
        ("Vrek Stom", "", ["employer of Vrek Stom"], None),
    ],
)
def test_who_does_not_abstain_is_blamed_once_everything_was_asked(
    answer: str, memory: str, queries: list[str], score: float | None
) -> None:
    assert answerer(answer, memory, UNANSWERABLE, queries) == score


# What cannot be scored


@pytest.mark.parametrize("kind", [kind.name for kind in ROLE_KINDS])
def test_role_kinds_need_a_gold_chain(kind: str) -> None:
    found = verdict(
        kind,
        Question("q", "Who?", Gold(("Kel Dax",))),
        content="Kel Dax",
        memory=BOTH,
        queries=[],
        sub_query="",
        documents=[MENTOR.sentence],
    )
    assert found.score is None
    assert "chain" in found.reason


def test_an_unknown_kind_is_unscored_with_its_name() -> None:
    found = verdict("mask.update", content="")
    assert found.score is None
    assert "mask.update" in found.reason


def test_every_verdict_has_a_reason() -> None:
    inputs: dict[str, Any] = {"content": "", "memory": "", "queries": [], "sub_query": "", "documents": [], "prediction": ""}
    assert all(verdict(kind, **inputs).reason for kind in ("answer", *(kind.name for kind in ROLE_KINDS)))


@pytest.mark.parametrize(
    ("text", "held"),
    [
        (MENTOR.sentence, True),
        (MENTOR.atom, True),
        (f"{RIVAL.sentence} {MENTOR.sentence}", True),
        ("the mentor of brol tan is vrek stom", True),
        (MENTOR.sentence.rstrip("."), True),
        ("The mentor of Brol Tan is Grel Pon.", False),
        ("The mentor of Vrek Stom is Brol Tan.", False),
        ("The mentor of Brol Tan", False),
        ("", False),
    ],
)
def test_what_holds_a_fact(text: str, held: bool) -> None:
    assert holds(text, hop(MENTOR)) is held


def test_nothing_holds_what_no_passage_states() -> None:
    assert not holds(f"{MISSING.missing} The employer of Vrek Stom is .", UNANSWERABLE.gold.chain[1])


def test_what_is_left_to_find() -> None:
    chain = UNANSWERABLE.gold.chain
    assert unresolved(chain, "", []) == list(chain)
    assert unresolved(chain, MENTOR.sentence, []) == [chain[1]]
    assert unresolved(chain, MENTOR.sentence, ["who is the EMPLOYER of Vrek Stom"]) == []
    assert unresolved(chain, "", ["mentor of Brol Tan", "employer of Vrek Stom"]) == [chain[0]]  # asking alone finds no fact


def test_a_longer_name_is_another_fact() -> None:
    assert not holds("The mentor of Brol Tan is Vrek Stom Kal.", hop(MENTOR))


PARIS = Hop("Paris", "country", "France", "Paris lies in France.", "p", "country of Paris")


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("Paris lies in France.", True),
        ("paris lies in france", True),
        ("It rains. Paris lies in France. It rains.", True),
        ("It rains\nParis lies in France\nIt rains", True),
        ('"Paris lies in France," he said.', True),
        ("- Paris lies in France", True),
        ("(Paris lies in France)", True),
        ("New Paris lies in France.", False),
        ("New-Paris lies in France.", False),
        ("Paris lies in France Antarctique.", False),
        ("Paris lies in France-Comté.", False),
        ("Paris lies in France's heart.", False),
        ("Paris lies in Francesca.", False),
    ],
)
def test_a_fact_is_held_as_a_whole_clause(text: str, held: bool) -> None:
    assert holds(text, PARIS) is held


def test_a_fact_without_its_full_stop_hides_no_other() -> None:
    memory = f"{MENTOR.sentence.rstrip('.')}\n{RIVAL.atom}\n{EMPLOYER.sentence}"
    assert all(holds(memory, hop(fact)) for fact in (MENTOR, RIVAL, EMPLOYER))
