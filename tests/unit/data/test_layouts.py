"""Every public layout, from a small file in its own form (layouts/): what it becomes, in every container, and what one broken field says."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rolecast.data.convert import FORMATS, Converted, convert, detect
from rolecast.data.files import kind_of
from rolecast.data.formats.base import records
from rolecast.data.formats.containers import read_rows
from rolecast.data.records import read_corpus, read_questions
from rolecast.errors import InputError
from rolecast.types import Gold, Passage, Question, RubricItem, question_id

LAYOUTS = Path(__file__).with_name("layouts")
MS_MARCO = ("msmarco_collection.tsv",)  # tables that only --format tells


def brought(folder: Path) -> dict[str, Passage]:
    file = folder / "corpus.jsonl"
    return {passage.id: passage for passage in read_corpus(file)} if file.exists() else {}


def loaded(source: Path, out: Path, format: str | None = None) -> tuple[Converted, list[Question], dict[str, Passage]]:
    result = convert(source, out, format, "set", "dev")
    file = out / "questions.jsonl"
    return result, read_questions(file) if file.exists() else [], brought(out)


Want = tuple[str, tuple[int, int, int], str, tuple[str, ...], tuple[str, ...], tuple[str, int, str, str]]

# layout; questions, passages and questions with gold passages; of the first question: text, answers, texts of its gold passages, and type,
# hops, level and original id
WANTED: dict[str, Want] = {
    "nq_open.jsonl": ("qa", (2, 0, 0), "who dug the omber canal", ("Ilse Marn", "I. Marn"), (), ("", 0, "", "")),
    "nq_simplified.jsonl": (
        "nq_pages", (1, 2, 1), "who dug the omber canal", ("Ilse Marn",), ("The Omber canal was dug by Ilse Marn .",), ("", 1, "", "-17"),
    ),
    "nq_original.jsonl": ("nq_pages", (1, 1, 1), "is the omber canal short", ("yes",), ("It is short .",), ("", 1, "", "19")),
    "nq_hub.jsonl": (
        "nq_pages", (1, 2, 1), "who dug the omber canal", ("Ilse Marn",), ("The Omber canal was dug by Ilse Marn .",), ("", 1, "", "20"),
    ),
    "triviaqa.json": ("triviaqa", (1, 0, 0), 'Who dug the "Omber" canal?', ("Ilse Marn", "I. Marn"), (), ("", 0, "", "tc_3")),
    "triviaqa_hub.jsonl": ("triviaqa", (1, 1, 0), "Who dug the Omber canal?", ("Ilse Marn", "I. Marn"), (), ("", 0, "", "tc_3")),
    "popqa.tsv": (
        "popqa", (2, 0, 0), "Who was the director of Tide Song?", ("Ada Quill", "A. Quill", "Bo Fenn"), (), ("director", 0, "", "4222143"),
    ),
    "ambigqa.json": ("ambigqa", (2, 0, 0), "When did Tide Song come out?", ("1931", "1928", "in 1928"), (), ("ambiguous", 0, "", "-45")),
    "ambigqa_hub.jsonl": ("ambigqa", (1, 0, 0), "When did Tide Song come out?", ("1931", "1928", "in 1928"), (), ("ambiguous", 0, "", "-45")),
    "hotpotqa.json": (
        "hotpotqa", (1, 2, 1), "When was the director of Tide Song born?", ("3 May 1899",),
        ("Tide Song is a 1931 drama. It was directed by Ada Quill.", 'Ada Quill (3 May 1899) was a "director".'), ("bridge", 2, "hard", "5a8b"),
    ),
    "2wikimultihopqa.json": (
        "2wikimultihopqa", (1, 2, 1), "When was the director of Tide Song born?", ("3 May 1899",),
        ("It was directed by Ada Quill.", "Ada Quill was born on 3 May 1899."), ("compositional", 2, "", "8813"),
    ),
    "musique_ans.jsonl": (
        "musique", (1, 2, 1), "Which river passes the seat of Orlo Mills?", ("Senn", "the Senn"),
        ("Orlo Mills has its seat in Hask.", "Hask lies on the Senn."), ("2hop", 2, "", "2hop__11_22"),
    ),
    "bamboogle.csv": (
        "bamboogle", (1, 0, 0), "When was the director of Tide Song, the drama, born?", ("3 May 1899",), (), ("compositional", 2, "", ""),
    ),
    "frames.tsv": (
        "frames", (1, 0, 0), 'How many years after "Tide Song" was the canal dug?', ("12",), (),
        ("Numerical reasoning | Temporal reasoning", 2, "", "0"),
    ),
    "squad.json": ("squad", (2, 1, 1), "Who dug the canal?", ("Ilse Marn",), ("The Omber canal was dug by Ilse Marn.",), ("", 1, "", "56be")),
    "kilt.jsonl": ("kilt", (1, 0, 0), "Who dug the Omber canal?", ("Ilse Marn", "I. Marn"), (), ("", 0, "", "k1")),
    "dpr.json": ("dpr", (1, 2, 0), "who dug the omber canal", ("Ilse Marn",), (), ("", 0, "", "")),
    "dpr_qa.csv": ("dpr_qa", (2, 0, 0), "who dug the omber canal", ("Ilse Marn", "I. Marn"), (), ("", 0, "", "")),
    "flashrag.jsonl": ("flashrag", (1, 0, 0), "Who dug the Omber canal?", ("Ilse Marn", "I. Marn"), (), ("bridge", 0, "easy", "dev_7")),
    "search_r1.jsonl": ("search_r1", (1, 0, 0), "who leads the Brass Guild?", ("Teo Vann", "T. Vann"), (), ("nq", 0, "", "train_0")),
    "verl.jsonl": ("verl", (1, 0, 0), "who leads the Brass Guild?", ("Teo Vann", "T. Vann"), (), ("us/ours", 0, "", "4")),
    "deepresearch_bench_criteria.jsonl": ("deepresearch_bench", (1, 0, 0), "Report on the Omber canal.", (), (), ("", 0, "", "51")),
    "deepresearch_bench_query.jsonl": ("deepresearch_bench_query", (1, 0, 0), "Report on the Omber canal.", (), (), ("Travel", 0, "", "51")),
    "deepresearch_bench_article.jsonl": (
        "deepresearch_bench_article", (1, 0, 0), "Report on the Omber canal.", ("# The canal\n\nIlse Marn dug it.",), (), ("", 0, "", "51"),
    ),
    "healthbench.jsonl": (
        "healthbench", (1, 0, 0), "user: My head aches.\n\nassistant: Since when?\n\nuser: Since noon.", (), (), ("hedging", 0, "", "4a-b"),
    ),
    "researchqa.json": ("researchqa", (1, 0, 0), "How are canals dug?", (), (), ("Engineering", 0, "", "r1")),
}  # fmt: skip


@pytest.mark.parametrize("name", WANTED)
def test_questions_of_every_layout(tmp_path: Path, name: str) -> None:
    format, (questions, passages, with_gold), text, answers, gold, about = WANTED[name]
    assert detect(LAYOUTS / name) == format
    result, asked, corpus = loaded(LAYOUTS / name, tmp_path / "out")
    assert (result.format, len(asked), len(corpus), result.with_passages) == (format, questions, passages, with_gold)
    first = asked[0]
    assert (first.text, first.gold.answers) == (text, answers)
    assert tuple(corpus[id].text for id in first.gold.passages) == gold
    assert (first.type, first.hops, first.level, first.original_id) == about
    assert first.dataset == {"search_r1": "nq", "verl": "us/ours", "dpr": "nq_train"}.get(format, "set")


@pytest.mark.parametrize(
    ("hub", "original"),
    [("hotpotqa_hub.jsonl", "hotpotqa.json"), ("2wikimultihopqa_hub.jsonl", "2wikimultihopqa.json"), ("squad_hub.jsonl", "squad.json")],
)
def test_hub_rows_mean_what_the_original_files_mean(tmp_path: Path, hub: str, original: str) -> None:
    rows = [row.value for row in read_rows(LAYOUTS / hub)]
    table = tmp_path / "hub.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    expected = loaded(LAYOUTS / original, tmp_path / "a")
    assert loaded(LAYOUTS / hub, tmp_path / "b") == expected
    assert loaded(table, tmp_path / "c") == expected


DIMENSIONS = [("Says who dug it", 0.375, "insight"), ("Says why", 0.375, "insight"), ("Has headings", 0.25, "readability")]
RUBRICS = {
    "deepresearch_bench_criteria.jsonl": DIMENSIONS,
    "deepresearch_bench_query.jsonl": DIMENSIONS,
    "deepresearch_bench_article.jsonl": DIMENSIONS,
    "healthbench.jsonl": [("Advises to rest", 5.0), ("Names a dose without asking", -3.0)],
    "researchqa.json": [("Does it name locks?", 1.0), ("Does it cite a survey?", 1.0)],
}


@pytest.mark.parametrize("name", RUBRICS)
def test_rubrics(tmp_path: Path, name: str) -> None:
    _, (question,), _ = loaded(LAYOUTS / name, tmp_path / "out")
    assert question.gold.rubric == tuple(RubricItem(*item) for item in RUBRICS[name])


def test_prompts_without_their_criteria_are_refused(tmp_path: Path) -> None:
    alone = tmp_path / "query.jsonl"
    alone.write_text((LAYOUTS / "deepresearch_bench_query.jsonl").read_text())
    assert "has prompts and no rubric; put criteria.jsonl of the benchmark beside it" in refused(alone)
    other = json.loads((LAYOUTS / "deepresearch_bench_criteria.jsonl").read_text())
    (tmp_path / "criteria.jsonl").write_text(json.dumps({**other, "id": 9}))
    assert "nothing to write: 1 prompts without criteria" in refused(alone)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"criterions": None}, "key 'criterions' is missing; fetch the file again"),
        ({"dimension_weight": {"readability": 1.0}}, "'dimension_weight' lacks 'insight'"),
    ],
)
def test_criteria_beside_the_prompts_that_are_broken_are_named_with_their_file(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    prompts = tmp_path / "query.jsonl"
    prompts.write_text((LAYOUTS / "deepresearch_bench_query.jsonl").read_text())
    criteria = json.loads((LAYOUTS / "deepresearch_bench_criteria.jsonl").read_text())
    (tmp_path / "criteria.jsonl").write_text(json.dumps({**criteria, **change}) + "\n")
    told = refused(prompts)
    assert f"{tmp_path / 'criteria.jsonl'}, line 1: " in told
    assert reason in told


def test_unanswerable_rows_are_kept_and_their_twins_counted(tmp_path: Path) -> None:
    result, (answerable, other), corpus = loaded(LAYOUTS / "musique_full.jsonl", tmp_path / "out")
    assert (result.unanswerable, result.twins) == (1, 1)
    assert (other.gold.answers, other.type, other.hops) == (("unknown",), "unanswerable", 2)
    assert [corpus[id].text for id in other.gold.passages] == ["Orlo Mills has its seat in Hask."]
    assert answerable.original_id == other.original_id == "2hop__11_22"
    assert (answerable.id, other.id) == (question_id("set", "dev", "2hop__11_22"), question_id("set", "dev", "2hop__11_22/unanswerable"))
    result, (_, left_open), _ = loaded(LAYOUTS / "squad.json", tmp_path / "squad")
    assert (result.unanswerable, result.twins) == (1, 0)
    assert (left_open.gold, left_open.type) == (Gold(("unknown",)), "unanswerable")


def test_rows_without_a_short_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    result, _, corpus = loaded(LAYOUTS / "nq_simplified.jsonl", tmp_path / "out")
    assert result.left_out == {"rows without a short answer": 1}
    assert {passage.title for passage in corpus.values()} == {"Omber Canal"}
    only = tmp_path / "alone" / "only.jsonl"
    only.parent.mkdir()
    only.write_text((LAYOUTS / "nq_simplified.jsonl").read_text().splitlines()[1])
    assert "nothing to write: 1 rows without a short answer" in refused(only)


def test_popqa_questions_that_ask_the_same_are_one(tmp_path: Path) -> None:
    result, questions, _ = loaded(LAYOUTS / "popqa.tsv", tmp_path / "out")
    assert result.unified == 1
    assert [question.original_id for question in questions] == ["4222143", "4222144"]


CORPORA: dict[str, tuple[str, list[Passage], int, int]] = {
    "wiki18.jsonl": (
        "corpus", [Passage("0", '"Tide Song" (film)', "It&nbsp;is a drama."), Passage("1", "Café", "NFC"), Passage("2", "Cafe\u0301", "NFD")], 1, 1,
    ),
    "psgs_w100.tsv": ("corpus", [Passage("1", 'Tide "Song"', '"Tide Song" is a drama.'), Passage("2", "Hask", "Hask lies on the Senn.")], 0, 0),
    "beir.jsonl": ("beir", [Passage("d1", "Hask", "Hask lies on the Senn."), Passage("d2", "", "No title.")], 0, 0),
    "msmarco_collection.tsv": ("msmarco", [Passage("0", "", 'Hask lies on the "Senn.'), Passage("1", "", "The canal is short.")], 1, 0),
    "msmarco_docs.tsv": ("msmarco", [Passage("D1", "Hask", "Hask lies on the Senn.")], 0, 0),
    "msmarco_v2.jsonl": ("msmarco", [Passage("msmarco_passage_00_0", "", "Hask lies on the Senn.")], 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CORPORA)
def test_corpora(tmp_path: Path, name: str) -> None:
    format, passages, empty, duplicates = CORPORA[name]
    if name not in MS_MARCO:
        assert detect(LAYOUTS / name) == format
    result, questions, corpus = loaded(LAYOUTS / name, tmp_path / "out", format if name in MS_MARCO else None)
    assert (list(corpus.values()), questions) == (passages, [])
    assert (result.passages, result.empty_paragraphs, result.duplicates) == (len(passages), empty, duplicates)


def test_a_folder_of_texts(tmp_path: Path) -> None:
    assert detect(LAYOUTS / "texts") == "texts"
    result, _, corpus = loaded(LAYOUTS / "texts", tmp_path / "out")
    assert [(passage.title, passage.text) for passage in corpus.values()] == [
        ("Hask", "Hask lies on the Senn."),
        ("Hask: Schools", "It has two.\n\n```\n# no heading\n```"),
        ("canal", "The Omber canal is short.\n\nIlse Marn dug it."),
    ]
    assert result.empty_paragraphs == 1, "a file without text"
    (tmp_path / "a" / "none").mkdir(parents=True)
    assert "a folder without a text" in refused(tmp_path / "a" / "none")
    long = tmp_path / "long.txt"
    long.write_text(" ".join(f"w{n}" for n in range(250)))
    _, _, corpus = loaded(long, tmp_path / "cut")
    assert [len(passage.text.split()) for passage in corpus.values()] == [100, 100, 50]


@pytest.mark.parametrize("name", [*WANTED, *(name for name in CORPORA if name not in MS_MARCO)])
def test_every_layout_in_every_container(tmp_path: Path, name: str) -> None:
    """Gzip and zstd of the file itself; JSON lines, an array, Parquet and both tables of its rows, as far as their cells can hold them."""
    source = tmp_path / name
    source.write_bytes((LAYOUTS / name).read_bytes())
    for other in LAYOUTS.glob("deepresearch_bench_criteria*"):
        (tmp_path / other.name).write_bytes(other.read_bytes())
    expected = loaded(source, tmp_path / "plain")
    packed = [(tmp_path / f"{name}.gz", gzip.compress(source.read_bytes()))]
    packed.append((tmp_path / f"{name}.zst", pyarrow.compress(source.read_bytes(), codec="zstd", asbytes=True)))
    headless = name in ("dpr_qa.csv", "msmarco_docs.tsv")
    rows = [] if headless else [row.value for row in read_rows(source)]
    if rows:
        packed.append((tmp_path / f"{source.stem}.re.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode()))
        packed.append((tmp_path / f"{source.stem}.re.json", json.dumps(rows).encode()))
        cells = [{key: value if isinstance(value, str) else json.dumps(value) for key, value in row.items()} for row in rows]
        for suffix, separator in ((".csv", ","), (".tsv", "\t")):
            text = io.StringIO()
            table = csv.DictWriter(text, list(cells[0]), delimiter=separator)
            table.writeheader()
            table.writerows(cells)
            flat = all(isinstance(value, str) for row in rows for value in row.values())
            if flat:
                packed.append((tmp_path / f"{source.stem}.re{suffix}", text.getvalue().encode()))
        try:
            buffer = io.BytesIO()
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
            packed += [(tmp_path / "re.parquet", buffer.getvalue()), (tmp_path / "re.parquet.gz", gzip.compress(buffer.getvalue()))]
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
            assert name in ("hotpotqa.json", "2wikimultihopqa.json"), "arrow has no type for a list of a string and a list"
    for number, (file, content) in enumerate(packed):
        if file.name.startswith("re.") and name.startswith("deepresearch_bench_"):
            continue  # its criteria are found by its own name
        file.write_bytes(content)
        assert loaded(file, tmp_path / str(number)) == expected, file.name


def test_tables_hold_lists_as_json(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    table.write_text('question,answers\nWho?,"[""me"", ""I""]"\nWhat?,[sic]\n')
    _, (first, second), _ = loaded(table, tmp_path / "out")
    assert (first.gold.answers, second.gold.answers) == (("me", "I"), ("[sic]",))


def refused(source: Path, format: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        convert(source, source.parent / "out", format, "set", "dev")
    assert not list(source.parent.glob("out/*")), "something was written"
    assert "\n" not in str(caught.value)
    return str(caught.value)


def drop(*path: str | int) -> Callable[[Any], Any]:
    """Takes away the key or element at `path`."""

    def change(row: Any) -> Any:
        at = row
        for part in path[:-1]:
            at = at[part]
        del at[path[-1]]
        return row

    return change


def put(value: Any, *path: str | int) -> Callable[[Any], Any]:
    def change(row: Any) -> Any:
        at = row
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = value
        return row

    return change


BROKEN: list[tuple[str, Callable[[Any], Any], str]] = [
    ("nq_open.jsonl", put([], "answer"), "question without gold; give it an answer or leave it out"),
    ("nq_simplified.jsonl", drop("annotations", 0, "long_answer"), "key 'annotations.0.long_answer' is missing"),
    ("nq_simplified.jsonl", drop("document_text"), "no page: 'document_text'"),
    ("nq_original.jsonl", put("x", "document_tokens"), "no page: 'document_text'"),
    ("nq_hub.jsonl", put("x", "annotations"), "'annotations': input should be a valid list"),
    ("triviaqa.json", drop("Answer", "Value"), "key 'Answer.value' is missing"),
    ("triviaqa_hub.jsonl", put(" ", "question"), "'question' is empty"),
    ("popqa.tsv", put("[]", "possible_answers"), "question without gold"),
    ("ambigqa.json", put([], "annotations"), "'annotations' has no answer"),
    ("ambigqa_hub.jsonl", put([{"type": 1}], "annotations"), "'annotations' has no answer"),
    ("hotpotqa.json", drop("answer"), "key 'answer' is missing"),
    ("hotpotqa_hub.jsonl", put(["x"], "supporting_facts", "sent_id"), "'supporting_facts'"),
    ("2wikimultihopqa.json", put([["a", "b"]], "evidences"), "'evidences.0"),
    ("2wikimultihopqa_hub.jsonl", put("[[1", "context"), "'context': input should be a valid list"),
    ("musique_ans.jsonl", put(9, "question_decomposition", 0, "paragraph_support_idx"), "hop 1 cites paragraph 9, which the row lacks"),
    ("bamboogle.csv", put("", "Answer"), "question without gold"),
    ("frames.tsv", put("", "Prompt"), "'Prompt' is empty"),
    ("squad.json", drop("paragraphs", 0, "qas", 0, "answers"), "key 'answers' is missing"),
    ("squad_hub.jsonl", put(None, "context"), "key 'context' is missing"),
    ("kilt.jsonl", put([{"provenance": []}], "output"), "'output' has no answer"),
    ("dpr.json", put([{"text": 1}], "positive_ctxs"), "'positive_ctxs.0.text': input should be a valid string"),
    ("flashrag.jsonl", put([1], "golden_answers"), "'golden_answers.0': input should be a valid string"),
    ("search_r1.jsonl", put([], "reward_model", "ground_truth", "target"), "question without gold"),
    ("verl.jsonl", drop("extra_info", "answer"), "key 'extra_info.answer' is missing"),
    ("deepresearch_bench_criteria.jsonl", drop("dimension_weight", "insight"), "'dimension_weight' lacks 'insight'"),
    (
        "deepresearch_bench_criteria.jsonl",
        put(-0.5, "criterions", "insight", 0, "weight"),
        "'criterions.insight.0.weight': input should be greater than or equal to 0",
    ),
    ("deepresearch_bench_query.jsonl", put("", "prompt"), "'prompt' is empty"),
    ("deepresearch_bench_article.jsonl", put("", "article"), "'article' is empty"),
    ("healthbench.jsonl", put("five", "rubrics", 0, "points"), "'rubrics.0.points'"),
    ("researchqa.json", put([], "rubric"), "'rubric': list should have at least 1 item"),
    ("wiki18.jsonl", put("no title line", "contents"), "'contents' has no title line"),
    ("psgs_w100.tsv", put("", "id"), "'id' is empty"),
    ("beir.jsonl", put(None, "text"), "key 'text' is missing"),
    ("msmarco_v2.jsonl", put(1.5, "pid"), "'pid': input should be a valid string"),
]


@pytest.mark.parametrize(("name", "change", "reason"), BROKEN, ids=[f"{name}-{reason[:20]}" for name, _, reason in BROKEN])
def test_one_broken_field_gives_its_message(tmp_path: Path, name: str, change: Callable[[Any], Any], reason: str) -> None:
    """In the second row, behind a good one."""
    format = detect(LAYOUTS / name)
    for other in LAYOUTS.glob("deepresearch_bench_criteria*"):
        (tmp_path / other.name).write_bytes(other.read_bytes())
    rows = [row.value for row in read_rows(LAYOUTS / name)]
    broken = change(json.loads(json.dumps(rows[0])))
    for key in ("id", "_id"):
        if broken.get(key):
            rows[0] = {**rows[0], key: "51" if "bench" in name else "good"}
    if format in ("squad", "triviaqa", "nq_pages", "healthbench", "msmarco", "popqa", "corpus"):
        rows = rows[:1] if format not in ("squad", "triviaqa", "nq_pages", "healthbench") else []
    source = tmp_path / (name if kind_of(Path(name)) != ".json" else f"{name}l")
    if kind_of(source) in (".csv", ".tsv"):
        with source.open("w", newline="") as file:
            table = csv.DictWriter(file, list(broken), delimiter="\t" if source.suffix == ".tsv" else ",")
            table.writeheader()
            table.writerows([*rows[:1], broken])
    else:
        source.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:1], broken]))
    text = refused(source, format)
    where = f"{'row' if source.suffix in ('.csv', '.tsv') else 'line'} {len(rows[:1]) + 1}: "
    assert f"{source}, {where}" in text
    assert reason in text


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {"question": "who?", "context": ["a page"], "answer": "me"},
            "no layout that we know is told by the keys question, context, answer",
        ),
        ({"question": "who?", "paragraphs": [{"title": "a"}], "answer": "me"}, "no layout that we know is told by the keys"),
        ({"question": "who?", "possible_answers": ["a"], "prop": "x", "paragraphs": []}, None),
        ({"instruction": "x", "input": "y", "output": "z"}, "no layout that we know"),
        (
            {"question": "who?", "context": [["a", ["b"]]], "supporting_facts": [["a", 0]], "answer": "b", "golden_answers": ["b"]},
            "may be hotpotqa or flashrag; say which with --format",
        ),
        ({"_id": "1", "text": "a query or a passage"}, "no layout that we know"),
    ],
)
def test_detection_never_guesses(tmp_path: Path, row: dict[str, Any], reason: str | None) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(row))
    if reason is None:
        assert detect(source) == "popqa"
    else:
        assert reason in refused(source)


def test_a_table_without_names_is_asked_back(tmp_path: Path) -> None:
    table = tmp_path / "collection.tsv"
    table.write_text((LAYOUTS / "msmarco_collection.tsv").read_text().replace('"', ""))
    text = refused(table)
    assert "no layout that we know is told by the keys 0, Hask" in text
    assert "name it with --format" in text


def test_every_layout_has_a_file() -> None:
    told = {want[0] for want in WANTED.values()} | {want[0] for want in CORPORA.values()}
    assert told == set(FORMATS) - {"rolecast", "multihop"}  # those two are in fixtures/layouts.json


def test_an_array_is_read_row_by_row(tmp_path: Path) -> None:
    """Rows of a file far larger than what is read at a time, each across the border of two reads; the last one is broken."""
    file = tmp_path / "long.json"
    rows = [{"question": f"q{n} " + "é" * 40_000, "answer": ["a"]} for n in range(30)]
    file.write_text(json.dumps(rows, ensure_ascii=False)[:-1] + ', {"question": tru}]', encoding="utf-8")
    found = read_rows(file)
    assert [next(found).value for _ in rows] == rows
    with pytest.raises(InputError, match=r"row 31: not JSON"):
        next(found)


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        (b"a,b\n1,2,3\n", "t.csv", "row 1: has 3 cells and not 2"),
        (b"a,a\n1,2\n", "t.csv", "a column's name is there twice"),
        (b"question,answer\n\xff,x\n", "t.csv", "cannot be read"),
        (b"question,answer\n", "t.csv", "no rows"),
        (b"just words\n", "t", "neither JSON nor Parquet; a table's name ends in .csv or .tsv"),
        (b"\x28\xb5\x2f\xfd broken", "t.jsonl", "cannot be read"),
        (b"\x1f\x8b broken", "t.jsonl", "cannot be read"),
    ],
)
def test_broken_containers(tmp_path: Path, content: bytes, name: str, reason: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    assert reason in refused(file)


def test_columns_of_unequal_length_are_no_records() -> None:
    """What the hub stores as an object of columns: none is cut to the shortest."""
    assert records({"a": [1, 2], "b": [3, 4]}) == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
    with pytest.raises(ValueError, match="shorter"):
        records({"a": [1, 2], "b": [3]})
