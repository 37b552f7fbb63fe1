"""Merging of converted folders: passages once, questions apart, gold where it was moved to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rolecast.cli.main import app
from rolecast.data.merge import Merged, merge
from rolecast.data.records import read_corpus, read_questions
from rolecast.errors import InputError

HOP = {"subject": "A", "relation": "r", "object": "B", "fact": "A r B.", "passage": "x", "query": "r of A"}


def folder(at: Path, passages: dict[str, str], questions: dict[str, list[str]] | None = None, file: str = "questions.jsonl") -> Path:
    """`passages`: text by id. `questions`: gold passages by id."""
    at.mkdir(exist_ok=True)
    if passages:
        rows = [{"id": id, "title": "T", "text": text} for id, text in passages.items()]
        (at / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if questions:
        asked: list[dict[str, Any]] = [
            {"id": id, "question": f"{id}?", "answers": ["B"], "passages": gold} for id, gold in questions.items()
        ]
        (at / file).write_text("".join(json.dumps(row) + "\n" for row in asked))
    return at


def test_a_passage_is_written_once_and_every_folder_keeps_its_questions(tmp_path: Path) -> None:
    train = folder(tmp_path / "train", {"a": "one", "b": "two"}, {"t1": ["a", "b"]})
    test = folder(tmp_path / "test", {"b": "two", "c": "three"}, {"s1": ["b", "c"]})
    assert merge([train, test], tmp_path / "out") == Merged(3, 1, {"train.jsonl": 1, "test.jsonl": 1})
    assert [p.id for p in read_corpus(tmp_path / "out" / "corpus.jsonl")] == ["a", "b", "c"]
    [question] = read_questions(tmp_path / "out" / "test.jsonl")
    assert (question.id, question.gold.passages) == ("s1", ("b", "c"))


def test_equal_passages_under_two_ids_are_one_and_gold_follows(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", {"a": "same", "b": "other"})
    two = folder(tmp_path / "two", {"x": "same", "y": "third"}, {"q": ["x", "y", "x"]})
    row = json.loads((two / "questions.jsonl").read_text())
    (two / "questions.jsonl").write_text(json.dumps({**row, "chain": [HOP]}) + "\n")
    assert merge([one, two], tmp_path / "out") == Merged(3, 1, {"two.jsonl": 1})
    [question] = read_questions(tmp_path / "out" / "two.jsonl")
    assert question.gold.passages == ("a", "y")
    assert question.gold.chain[0].passage == "a"


def test_titles_tell_passages_apart(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", {"a": "same"})
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "corpus.jsonl").write_text(json.dumps({"id": "b", "title": "another", "text": "same"}) + "\n")
    assert merge([one, tmp_path / "two"], tmp_path / "out").passages == 2


def test_questions_may_find_their_passages_in_a_later_folder(tmp_path: Path) -> None:
    questions = folder(tmp_path / "questions", {}, {"q": ["a"]}, "dev.jsonl")
    corpus = folder(tmp_path / "corpus", {"a": "one"})
    assert merge([questions, corpus], tmp_path / "out").questions == {"dev.jsonl": 1}


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (({"a": "changed"}, {"q2": ["a"]}), "passage 'a' has another text here than before"),
        (({"b": "two"}, {"q1": ["b"]}), "question 'q1' is in"),
        (({"b": "two"}, {"q2": ["lost"]}), "gold passage 'lost' of question 'q2' is in none of the corpora"),
    ],
)
def test_what_cannot_be_merged_is_named_and_nothing_is_left(
    tmp_path: Path, second: tuple[dict[str, str], dict[str, list[str]]], said: str
) -> None:
    one, two = folder(tmp_path / "one", {"a": "one"}, {"q1": ["a"]}), folder(tmp_path / "two", *second)
    done = CliRunner().invoke(app, ["data", "merge", str(one), str(two), "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError)
    assert said in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_folders_that_cannot_be_told_apart_or_hold_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one, same = folder(tmp_path / "one", {"a": "one"}, {"q1": ["a"]}), folder(tmp_path / "other" / "one", {"b": "b"}, {"q2": ["b"]})
    with pytest.raises(InputError, match=r"would both become one\.jsonl; rename a folder"):
        merge([one, same], tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"holds neither questions nor corpus\.jsonl"):
        merge([one, tmp_path / "empty"], tmp_path / "out")
    with pytest.raises(InputError, match=r"has no corpus\.jsonl"):
        merge([folder(tmp_path / "alone", {}, {"q": []})], tmp_path / "out")


def test_the_command_says_what_it_wrote_in_lines(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", {str(n): f"text {n}" for n in range(1200)}, {"q1": ["7"]})
    done = CliRunner().invoke(app, ["data", "merge", str(one), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        str(tmp_path / "out"), "  1,200  corpus.jsonl", "      1  one.jsonl", "      0  passages that were there before",
    ]  # fmt: skip
