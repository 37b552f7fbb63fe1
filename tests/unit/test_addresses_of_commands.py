"""An address of a store never becomes a folder here of nearly its name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import typer
from typer.testing import CliRunner

from rolecast.cli.main import app
from rolecast.config import make_config
from rolecast.errors import InputError
from rolecast.store.artifact import verify
from rolecast.store.uri import local_artifact
from tests.weed import S3Server

AWAY = "s3://bucket/a/b"
WORDS = {
    "demo --run": ("train", "rolecast run create"),
    "pipeline run --local --config c.yaml --run": ("train", "rolecast run create"),
    "compare --methods decor --budget 10 --out": ("folder here", "rolecast pipeline compare"),
    "stability --methods decor --steps 3 --out": ("folder here", "rolecast pipeline compare"),
    "data convert q.jsonl --out": ("is an address", "name a path"),
    "data world --out": ("is an address", "name a path"),
    "index build --out ix --corpus": ("is an address", "name a path"),
    "demo --model": ("is an address", "name a path"),
    "sft run --config": ("is an address", "name a path"),
}


@pytest.mark.parametrize("command", WORDS)
def test_an_address_is_refused_where_a_path_is_wanted(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rolecast.launching.local_pipeline.run_local", lambda *given: pytest.fail("it trains"))
    monkeypatch.setattr("rolecast.cli.compare.run_all", lambda *given: pytest.fail("it trains"))
    monkeypatch.setattr("rolecast.cli.studies.run_all", lambda *given: pytest.fail("it trains"))
    result = CliRunner().invoke(app, [*command.split(), AWAY])
    assert isinstance(result.exception, InputError)
    for word in (AWAY, *WORDS[command]):
        assert word in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def commands(group: typer.Typer) -> Iterator[Any]:
    yield from (info.callback for info in group.registered_commands)
    for below in group.registered_groups:
        assert below.typer_instance is not None
        yield from commands(below.typer_instance)


def test_no_command_reads_a_path_without_telling_addresses() -> None:
    bare, told = [], 0
    for command in commands(app):
        for name, hint in getattr(command, "__annotations__", {}).items():
            hint = eval(hint, command.__globals__) if isinstance(hint, str) else hint
            if get_origin(hint) is Annotated and Path in (get_args(hint)[0], *get_args(get_args(hint)[0])):
                told += 1
                if hint.__metadata__[0].parser is None:
                    bare.append(f"{command.__name__}: {name}")
    assert told > 15
    assert bare == []


def test_data_files_are_no_addresses() -> None:
    data = {"world": None, "corpus": "s3://b/corpus.jsonl", "train": "a", "dev": "b", "test": "c"}
    with pytest.raises(InputError, match=r"s3://b/corpus\.jsonl is an address"):
        make_config({"data": data}, "here")


def build(corpus: Path, out: str) -> Any:
    return CliRunner().invoke(app, ["index", "build", "--corpus", str(corpus), "--kind", "bm25", "--out", out])


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"id": "p1", "title": "A", "text": "A is b."}\n{"id": "p2", "title": "C", "text": "C is d."}\n')
    return file


def test_an_index_is_published_in_a_bucket(corpus: Path, tmp_path: Path, weed: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in weed.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    uri = f"s3://{weed.make_bucket(f'ix-{uuid.uuid4().hex[:12]}')}/indexes/small"
    assert build(corpus, uri).exit_code == 0
    assert verify(local_artifact(uri, tmp_path / "copy"), "index")["provenance"]["passages"] == 2
    again = build(corpus, uri)
    assert isinstance(again.exception, InputError)
    assert f"{uri} exists" in str(again.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "corpus.jsonl"]


@pytest.mark.parametrize(
    ("out", "said"), [("corpus.jsonl", "exists; name a new folder"), ("gs://b/x", "is a folder or s3://bucket/prefix/key")]
)
def test_an_index_is_built_where_nothing_is(out: str, said: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = build(corpus, out)
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)
    assert list(tmp_path.iterdir()) == [corpus]
