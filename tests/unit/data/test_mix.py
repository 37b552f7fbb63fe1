"""Mixtures: shares, size, seed, what repeats and what is held out; the card in the manifest; what the commands print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rolecast.cli.main import app
from rolecast.data.mix import Drawn, Source, mix
from rolecast.data.records import read_corpus, read_questions
from rolecast.errors import InputError
from rolecast.store.artifact import provenance, verify

LONG = "In which year was the director of the film that Ada Quill wrote in Hask born"


def folder(at: Path, rows: list[dict[str, Any]], passages: dict[str, str] | None = None) -> Path:
    at.mkdir(exist_ok=True)
    (at / "questions.jsonl").write_text("".join(json.dumps({"answers": ["me"], **row}) + "\n" for row in rows))
    if passages:
        (at / "corpus.jsonl").write_text(
            "".join(json.dumps({"id": id, "title": "T", "text": text}) + "\n" for id, text in passages.items())
        )
    return at


def numbered(at: Path, name: str, n: int) -> Path:
    return folder(
        at / name, [{"id": f"{name}{k}", "question": f"{name} {k}?", "dataset": name, "answers": [f"{name}{k}"]} for k in range(n)]
    )


def taken(out: Path) -> dict[str, int]:
    names = [question.dataset for question in read_questions(out / "questions.jsonl")]
    return {name: names.count(name) for name in sorted(set(names))}


@pytest.mark.parametrize(
    ("weights", "size", "expected"),
    [
        ((1, 1), None, {"a": 30, "b": 10}),
        ((2, 1), None, {"a": 20, "b": 10}),
        ((2, 1), 10, {"a": 7, "b": 3}),
        ((1, 1), 10, {"a": 5, "b": 5}),
        ((0.5, 0.25), 3, {"a": 2, "b": 1}),
    ],
)
def test_shares(tmp_path: Path, weights: tuple[float, float], size: int | None, expected: dict[str, int]) -> None:
    sources = [Source(numbered(tmp_path, name, n), weight) for name, n, weight in zip("ab", (30, 10), weights, strict=True)]
    mix(sources, tmp_path / "out", size, 0)
    assert taken(tmp_path / "out") == expected


def test_a_mixture_is_a_function_of_its_seed(tmp_path: Path) -> None:
    sources = [Source(numbered(tmp_path, name, 30)) for name in "ab"]
    for out, seed in (("one", 0), ("two", 0), ("three", 1)):
        mix(sources, tmp_path / out, 10, seed)
    one, two, three = ((tmp_path / out / "questions.jsonl").read_text() for out in ("one", "two", "three"))
    assert one == two != three


def test_what_repeats_or_is_held_out_is_left_out_and_counted(tmp_path: Path) -> None:
    first = folder(
        tmp_path / "first", [{"id": "1", "question": "Who?"}, {"id": "2", "question": f"{LONG}?"}, {"id": "3", "question": "Held?"}]
    )
    second = folder(
        tmp_path / "second",
        [
            {"id": "4", "question": "who"},
            {"id": "5", "question": f"{LONG} there?"},
            {"id": "6", "question": "New?"},
            {"id": "7", "question": "x?"},
        ],
    )
    held = folder(tmp_path / "held", [{"id": "8", "question": "HELD"}, {"id": "7", "question": "another"}])
    mixed = mix([Source(first), Source(second)], tmp_path / "out", None, 0, [held])
    assert mixed.sources == [Drawn(str(first), 1.0, 3, 0, 0, 1, 2), Drawn(str(second), 1.0, 4, 1, 1, 1, 1)]
    assert {question.id for question in read_questions(tmp_path / "out" / "questions.jsonl")} == {"1", "2", "6"}


def test_passages_are_merged_and_gold_follows(tmp_path: Path) -> None:
    one = folder(tmp_path / "one", [{"id": "1", "question": "a?", "passages": ["p"]}], {"p": "same", "q": "other"})
    two = folder(tmp_path / "two", [{"id": "2", "question": "b?", "passages": ["r"]}], {"r": "same"})
    mixed = mix([Source(one), Source(two)], tmp_path / "out", None, 0)
    assert (mixed.passages, mixed.shared) == (2, 1)
    assert [passage.id for passage in read_corpus(tmp_path / "out" / "corpus.jsonl")] == ["p", "q"]
    assert {question.gold.passages for question in read_questions(tmp_path / "out" / "questions.jsonl")} == {("p",)}


def test_faults(tmp_path: Path) -> None:
    a, b = numbered(tmp_path, "a", 4), numbered(tmp_path, "b", 2)
    copy = folder(tmp_path / "copy", [{"id": "a0", "question": "other?"}])
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"a mixture of 6 wants 3 questions of .*b, which has 2; these weights allow 4"):
        mix([Source(a), Source(b)], out, 6, 0)
    with pytest.raises(InputError, match="question 'a0' is in"):
        mix([Source(a), Source(copy)], out, None, 0)
    with pytest.raises(InputError, match="no question is left of it"):
        mix([Source(a), Source(b)], out, None, 0, [b])
    (a / "dev.jsonl").write_text((a / "questions.jsonl").read_text())
    with pytest.raises(InputError, match=r"holds dev.jsonl, questions.jsonl; name one of these files"):
        mix([Source(a)], out, None, 0)
    for text, said in (("x=two", "the weight 'two' is no number"), ("x=0", "a weight is above 0")):
        with pytest.raises(InputError, match=said):
            Source.read(text)
    assert Source.read("a/b=2") == Source(Path("a/b"), 2.0)


def test_a_source_may_be_a_file_and_may_have_an_equals_sign_in_its_name(tmp_path: Path) -> None:
    a = numbered(tmp_path, "a=2", 3)
    assert Source.read(str(a)) == Source(a)
    assert Source.read("nowhere") == Source(Path("nowhere"))
    mix([Source(a / "questions.jsonl")], tmp_path / "out", None, 0)
    assert taken(tmp_path / "out") == {"a=2": 3}


def test_a_weight_is_finite() -> None:
    for weight in ("inf", "nan", "-1"):
        with pytest.raises(InputError, match="a weight is above 0; leave the folder out instead"):
            Source.read(f"x={weight}")


def test_what_is_mixed_and_what_is_held_out_must_be_there(tmp_path: Path) -> None:
    a, nothing = numbered(tmp_path, "a", 4), tmp_path / "nothing"
    nothing.mkdir()
    (nothing / "corpus.jsonl").write_text("")
    with pytest.raises(InputError, match="nothing: no file of questions; name a folder"):
        mix([Source(nothing)], tmp_path / "out", None, 0)
    with pytest.raises(InputError, match="nothing: no file of questions to hold out; check the path"):
        mix([Source(a)], tmp_path / "out", None, 0, [nothing])


def test_every_file_of_a_folder_is_held_out_and_of_a_file_that_one(tmp_path: Path) -> None:
    a, held = numbered(tmp_path, "a", 4), numbered(tmp_path, "held", 1)
    for file, at in (("dev", 0), ("test", 1)):
        (held / f"{file}.jsonl").write_text(json.dumps({"id": file, "question": f"a {at}?", "answers": ["x"]}) + "\n")
    for against, left in ((held, {"a2", "a3"}), (held / "dev.jsonl", {"a1", "a2", "a3"})):
        out = tmp_path / f"without-{against.name}"
        mix([Source(a)], out, None, 0, [against])
        assert {question.id for question in read_questions(out / "questions.jsonl")} == left


def run(*words: str | Path) -> str:
    done = CliRunner().invoke(app, ["data", *map(str, words)])
    assert done.exit_code == 0, done.exception
    return done.output


def test_the_commands_print_tables_and_the_manifest_has_the_card(tmp_path: Path) -> None:
    a, b, out = numbered(tmp_path, "a", 4), numbered(tmp_path, "b", 2), tmp_path / "out"
    lines = [line for line in run("mix", f"{a}=2", b, "--size", "3", "--out", out).splitlines() if set(line) != {"─"}]
    assert [line.split() for line in lines] == [
        ["source", "weight", "had", "held", "out", "exact", "repeats", "near", "repeats", "taken"],
        [str(a), "2", "4", "0", "0", "0", "2"],
        [str(b), "1", "2", "0", "0", "0", "1"],
        f"{out}: 3 questions".split(),
    ]
    verify(out, "data")
    said = provenance(out)
    assert said["card"]["questions"]["questions.jsonl"]["by"]["dataset"] == {"a": 2, "b": 1}
    assert (said["made"], said["seed"], [source["taken"] for source in said["sources"]]) == ("mix", 0, [2, 1])
    shown = run("card", out)
    assert "questions.jsonl: 3 questions of 2.0 words" in shown
    assert f"{a}: 2 of 4, weight 2" in shown
    assert "{" not in shown
    assert json.loads(run("card", out, "--json"))["card"] == said["card"]
    assert "{" not in run("show", out, "-n", "2")
    assert run("show", out, "-n", "2").count("answers") == 2


@pytest.mark.parametrize("words", [("mix", "a"), ("merge", "a"), ("convert", "a/questions.jsonl"), ("world",)])
def test_a_folder_that_is_there_is_never_written_into(tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "a", [{"id": "1", "question": "Who?"}], {"p": "text"})
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    done = CliRunner().invoke(app, ["data", *words, "--out", "out"])
    assert isinstance(done.exception, InputError)
    assert "out exists; name a new folder" in str(done.exception)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_mixture_that_fails_leaves_nothing(tmp_path: Path) -> None:
    a = numbered(tmp_path, "a", 4)
    done = CliRunner().invoke(app, ["data", "mix", str(a), "--size", "9", "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
