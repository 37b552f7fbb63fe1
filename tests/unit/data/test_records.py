"""Our own files: what is written is read back, and every fault is one line with file, line, reason and next step."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolecast.data.jsonl import JsonlWriter
from rolecast.data.records import iter_corpus, read_corpus, read_questions, split_contents, write_corpus, write_questions
from rolecast.errors import InputError
from rolecast.types import Gold, Hop, Passage, Question, RubricItem

HOP = Hop("Brol Tan", "mentor", "Vrek Stom", "The mentor of Brol Tan is Vrek Stom.", "p1", "mentor of Brol Tan")
FULL = Question("q1", "Who is the mentor of Brol Tan?", Gold(("Vrek Stom", "V. Stom"), (HOP,), ("p1",)), "chain", 1, {"plan": ["a"]})
BARE = Question("q2", "Wer ist Örk\u2028Zün?", Gold(("niemand",)))
PASSAGES = [Passage("p1", "Brol Tan", "The mentor of Brol Tan is Vrek Stom."), Passage("p2", "", 'A "quoted"\nline.')]
QUESTION = {"id": "q1", "question": "Who?", "answers": ["me"]}
HOP = {"subject": "a", "relation": "b", "object": "c", "fact": "d", "passage": "p", "query": "q"}
PASSAGE = {"id": "p1", "title": "T", "text": "words"}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8")
    return path


def message(read: Callable[[Path], object], path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    assert ";" in text, "no next step"
    return text


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_questions_come_back(tmp_path: Path) -> None:
    path = tmp_path / "made" / "questions.jsonl"
    write_questions(path, [FULL, BARE])
    assert read_questions(path) == [FULL, BARE]
    assert left_over(path.parent) == ["questions.jsonl"]
    first = json.loads(path.read_text(encoding="utf-8").split("\n")[0])
    assert list(first) == ["id", "question", "answers", "type", "hops", "chain", "passages", "given"]
    assert list(first["chain"][0]) == ["subject", "relation", "object", "fact", "passage", "query"]


def test_only_id_question_and_answers_are_required(tmp_path: Path) -> None:
    assert read_questions(lines(tmp_path / "q.jsonl", QUESTION, "")) == [Question("q1", "Who?", Gold(("me",)))]


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(QUESTION).encode())
    assert read_questions(path)[0].id == "q1"


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_corpus_comes_back(tmp_path: Path, name: str) -> None:
    write_corpus(tmp_path / name, PASSAGES)
    assert read_corpus(tmp_path / name) == PASSAGES
    assert list(iter_corpus(tmp_path / name)) == PASSAGES


def test_a_whole_surrogate_pair_is_no_fault(tmp_path: Path) -> None:
    assert read_corpus(lines(tmp_path / "c.jsonl", {**PASSAGE, "text": "\U0001f600"}))[0].text == "\U0001f600"


def test_compressed_bytes_do_not_depend_on_time_or_name(tmp_path: Path) -> None:
    write_corpus(tmp_path / "a.gz", PASSAGES)
    write_corpus(tmp_path / "b.gz", PASSAGES)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(gzip.compress(json.dumps(PASSAGE).encode()))
    assert read_corpus(path) == [Passage("p1", "T", "words")]


def test_search_r1_corpus_and_other_keys(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "c.jsonl",
        {"id": "0", "contents": '"Brol Tan"\nFirst line.\nSecond line.'},
        {"id": "1", "contents": "No quotes\ntext", "origin": ["x"]},
        {"id": "2", "title": "T", "text": "wins", "contents": '"U"\nloses'},
    )
    assert read_corpus(path) == [
        Passage("0", "Brol Tan", "First line.\nSecond line."),
        Passage("1", "No quotes", "text"),
        Passage("2", "T", "wins"),
    ]


@pytest.mark.parametrize(
    ("contents", "title"), [('"A" and "B"\nt', 'A" and "B'), ('"\nt', '"'), ('""\nt', ""), ("A\nt", "A"), ('"A" (song)\nt', '"A" (song)')]
)
def test_titles_lose_one_outer_pair_of_quotes(contents: str, title: str) -> None:
    assert split_contents(contents) == (title, "t")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{not json", "not JSON"),
        ("[1, 2]", "not an object but list"),
        ({"question": "Who?", "answers": ["me"]}, "key 'id' is missing"),
        ({"id": "q1", "answers": ["me"]}, "key 'question' is missing"),
        ({"id": "q1", "question": "Who?"}, "key 'answers' is missing"),
        ({**QUESTION, "answer": "me"}, "unknown key 'answer'"),
        ({**QUESTION, "id": 1.5}, "'id': input should be a valid string"),
        ({**QUESTION, "answers": "me"}, "'answers': input should be a valid list"),
        ({**QUESTION, "answers": [3]}, "'answers.0': input should be a valid string"),
        ({**QUESTION, "hops": "2"}, "'hops': input should be a valid integer"),
        ({**QUESTION, "hops": -1}, "'hops': input should be greater than or equal to 0"),
        ({**QUESTION, "given": []}, "'given': input should be a valid dictionary"),
        ({**QUESTION, "chain": [{"subject": "s"}]}, "key 'chain.0.relation' is missing"),
        ({**QUESTION, "chain": [{**HOP, "note": "x"}]}, "unknown key 'chain.0.note'"),
        ({**QUESTION, "rubric": [{"text": "says who", "wieght": 2.0}]}, "unknown key 'rubric.0.wieght'"),
        ({**QUESTION, "rubric": [{"text": "says who", "weight": "2"}]}, "'rubric.0.weight': input should be a valid number"),
        ({**QUESTION, "answers": []}, "question without gold"),
        ({**QUESTION, "answers": [" "]}, "'answers.0' is empty"),
        ({**QUESTION, "question": ""}, "'question' is empty"),
        ({**QUESTION, "id": ""}, "'id' is empty"),
        ('{"id": "q1", "question": "\\ud800", "answers": ["me"]}', "half of a surrogate pair"),
        ('{"id": "q1", "question": "Who?", "answers": ["me"], "given": {"a": "\\udC00"}}', "half of a surrogate pair"),
        ({**QUESTION, "id": "q0"}, "id 'q0' is already on line 1"),
        (100_000 * "[", "nested too deeply"),
        (100_000 * '{"a":', "nested too deeply"),
        ('{"id": "q1", "question": "Who?", "answers": ["me"], "id": "q2"}', "key 'id' is given twice; keep one"),
        ('{"id": "q1", "question": "Who?", "answers": ["me"], "given": {"a": "x", "a": "y"}}', "key 'a' is given twice; keep one"),
    ],
)
def test_question_faults(tmp_path: Path, row: Any, reason: str) -> None:
    text = message(read_questions, lines(tmp_path / "q.jsonl", {**QUESTION, "id": "q0"}, "", row))
    assert "q.jsonl, line 3: " in text
    assert reason in text


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("nothing", "not JSON"),
        ({"title": "T", "text": "words"}, "key 'id' is missing"),
        ({"id": "p1", "title": "T"}, "key 'text' is missing"),
        ({**PASSAGE, "id": 7.5}, "'id': input should be a valid string"),
        ({**PASSAGE, "text": ["words"]}, "'text': input should be a valid string"),
        ({"id": "p1", "contents": "no title line"}, "'contents' has no title line"),
        ({**PASSAGE, "id": "p0", "text": "others"}, "id 'p0' stood for another text before"),
        (100_000 * "[", "nested too deeply"),
        ('{"id": "p1", "title": "T", "text": "a", "text": "b"}', "key 'text' is given twice; keep one"),
    ],
)
def test_corpus_faults(tmp_path: Path, row: Any, reason: str) -> None:
    text = message(read_corpus, lines(tmp_path / "c.jsonl", {**PASSAGE, "id": "p0"}, row))
    assert "c.jsonl, line 2: " in text
    assert reason in text


def test_passages_without_text_or_there_twice_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    untitled = {"id": 7, "text": "numbered"}
    file = lines(tmp_path / "c.jsonl", PASSAGE, {**PASSAGE, "id": "p2", "text": " \n"}, PASSAGE, {"id": "3", "contents": '"T"\n'}, untitled)
    assert read_corpus(file) == [Passage("p1", "T", "words"), Passage("7", "", "numbered")]
    assert "2 passages without text and 1 that are there twice were left out" in caplog.text
    assert "the corpus is empty" in message(read_corpus, lines(tmp_path / "none.jsonl", {**PASSAGE, "text": ""}))


@pytest.mark.parametrize("read", [read_questions, read_corpus])
def test_file_faults(tmp_path: Path, read: Callable[[Path], object]) -> None:
    assert "no such file" in message(read, tmp_path / "absent.jsonl")
    assert "a folder; name a file in it" in message(read, tmp_path)
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"id": "ö"}'.encode("latin-1"))
    assert "line 1: not JSON" in message(read, latin)
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(PASSAGE).encode())[:-12])
    assert "cut.gz, line 1: cannot be read" in message(read, cut)


def test_empty_files(tmp_path: Path) -> None:
    path = lines(tmp_path / "e.jsonl", "", "  ")
    assert "the corpus is empty" in message(read_corpus, path)
    assert "no questions" in message(read_questions, path)


def test_a_writer_refuses_what_a_reader_would(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    assert "line 2: id 'q1' is already on line 1" in message(lambda p: write_questions(p, [FULL, FULL]), path)
    without = Question("q3", "Who?", Gold(()))
    assert "line 2: question 'q3': question without gold" in message(lambda p: write_questions(p, [FULL, without]), path)
    assert "line 1: a text holds half of" in message(lambda p: write_questions(p, [Question("q", "?", Gold(("a",)), "\ud800")]), path)
    assert "no questions to write" in message(lambda p: write_questions(p, []), path)
    assert "passage 'p3' has an empty text" in message(lambda p: write_corpus(p, [*PASSAGES, Passage("p3", "T", "")]), path)
    assert "passage '': 'id' is empty" in message(lambda p: write_corpus(p, [Passage("", "T", "t")]), path)
    assert "no passages to write" in message(lambda p: write_corpus(p, []), path)
    assert left_over(tmp_path) == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    def broken() -> Iterator[Question]:
        yield BARE
        raise KeyboardInterrupt

    path = tmp_path / "q.jsonl"
    write_questions(path, [FULL])
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        write_questions(path, broken())
    assert path.read_bytes() == before
    assert left_over(tmp_path) == ["q.jsonl"]


def test_the_new_file_appears_only_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with JsonlWriter(path) as out:
        out.write({"a": 1})
        assert not path.exists()
        assert len(left_over(tmp_path)) == 1, "the temporary file lies in the same folder"
    assert path.read_text() == '{"a": 1}\n'
    with JsonlWriter(path):
        pass
    assert path.read_text() == '{"a": 1}\n', "no row, no change"


def test_unwritable_places_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in message(lambda p: write_corpus(p, PASSAGES), tmp_path / "file" / "corpus.jsonl")
    (tmp_path / "folder").mkdir()
    assert "cannot be written" in message(lambda p: write_corpus(p, PASSAGES), tmp_path / "folder")
    assert left_over(tmp_path) == ["file", "folder"]


def test_a_question_may_have_a_rubric_instead_of_answers(tmp_path: Path) -> None:
    rubric = (RubricItem("names the first mayor", 2.0), RubricItem("cites a passage"))
    question = Question("q", "Write about Dral Vim.", Gold((), rubric=rubric))
    write_questions(tmp_path / "q.jsonl", [question])
    assert read_questions(tmp_path / "q.jsonl") == [question]
    write_questions(tmp_path / "plain.jsonl", [Question("q", "Who?", Gold(("a",)))])
    assert "rubric" not in (tmp_path / "plain.jsonl").read_text()


def test_a_corpus_with_an_id_twice_is_not_written(tmp_path: Path) -> None:
    for other in ("text", "another"):
        with pytest.raises(InputError, match=r"line 2: id 'a' is there already; give every row its own"):
            write_corpus(tmp_path / "corpus.jsonl", [Passage("a", "", "text"), Passage("a", "", other)])
    assert list(tmp_path.iterdir()) == []
