"""Figures of an index by hand, and the command that prints them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rolecast.cli.main import app
from rolecast.data.records import write_questions
from rolecast.errors import InputError
from rolecast.evaluation.supports import measure_supports, support_table
from rolecast.retriever.app import make_retriever
from rolecast.retriever.index import build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.types import Gold, Passage, Question
from tests.live import serving

RANKED = {"q1": "abcd", "q2": "dcba", "q3": "xyz"}  # ids of what each query finds


class Ranked:
    def __init__(self) -> None:
        self.asked: list[int] = []

    async def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.asked.append(len(queries))
        return [[Passage(id, "", "") for id in RANKED[query][:k]] for query in queries]


def question(text: str, *gold: str) -> Question:
    return Question(f"id-{text}-{gold}", text, Gold(("a",), passages=gold))


QUESTIONS = [question("q1", "a", "c"), question("q2", "c"), question("q3", "n"), question("q1")]


def test_figures_by_hand() -> None:
    found = asyncio.run(measure_supports(Ranked(), QUESTIONS, [3, 1, 2], set("abcdxyz")))  # type: ignore[arg-type]
    assert (found.questions, found.without, found.absent) == (3, 1, 1)
    means = {name: measure.mean for name, measure in found.measures.items()}
    assert means == pytest.approx(
        {
            "recall@1": (1 / 2) / 3, "any@1": 1 / 3, "all@1": 0.0,
            "recall@2": (1 / 2 + 1) / 3, "any@2": 2 / 3, "all@2": 1 / 3,
            "recall@3": 2 / 3, "any@3": 2 / 3, "all@3": 2 / 3,
            "mrr@3": (1 + 1 / 2 + 0) / 3,
        }
    )  # fmt: skip
    for measure in found.measures.values():
        assert 0 <= measure.low <= measure.mean <= measure.high <= 1
    assert found.measures["any@2"].low < found.measures["any@2"].high


def test_a_gold_passage_that_is_named_twice_is_one() -> None:
    found = asyncio.run(measure_supports(Ranked(), [question("q1", "a", "a", "b")], [2]))  # type: ignore[arg-type]
    assert found.measures["recall@2"].mean == found.measures["all@2"].mean == 1.0
    assert found.absent == 0  # nobody said what the corpus holds


def test_many_questions_are_asked_in_parts() -> None:
    ranked = Ranked()
    assert asyncio.run(measure_supports(ranked, [question("q1", "a")] * 600, [1])).questions == 600  # type: ignore[arg-type]
    assert ranked.asked == [256, 256, 88]


def test_questions_without_gold_are_refused() -> None:
    with pytest.raises(InputError, match="no question names its gold passages"):
        asyncio.run(measure_supports(Ranked(), [question("q1")], [1]))  # type: ignore[arg-type]


def test_the_command_measures_an_index_and_a_service_alike(tmp_path: Path) -> None:
    passages = [Passage("a", "Cats", "red cat"), Passage("b", "Dogs", "blue dog dog"), Passage("c", "", "red dog")]
    build_index(passages, tmp_path / "index", "bm25")
    write_questions(tmp_path / "q.jsonl", [question("dog", "b"), question("red", "a", "z"), question("owl")])
    with serving(*make_retriever(RetrieverSettings(index=str(tmp_path / "index")))) as url:
        printed = [
            CliRunner().invoke(app, ["index", "eval", place, str(tmp_path / "q.jsonl"), "--k", "1", "--json"])
            for place in (str(tmp_path / "index"), url)
        ]
    here, there = (json.loads(done.stdout)[str(tmp_path / "q.jsonl")] for done in printed)
    assert here["measures"] == there["measures"]
    assert here["measures"]["any@1"]["mean"] == 0.5  # red finds the shorter c first
    assert (here["absent"], there["absent"], here["without"]) == (1, 0, 1)
    assert "1 questions name no gold passage and are left out" in printed[0].stderr


def test_the_table_has_a_line_for_each_file() -> None:
    found = asyncio.run(measure_supports(Ranked(), QUESTIONS, [1]))  # type: ignore[arg-type]
    head, *lines = support_table({"one": found, "two": found}).splitlines()
    assert head.split()[:3] == ["questions", "n", "recall@1"]
    assert [line.split()[:2] for line in lines] == [["one", "3"], ["two", "3"]]
