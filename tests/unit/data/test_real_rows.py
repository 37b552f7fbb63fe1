"""Rows of public data sets as they were published, where a checkout has them beside it. They are no part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolecast.data.convert import convert
from rolecast.data.records import read_corpus, read_questions

HERE = Path(os.environ.get("ROLECAST_REAL_DATA") or Path(__file__).parents[4] / "shared" / "data") / "formats"
pytestmark = pytest.mark.skipif(not HERE.is_dir(), reason=f"no public rows in {HERE}; ROLECAST_REAL_DATA names a folder that has formats/")

# layout; questions, passages, questions with gold passages; question's beginning, first answers, type, level, original id of the first
Want = tuple[str, tuple[int, int, int], str, tuple[str, ...], str, str, str]
FILES: dict[str, Want] = {
    "2wikimultihopqa_original.json": (
        "2wikimultihopqa", (3, 30, 3), "What is the date of birth of the performer of song Get Low", ("October 5, 1987",), "compositional", "",
        "93402dbc0bdb11eba7f7acde48001122",
    ),
    "flashrag_bamboogle.jsonl": ("flashrag", (4, 0, 0), "Who was president of the United States", ("james madison",), "", "", "test_0"),
    "flashrag_nq.jsonl": ("flashrag", (4, 0, 0), "who told the story of the prodigal son", ("Jesus Christ",), "", "", "test_3283"),
    "flashrag_popqa.jsonl": (
        "flashrag", (4, 0, 0), "Who was the composer of Easy Living?", ("Ralph Rainger", "Ralph Reichenthal"), "composer", "", "test_10207",
    ),
    "flashrag_triviaqa.jsonl": (
        "flashrag", (4, 0, 0), '"Who wrote ""A cauliflower', ("Mark Twain", "Thomas Jefferson Snodgrass", "Sam Clemens"), "", "", "test_6233",
    ),
    "hotpotqa_original.json": (
        "hotpotqa", (3, 30, 3), "If Gallu is a demon Lilu is what?", ("a spirit",), "bridge", "easy", "5a77ec115542992a6e59dff7",
    ),
    "musique_original.jsonl": (
        "musique", (2, 40, 2), "Who was the first president of the association", ("G. Stanley Hall", "Stanley Hall"), "2hop", "",
        "2hop__150763_14904",
    ),
    "search_r1_nq.parquet": ("search_r1", (6, 0, 0), "who got the first nobel prize", ("Wilhelm Conrad Röntgen",), "nq", "", "test_0"),
    "verl_ambigqa.parquet": ("verl", (6, 0, 0), "Who plays the doctor in dexter", ("Tony Goldwyn",), "sewon/ambig_qa", "", "0"),
    "verl_hotpotqa.parquet": ("verl", (6, 0, 0), "Were Scott Derrickson and Ed Wood", ("yes",), "hotpotqa/hotpot_qa", "", "0"),
    "deepresearch_bench_criteria.jsonl": ("deepresearch_bench", (2, 0, 0), "收集整理目前中国9阶层", (), "", "", "1"),
    "deepresearch_bench_query.jsonl": ("deepresearch_bench_query", (2, 0, 0), "收集整理目前中国9阶层", (), "Finance & Business", "", "1"),
    "deepresearch_bench_article.jsonl": ("deepresearch_bench_article", (1, 0, 0), "收集整理目前中国9阶层", ("# 中国9阶层",), "", "", "1"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_questions(tmp_path: Path, name: str) -> None:
    format, counts, text, answers, type, level, id = FILES[name]
    found = convert(HERE / name, tmp_path, None, "set", "dev")
    assert (found.format, (found.questions, found.passages, found.with_passages)) == (format, counts)
    first = read_questions(tmp_path / "questions.jsonl")[0]
    assert first.text.startswith(text)
    assert all(own.startswith(answer) for own, answer in zip(first.gold.answers, answers, strict=False))
    assert bool(first.gold.answers) == bool(answers)
    assert (first.type, first.level, first.original_id) == (type, level, id)
    assert bool(first.gold.rubric) == name.startswith("deepresearch")


def test_weights_of_criteria_add_up(tmp_path: Path) -> None:
    convert(HERE / "deepresearch_bench_criteria.jsonl", tmp_path, None, "set", "dev")
    for question in read_questions(tmp_path / "questions.jsonl"):
        assert sum(item.weight for item in question.gold.rubric) == pytest.approx(1, abs=0.02)


def test_a_corpus_keeps_its_titles(tmp_path: Path) -> None:
    assert convert(HERE / "search_r1_corpus.jsonl", tmp_path, None, "set", "dev").passages == 5
    assert [passage.title for passage in read_corpus(tmp_path / "corpus.jsonl")][:3] == ["Evan Morris", "Horatio Hale", "Dibba Al-Hisn"]


def test_every_file_is_tried() -> None:
    assert {path.name for path in HERE.iterdir()} == {*FILES, "search_r1_corpus.jsonl"}
