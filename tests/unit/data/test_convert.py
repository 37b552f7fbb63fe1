"""Public layouts, in invented rows (fixtures/layouts.json): what each becomes, how it is detected, and what is refused."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from rolecast.cli.main import app
from rolecast.data.convert import FORMATS, Converted, convert, convert_hub, detect, load_hub
from rolecast.data.records import read_corpus, read_questions
from rolecast.errors import InputError
from rolecast.types import Hop, Passage, Question, question_id

ROWS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("fixtures").joinpath("layouts.json").read_text())
FLASHRAG, HOTPOT, MUSIQUE, SEARCH_R1, VERL = (ROWS[name] for name in ("flashrag", "hotpotqa", "musique", "search_r1", "verl"))
TWO_WIKI, MULTIHOP, OWN = ROWS["2wikimultihopqa"], ROWS["multihop"], ROWS["rolecast"]
POPQA = {**FLASHRAG, "id": "dev_8", "metadata": {"subj": "Omber canal", "prop": "engineer", "obj": "Ilse Marn"}}
CONTEXT, TRIPLES = HOTPOT["context"], TWO_WIKI["evidences"]
CORPUS = [{"id": "p1", "title": "A", "text": "a", "origin": ["x"]}, {"id": "p2", "title": "B", "text": "b"}]


def store(path: Path, *rows: Any) -> Path:
    """Rows in the container that the name asks for."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(list(rows), indent=1))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def converted(folder: Path, *rows: Any, name: str = "in.jsonl", format: str | None = None) -> tuple[Converted, list[Question]]:
    result = convert(store(folder / name, *rows), folder / "out", format, "set", "dev")
    file = folder / "out" / "questions.jsonl"
    return result, read_questions(file) if file.exists() else []


def corpus(folder: Path) -> dict[str, Passage]:
    return {passage.id: passage for passage in read_corpus(folder / "out" / "corpus.jsonl")}


def refused(folder: Path, *rows: Any, name: str = "in.jsonl", format: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        convert(store(folder / name, *rows), folder / "out", format, "set", "dev")
    assert not list(folder.glob("out/*")), "something was written"
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value), "no next step"
    return str(caught.value)


@pytest.mark.parametrize("name", ROWS)
def test_every_layout_is_detected_in_every_container(tmp_path: Path, name: str) -> None:
    assert [format.name for format in FORMATS.values() if format.claims(ROWS[name])] == [name]
    files = [store(tmp_path / "a.jsonl", ROWS[name]), store(tmp_path / "b.json", ROWS[name])]
    files.append(tmp_path / "c.gz")
    files[-1].write_bytes(gzip.compress(files[1].read_bytes()))
    if name not in ("hotpotqa", "2wikimultihopqa"):  # arrow has no type for a list of a string and a list
        files.append(store(tmp_path / "d.parquet", ROWS[name]))
    assert [detect(file) for file in files] == [name] * len(files)


def test_flashrag(tmp_path: Path) -> None:
    result, (plain, popqa) = converted(tmp_path, FLASHRAG, POPQA)
    assert result == Converted("flashrag", 2, 0, 0, 0, 0)
    assert (plain.id, plain.text) == (question_id("set", "dev", "dev_7"), "Who dug the Omber canal?")
    assert plain.gold.answers == ("Ilse Marn", "I. Marn"), "blank and repeated aliases go"
    assert (plain.type, plain.hops, popqa.type) == ("", 0, "engineer")
    assert not (tmp_path / "out" / "corpus.jsonl").exists()


def test_hotpotqa(tmp_path: Path) -> None:
    again = {**HOTPOT, "_id": "h2", "supporting_facts": [["Ada Quill", 0], ["Ada", 0]]}
    result, (first, second) = converted(tmp_path, HOTPOT, again, name="in.json")
    assert result == Converted("hotpotqa", 2, 3, 2, 0, 2), "paragraphs that two questions share are one passage"
    passages = corpus(tmp_path)
    assert [passages[id].title for id in first.gold.passages] == ["Tide Song (1931 film)", "Ada Quill"]
    assert [passages[id].title for id in second.gold.passages] == ["Ada Quill", "Ada"]
    assert first.gold.passages[1] == second.gold.passages[0]
    assert passages[first.gold.passages[0]].text == "Tide Song is a 1931 drama. It was directed by Ada Quill."
    assert (first.id, first.type, first.hops, first.gold.answers) == (question_id("set", "dev", "h1"), "bridge", 2, ("3 May 1899",))


def test_passage_ids_do_not_depend_on_the_data_set(tmp_path: Path) -> None:
    _, (one,) = converted(tmp_path, HOTPOT)
    convert(tmp_path / "in.jsonl", tmp_path / "other", None, "other", "train")
    (other,) = read_questions(tmp_path / "other" / "questions.jsonl")
    assert one.gold == other.gold
    assert one.id != other.id


def test_gold_that_is_not_in_the_context_is_counted_out(tmp_path: Path) -> None:
    """In HotpotQA's fullwiki files the context was retrieved and may lack the gold paragraphs."""
    result, (question,) = converted(tmp_path, {**HOTPOT, "supporting_facts": [["Ada Quill", 0], ["Elsewhere", 0]]})
    assert (result.with_passages, question.gold.passages, question.hops) == (0, (), 2)


def test_hub_tables_mean_the_same(tmp_path: Path) -> None:
    table = {key: value for key, value in TWO_WIKI.items() if key != "_id"} | {
        "id": "h1",
        "context": {"title": [title for title, _ in CONTEXT], "sentences": [sentences for _, sentences in CONTEXT]},
        "supporting_facts": {"title": ["Tide Song (1931 film)", "Ada Quill"], "sent_id": [1, 0]},
    }
    _, listed = converted(tmp_path, TWO_WIKI)
    _, tabled = converted(tmp_path, table, name="in.parquet")
    assert listed == tabled
    table["supporting_facts"] = {"title": ["Ada Quill"], "sent_id": [1, 0]}
    assert "supporting_facts" in refused_again(tmp_path, table)


def refused_again(folder: Path, row: Mapping[str, Any]) -> str:
    (folder / "fresh").mkdir()
    return refused(folder / "fresh", row)


def test_two_wiki_fills_each_hop_from_the_sentence_that_states_it(tmp_path: Path) -> None:
    result, (question,) = converted(tmp_path, TWO_WIKI, name="in.json")
    film, person = question.gold.passages
    assert result.with_chain == 1
    assert question.gold.chain == (
        Hop("Tide Song", "director", "Ada Quill", "It was directed by Ada Quill.", film, "director of Tide Song"),
        Hop(
            "Ada Quill",
            "date of birth",
            "May 3, 1899",
            "Ada Quill (3 May 1899 to 1960) was a director.",
            person,
            "date of birth of Ada Quill",
        ),
    )


@pytest.mark.parametrize(
    "change",
    [
        {"evidences": []},
        {"evidences": TRIPLES[:1]},
        {"evidences": [*TRIPLES, TRIPLES[1]]},
        {"evidences": [["The Tide Song", "director", "Ada Quill"], TRIPLES[1]]},
        {"evidences": [TRIPLES[0], ["Ada Quill", "date of birth", "May 4, 1899"]]},
        {"evidences": [TRIPLES[0], ["Ada Quill", "date of birth", "?"]]},
        {"supporting_facts": [["Tide Song (1931 film)", 0], ["Ada Quill", 0]]},
        {"supporting_facts": [["Tide Song (1931 film)", 1], ["Ada Quill", 5]]},
    ],
    ids=["none", "left over", "one twice", "other subject", "other object", "no words", "other sentence", "no sentence"],
)
def test_two_wiki_chain_stays_empty_when_a_hop_would_be_guessed(tmp_path: Path, change: Mapping[str, Any]) -> None:
    result, (question,) = converted(tmp_path, {**TWO_WIKI, **change})
    assert (result.with_chain, question.gold.chain) == (0, ())
    assert (len(question.gold.passages), question.hops) == (2, 2)


def test_musique(tmp_path: Path) -> None:
    result, (question,) = converted(tmp_path, MUSIQUE)
    assert result == Converted("musique", 1, 3, 1, 0, 0), "two paragraphs of one title with other texts are two passages"
    passages = corpus(tmp_path)
    assert [passages[id].text for id in question.gold.passages] == ["Orlo Mills has its seat in Hask.", "Hask lies on the Senn."]
    assert (question.type, question.hops, question.gold.answers) == ("2hop", 2, ("Senn", "the Senn"))


def test_search_r1(tmp_path: Path) -> None:
    hotpot = {**SEARCH_R1, "data_source": "hotpotqa", "reward_model": {"ground_truth": {"target": ["yes"]}}}
    result, (first, second) = converted(tmp_path, SEARCH_R1, hotpot, name="in.parquet")
    assert result == Converted("search_r1", 2, 0, 0, 0, 0)
    assert (first.gold.answers, first.type, second.type) == (("Teo Vann", "T. Vann"), "nq", "hotpotqa")
    assert first.id == question_id("set", "dev", "nq/train_0"), "ids repeat across the sources of one file"
    without = {key: value for key, value in SEARCH_R1.items() if key != "id"}
    assert converted(tmp_path, without)[1][0].id == question_id("set", "dev", "nq/0")


@pytest.mark.parametrize("answer", [["Teo Vann", "T. Vann"], "Teo Vann"])
def test_verl_takes_the_answers_from_extra_info(tmp_path: Path, answer: Any) -> None:
    row = {**VERL, "extra_info": {**VERL["extra_info"], "answer": answer}}
    _, (question,) = converted(tmp_path, row, name="in.parquet")
    assert question.gold.answers == (tuple(answer) if isinstance(answer, list) else ("Teo Vann",))
    assert (question.text, question.type) == ("who leads the Brass Guild?", "us/ours")
    assert question.id == question_id("set", "dev", "us/ours/test/4")


def test_corpus(tmp_path: Path) -> None:
    result, questions = converted(tmp_path, ROWS["corpus"], CORPUS[0])
    assert (result, questions) == (Converted("corpus", 0, 2, 0, 0, 0), [])
    assert list(corpus(tmp_path).values()) == [Passage("0", "A", "a"), Passage("p1", "A", "a")]


def test_multihop_brings_the_corpus_beside_it(tmp_path: Path) -> None:
    store(tmp_path / "corpus.jsonl", *CORPUS)
    weak = {**MULTIHOP, "id": "ours-2", "evidence": "answer_match"}
    result, (gold, other) = converted(tmp_path, MULTIHOP, weak)
    assert result == Converted("multihop", 2, 2, 1, 0, 0)
    assert (gold.gold.passages, other.gold.passages) == (("p1", "p2"), ()), "a passage that holds the answer is not yet gold"
    assert (gold.hops, gold.type, gold.gold.chain) == (2, "bridge", ())
    (tmp_path / "corpus.jsonl.gz").write_bytes(gzip.compress((tmp_path / "corpus.jsonl").read_bytes()))
    (tmp_path / "corpus.jsonl").unlink()
    assert converted(tmp_path, MULTIHOP)[0].passages == 2


def test_multihop_needs_its_corpus(tmp_path: Path) -> None:
    assert "no corpus.jsonl.gz or corpus.jsonl beside it" in refused(tmp_path, MULTIHOP)
    store(tmp_path / "corpus.jsonl", CORPUS[0])
    assert "line 1: gold passage 'p2' is not in the corpus" in refused(tmp_path, MULTIHOP)


def test_own_rows_may_lack_the_id(tmp_path: Path) -> None:
    _, (first, second) = converted(tmp_path, OWN, {**OWN, "id": "mine"})
    assert (first.id, second.id) == (question_id("set", "dev", 1), question_id("set", "dev", "mine"))
    assert (first.type, first.given) == ("chain", {"hint": 1})


def test_what_else_lies_in_the_folder_stays(tmp_path: Path) -> None:
    converted(tmp_path, FLASHRAG)
    converted(tmp_path, *CORPUS, name="corpus.jsonl")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["corpus.jsonl", "questions.jsonl"]


def without(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != key}


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("flashrag", {**FLASHRAG, "golden_answers": [" "]}, "question without gold"),
        ("flashrag", {**FLASHRAG, "golden_answers": [1]}, "'golden_answers.0': input should be a valid string"),
        ("flashrag", without(FLASHRAG, "golden_answers"), "key 'golden_answers' is missing"),
        ("flashrag", {**FLASHRAG, "question": " "}, "'question' is empty"),
        ("flashrag", [1], "not an object but list"),
        ("hotpotqa", without(HOTPOT, "answer"), "key 'answer' is missing"),
        ("hotpotqa", {**HOTPOT, "answer": ""}, "question without gold"),
        ("hotpotqa", without(HOTPOT, "supporting_facts"), "key 'supporting_facts' is missing"),
        ("hotpotqa", {**HOTPOT, "context": [["Ada"]]}, "'context.0"),
        ("hotpotqa", {**HOTPOT, "context": [["Ada", ["\ud800"]]]}, "half of a surrogate pair"),
        ("2wikimultihopqa", {**TWO_WIKI, "evidences": [["a", "b"]]}, "'evidences.0"),
        ("musique", {**MUSIQUE, "paragraphs": MUSIQUE["paragraphs"][:2]}, "hop 1 cites paragraph 2"),
        ("musique", {**MUSIQUE, "question_decomposition": [{"id": 1}]}, "hop 1 cites paragraph None"),
        ("musique", {**MUSIQUE, "question_decomposition": []}, "'question_decomposition'"),
        ("search_r1", {**SEARCH_R1, "reward_model": {"ground_truth": {"target": []}}}, "question without gold"),
        ("search_r1", {**SEARCH_R1, "reward_model": {"ground_truth": "x"}}, "'reward_model.ground_truth'"),
        ("search_r1", without(SEARCH_R1, "question"), "key 'question' is missing"),
        ("verl", {**VERL, "extra_info": {"question": "who?"}}, "key 'extra_info.answer' is missing"),
        ("verl", without(VERL, "extra_info"), "key 'extra_info' is missing"),
        ("corpus", {"id": "1", "contents": "no title line"}, "no title line"),
        ("corpus", {"id": "1", "title": "A", "text": 1}, "'text': input should be a valid string"),
        ("rolecast", {**OWN, "answer": "me"}, "unknown key 'answer'"),
        ("rolecast", {**OWN, "id": ""}, "'id' is empty"),
    ],
)
def test_malformed_rows(tmp_path: Path, name: str, row: Any, reason: str) -> None:
    text = refused(tmp_path, {**ROWS[name], "id": "ok"} if name != "hotpotqa" else HOTPOT, row, format=name)
    assert f"{tmp_path / 'in.jsonl'}, line 2: " in text
    assert reason in text


def test_what_is_no_object_behind_the_first_row_or_in_a_named_format_is_refused(tmp_path: Path) -> None:
    """Of an array: lines are read as objects anyway."""
    assert "row 2: not an object but int; mend or remove it" in refused(tmp_path, FLASHRAG, 1, name="in.json")
    assert "row 1: not an object but list; mend or remove it" in refused(tmp_path, [1], name="in.json", format="flashrag")


def test_a_named_format_does_not_make_rows_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "in.json: no rows; fetch the file again" in refused(tmp_path, name="in.json", format="flashrag")
    fake_hub(monkeypatch, [])
    with pytest.raises(InputError, match=r"^hub:them/rag, split test: no rows; fetch the file again"):
        convert_hub("them/rag", None, "test", tmp_path / "out", None, "nq")


def test_repeated_ids(tmp_path: Path) -> None:
    assert "row 2: id 'h1' is already on row 1" in refused(tmp_path, HOTPOT, HOTPOT, name="in.json")
    assert "line 3: passage 'p1' was another text before" in refused(tmp_path, *CORPUS, {**CORPUS[0], "text": "b"})


def test_unknown_layouts_and_formats(tmp_path: Path) -> None:
    assert "no layout that we know is told by the keys id, prompt; if it is one of these, name it with --format: qa," in refused(
        tmp_path, {"id": 1, "prompt": "x"}
    )
    assert "format 'flash' is unknown; name one of qa," in refused(tmp_path, FLASHRAG, format="flash")
    assert "row 1: not an object but int" in refused(tmp_path, 1, name="in.json")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no rows"),
        (b"[]", "no rows"),
        (b"{broken", "line 1: not JSON"),
        (b'[{"question": "a", "golden_answers": ["b"]}, {bro', "row 2: not JSON"),
        (b'[{"question": "a", "golden_answers": ["b"]}', "row 2: not JSON (the array ends early)"),
        (b'[{"question": "a", "golden_answers": ["b"]}, ', "row 2: not JSON"),
        ('[{"question": "ä"}]'.encode("latin-1"), "cannot be read"),
        (b"PAR1 and no more", "row 1: not parquet"),
        (100_000 * b"[", "row 1: lists or objects are nested too deeply"),
        (100_000 * b'{"a":', "line 1: lists or objects are nested too deeply"),
        (b'[{"question": "a", "question": "b", "golden_answers": ["b"]}]', "row 1: key 'question' is given twice"),
        (b'{"question": "a", "question": "b", "golden_answers": ["b"]}', "line 1: key 'question' is given twice"),
        (gzip.compress(b"[1, 2, 3]", mtime=0)[:-9], "cannot be read"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "in"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        convert(path, tmp_path / "out", None, "set", "dev")
    assert str(path) in str(caught.value)
    assert reason in str(caught.value)
    assert not list(tmp_path.glob("out/*"))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; check the path"):
        detect(tmp_path / "absent")
    with pytest.raises(InputError, match="a folder without a text"):
        convert(tmp_path, tmp_path / "out", None, "set", "dev")
    with pytest.raises(InputError, match="no rows; fetch the file again"):
        detect(store(tmp_path / "e.json"))


def fake_hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[tuple[Any, ...]]:
    """Stands for the package `datasets`: unit tests have no network."""
    calls: list[tuple[Any, ...]] = []

    def load_dataset(dataset: str, name: str | None, *, split: str) -> Any:
        calls.append((dataset, name, split))
        if isinstance(answer, Exception):
            raise answer
        return answer

    package, exceptions = ModuleType("datasets"), ModuleType("datasets.exceptions")
    package.load_dataset = load_dataset  # type: ignore[attr-defined]
    exceptions.DatasetsError = type("DatasetsError", (Exception,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", package)
    monkeypatch.setitem(sys.modules, "datasets.exceptions", exceptions)
    return calls


def test_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_hub(monkeypatch, [FLASHRAG])
    assert list(load_hub("them/rag", "nq", "test")) == [FLASHRAG]
    assert convert_hub("them/rag", "nq", "test", tmp_path, None, "nq") == Converted("flashrag", 1, 0, 0, 0, 0)
    assert read_questions(tmp_path / "questions.jsonl")[0].id == question_id("nq", "test", "dev_7")
    assert calls == [("them/rag", "nq", "test")] * 2


def test_hub_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, ConnectionError("Couldn't reach\nthe Hub"))
    with pytest.raises(InputError, match=r"^hub:them/rag/nq, split test: cannot be loaded \(Couldn't reach the Hub\); check the names"):
        load_hub("them/rag", "nq", "test")
    fake_hub(monkeypatch, [FLASHRAG, {**FLASHRAG, "golden_answers": []}])
    with pytest.raises(InputError, match=r"^hub:them/rag, split test, row 2: question without gold"):
        convert_hub("them/rag", None, "test", tmp_path / "out", None, "nq")
    assert not list(tmp_path.glob("out/*"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"^datasets is not installed; .*pip install .*\[convert\]'"):
        load_hub("them/rag", None, "test")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store(tmp_path / "in.parquet", VERL)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"^pyarrow is not installed; .*pip install .*\[convert\]'"):
        detect(path)


def test_the_command_says_what_it_wrote_in_lines(tmp_path: Path) -> None:
    file = store(tmp_path / "in.jsonl", HOTPOT)
    done = CliRunner().invoke(app, ["data", "convert", str(file), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0
    head, *counts = done.output.splitlines()
    assert head == f"{file}: hotpotqa → {tmp_path / 'out'}"
    written = len(read_corpus(tmp_path / "out" / "corpus.jsonl"))
    assert counts == [
        "  1  questions", "  1  with gold passages", "  0  with a chain of facts", f"  {written}  passages", "  1  paragraphs without text, left out",
    ]  # fmt: skip
