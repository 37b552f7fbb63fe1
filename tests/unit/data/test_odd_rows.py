"""Rows of public layouts that are in form and odd: blank answers among real ones, paragraphs that are none, keys of two layouts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rolecast.data import texts
from rolecast.data.convert import convert, detect
from rolecast.data.records import read_corpus, read_questions
from rolecast.errors import InputError
from rolecast.types import Passage, Question

LAYOUTS = Path(__file__).with_name("layouts")


def write(folder: Path, *rows: Mapping[str, Any]) -> Path:
    file = folder / "in.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def first(folder: Path, row: Mapping[str, Any], format: str | None = None) -> Question:
    convert(write(folder, row), folder / "out", format, "set", "dev")
    return read_questions(folder / "out" / "questions.jsonl")[0]


def refused(folder: Path, *rows: Mapping[str, Any], format: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        convert(write(folder, *rows), folder / "out", format, "set", "dev")
    assert not list(folder.glob("out/*"))
    return str(caught.value)


BLANK: dict[str, tuple[Mapping[str, Any], str]] = {
    "ambigqa": ({"question": "Who?", "annotations": [{"type": "singleAnswer", "answer": [" ", "me"]}]}, "single"),
    "kilt": ({"input": "Who?", "output": [{"answer": " "}, {"answer": "me"}]}, ""),
    "triviaqa": (
        {"question": "Who?", "question_id": "1", "question_source": "x", "answer": {"value": "me", "aliases": ["", "me"]}}, "",
    ),
    "squad": ({"question": "Who?", "context": "It is me.", "answers": [{"text": " "}, {"text": "me"}]}, ""),
    "qa": ({"question": "Who?", "answer": ["me", "", "me"]}, ""),
    "musique": (
        {
            "question": "Who?", "answer": "me", "answer_aliases": [" "], "paragraphs": [{"idx": 0, "paragraph_text": "It is me."}],
            "question_decomposition": [{"paragraph_support_idx": 0}],
        }, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("format", BLANK)
def test_a_blank_answer_beside_a_real_one_is_none(tmp_path: Path, format: str) -> None:
    """It would make an empty reply right."""
    row, type = BLANK[format]
    assert detect(write(tmp_path, row)) == format
    question = first(tmp_path, row)
    assert (question.gold.answers, question.type) == (("me",), type)


def test_a_question_of_squad_with_blank_answers_alone_is_unanswerable(tmp_path: Path) -> None:
    question = first(tmp_path, {"question": "Who?", "context": "It is me.", "answers": [{"text": " "}]})
    assert (question.gold.answers, question.gold.passages, question.type) == (("unknown",), (), "unanswerable")


def test_a_row_with_answer_and_answers_is_asked_back(tmp_path: Path) -> None:
    assert "no layout that we know is told by the keys question, answer, answers" in refused(
        tmp_path, {"question": "Who?", "answer": "me", "answers": ["you"]}
    )


def test_annotations_of_ambigqa_that_are_no_objects_are_a_fault_of_their_row(tmp_path: Path) -> None:
    good = {"question": "Who?", "annotations": [{"type": "singleAnswer", "answer": ["me"]}]}
    assert "in.jsonl, line 2: " in refused(tmp_path, good, {"question": "Who?", "annotations": ["me"]})


def test_an_unanswerable_row_of_musique_cites_only_paragraphs_that_it_has(tmp_path: Path) -> None:
    row = {
        "id": "2hop__1", "question": "Who?", "answer": "me", "answerable": False, "paragraphs": [{"idx": 0, "paragraph_text": "It."}],
        "question_decomposition": [{"paragraph_support_idx": 0}, {"paragraph_support_idx": None}],
    }  # fmt: skip
    question = first(tmp_path, row)
    assert (question.type, len(question.gold.passages)) == ("unanswerable", 1)
    parts = [{"paragraph_support_idx": 0}, {"paragraph_support_idx": 7}]
    assert "hop 2 cites paragraph 7, which the row lacks" in refused(tmp_path / "out", {**row, "question_decomposition": parts})


PAGE: Mapping[str, Any] = {
    "example_id": 1, "question_text": "who", "document_text": "<P> It is me . </P> <P> And he . </P>",
    "annotations": [{"long_answer": {"start_token": 0, "end_token": 6}, "short_answers": [{"start_token": 3, "end_token": 4}]}],
}  # fmt: skip


def test_of_a_page_only_top_level_candidates_and_what_was_chosen_are_passages(tmp_path: Path) -> None:
    """A nested candidate says again what stands in the one around it."""
    candidates = [
        {"start_token": 0, "end_token": 6, "top_level": False},
        {"start_token": 6, "end_token": 11, "top_level": True},
        {"start_token": 7, "end_token": 8, "top_level": False},
    ]
    question = first(tmp_path, {**PAGE, "long_answer_candidates": candidates})
    corpus = {passage.id: passage.text for passage in read_corpus(tmp_path / "out" / "corpus.jsonl")}
    assert sorted(corpus.values()) == ["And he .", "It is me ."]
    assert [corpus[id] for id in question.gold.passages] == ["It is me ."]


@pytest.mark.parametrize("tokens", ["me", ["me"], [{"word": "me"}], None])
def test_a_page_whose_tokens_are_none_is_a_fault(tmp_path: Path, tokens: object) -> None:
    row = {**PAGE, "long_answer_candidates": [], "document_text": None, "document_tokens": tokens}
    assert "no page: 'document_text', 'document_tokens' or 'document.tokens'" in refused(tmp_path, row)


@pytest.mark.parametrize("paragraphs", [[], ["It is me."], [1], [{"text": "It is me."}], [{"qas": []}, {"text": "It is me."}]])
def test_paragraphs_without_questions_are_no_article_of_squad(tmp_path: Path, paragraphs: list[Any]) -> None:
    assert "no layout that we know is told by the keys title, paragraphs" in refused(tmp_path, {"title": "T", "paragraphs": paragraphs})


def test_a_paragraph_of_squad_that_is_none_gives_no_question(tmp_path: Path) -> None:
    asked = {"context": "It is me.", "qas": [{"id": "1", "question": "Who?", "answers": [{"text": "me"}]}]}
    file = write(tmp_path, {"title": "T", "paragraphs": [asked]}, {"title": "U", "paragraphs": ["It is me.", {"context": "x"}]})
    assert convert(file, tmp_path / "out", None, "set", "dev").questions == 1


def test_two_facts_that_one_paragraph_states_make_no_chain_over_two(tmp_path: Path) -> None:
    """Which hop the other paragraph stands for would be guessed."""
    row = {
        "_id": "1", "type": "compositional", "question": "Who?", "answer": "Ada Quill",
        "context": [["Tide Song", ["It was directed by Ada Quill in 1931."]], ["Hask", ["Hask is a town."]]],
        "supporting_facts": [["Tide Song", 0], ["Hask", 0]], "evidences": [["Tide Song", "director", "Ada Quill"], ["Tide Song", "year", "1931"]],
    }  # fmt: skip
    question = first(tmp_path, row)
    assert (question.gold.chain, len(question.gold.passages)) == ((), 2)


def test_a_row_of_questions_is_no_passage(tmp_path: Path) -> None:
    about = {"title": "T", "text": "It is me.", "question": "Who?"}
    for row in ({"id": "1", **about}, {"_id": "1", **about}, {"id": "1", "contents": "T\nIt is me.", "question": "Who?"}):
        assert "no layout that we know" in refused(tmp_path, row)


def test_gold_of_questions_over_another_corpus_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "p", "title": "T", "text": "It is me."}) + "\n")
    row = {"id": "1", "question": "Who?", "golden_answers": ["me"], "evidence": "gold", "supporting_passage_ids": ["q"]}
    assert "gold passage 'q' is not in the corpus; fetch the corpus that belongs to the questions" in refused(tmp_path, row)


def test_texts_that_cannot_be_read_or_hold_nothing_are_named(tmp_path: Path) -> None:
    odd, out = tmp_path / "odd.txt", tmp_path / "out"
    odd.write_bytes("Café".encode("latin-1"))
    with pytest.raises(InputError, match=r"odd\.txt: cannot be read .*; save it as UTF-8 or leave it out"):
        convert(odd, out, None, "set", "dev")
    with pytest.raises(InputError, match=r"gone\.txt: no such file; check the path"):
        convert(tmp_path / "gone.txt", out, "texts", "set", "dev")
    odd.write_text(" \n\n ")
    with pytest.raises(InputError, match="no text in it; name another file or folder"):
        convert(odd, out, None, "set", "dev")
    assert not list(tmp_path.glob("out/*"))


def test_hidden_texts_of_a_folder_are_not_read(tmp_path: Path) -> None:
    for name in ("a.md", ".b.md", ".git/c.md", "d.png"):
        file = tmp_path / "texts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"This is {name}.")
    assert convert(tmp_path / "texts", tmp_path / "out", None, "set", "dev").passages == 1


def test_a_file_whose_name_is_no_text_is_named_and_not_a_title(tmp_path: Path) -> None:
    """Linux takes any bytes as a name."""
    (tmp_path / "texts").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "texts") + b"/r\xe9sum\xe9.txt")).write_text("A canal.")
    with pytest.raises(InputError, match=r"/r\\xe9sum\\xe9.txt: its name is not UTF-8; rename it"):
        convert(tmp_path / "texts", tmp_path / "out", None, "set", "dev")
    assert not list(tmp_path.glob("out/*"))


def test_two_texts_that_get_one_id_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are digests of 8 bytes: of billions of passages two may have the same."""
    (tmp_path / "texts").mkdir()
    for name in "ab":
        (tmp_path / "texts" / f"{name}.txt").write_text(f"Text {name}.")
    monkeypatch.setattr(texts, "passage_of", lambda title, text: Passage("same", title, text))
    with pytest.raises(InputError, match=r"b\.txt: passage 'same' was another text before"):
        convert(tmp_path / "texts", tmp_path / "out", None, "set", "dev")
    assert not list(tmp_path.glob("out/*"))


def test_a_folder_is_no_file_of_a_named_format(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder; name a file in it"):
        convert(tmp_path, tmp_path / "out", "flashrag", "set", "dev")


def test_a_table_that_breaks_off_in_its_middle_is_named_with_the_row(tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    rows = "".join(f"{n},A canal,Text {n}.\n" for n in range(4000))
    table.write_bytes(f"id,title,text\n{rows}".encode() + b"\xff,A canal,Text.\n")
    with pytest.raises(InputError, match=r"in\.csv, row \d+: cannot be read \(.*\); fetch the file again"):
        convert(table, tmp_path / "out", "corpus", "set", "dev")
    assert not list(tmp_path.glob("out/*"))


def test_half_a_pair_inside_an_array_is_named_with_its_row(tmp_path: Path) -> None:
    """A passage's id is a digest of its bytes, which such a text has none of."""
    row = {"_id": "1", "question": "Who?", "answer": "Ada", "supporting_facts": [["Ada", 0]], "context": [["Ada", ["\ud800"]]]}
    (tmp_path / "in.json").write_text(json.dumps([row]))
    with pytest.raises(InputError, match=r"in\.json, row 1: a text holds half of a surrogate pair"):
        convert(tmp_path / "in.json", tmp_path / "out", "hotpotqa", "set", "dev")
