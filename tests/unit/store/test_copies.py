"""A corpus in a bucket comes here a piece at a time, however large it is."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from test_credentials import Answer, Start, start  # noqa: F401 (a fixture)

from rolecast.errors import InputError, StoreError
from rolecast.stages import shared_index

SIZE = 48 * 2**20
ABSENT = Answer(404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in {"AWS_ACCESS_KEY_ID": "KEY", "AWS_SECRET_ACCESS_KEY": "SECRET"}.items():
        monkeypatch.setenv(name, value)
    return "s3://bucket/corpora/wiki.jsonl.gz"


def test_no_more_of_a_corpus_is_held_than_a_piece(start: Start, corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    body = bytes(SIZE)
    server = start(Answer(200, body))
    monkeypatch.setenv("ROLECAST_S3_ENDPOINT", server.url)
    with shared_index._here(corpus):  # imports and connections are there now
        pass
    tracemalloc.start()
    try:
        with shared_index._here(corpus) as file:
            assert (file.name, file.stat().st_size) == ("wiki.jsonl.gz", SIZE)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held < SIZE / 4
    assert not file.exists()
    assert {request.line.partition("?")[0] for request in server.seen} == {"GET /bucket/corpora/wiki.jsonl.gz"}


@pytest.mark.parametrize("address", ["s3://bucket/corpora/absent.jsonl", "s3://bucket"])
def test_what_is_no_object_is_told_with_its_address(start: Start, corpus: str, monkeypatch: pytest.MonkeyPatch, address: str) -> None:  # noqa: F811
    monkeypatch.setenv("ROLECAST_S3_ENDPOINT", start(ABSENT).url)
    with pytest.raises((InputError, StoreError), match=address), shared_index._here(address):
        pass


def test_a_file_here_is_read_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("{}")
    with shared_index._here(str(tmp_path / "corpus.jsonl")) as file:
        assert file == tmp_path / "corpus.jsonl"
