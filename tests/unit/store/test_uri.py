"""Addresses of stores and artifacts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rolecast.errors import ArtifactError, InputError
from rolecast.store.artifact import writing
from rolecast.store.local import LocalStore
from rolecast.store.s3 import S3Store
from rolecast.store.uri import local_artifact, open_store
from tests.weed import S3Server

ENVIRON = {"ROLECAST_S3_ENDPOINT": "http://host:9000", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}


def test_a_path_is_a_folder(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), {})
    assert isinstance(store, LocalStore)
    assert store.root == tmp_path


@pytest.mark.parametrize(
    ("uri", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://bucket/a/b", "bucket", "a/b"),
        ("s3://bucket/a/", "bucket", "a"),
    ],
)
def test_an_s3_address_is_bucket_and_prefix(uri: str, bucket: str, prefix: str) -> None:
    store = open_store(uri, ENVIRON)
    assert isinstance(store, S3Store)
    assert (store.bucket, store.prefix, store.endpoint) == (bucket, prefix, "http://host:9000")


@pytest.mark.parametrize("uri", ["s3://", "s3:///a", "http://host/a", "gs://bucket/a", "s3://bucket/a//b", "s3://bucket/../b"])
def test_other_addresses_are_refused(uri: str) -> None:
    with pytest.raises(InputError):
        open_store(uri, ENVIRON)


@pytest.mark.parametrize("name", sorted(ENVIRON))
def test_what_is_not_set_is_named_and_the_rest_is_not_shown(name: str) -> None:
    with pytest.raises(InputError, match=f"needs {name} in the environment") as raised:
        open_store("s3://bucket/a", {**ENVIRON, name: ""})
    assert "secret" not in str(raised.value)


def test_a_missing_client_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "rolecast.store.s3")
    monkeypatch.setitem(sys.modules, "minio", None)
    with pytest.raises(InputError, match=r"minio is not installed; .*\[s3\]"):
        open_store("s3://bucket", ENVIRON)


def make(path: Path) -> Path:
    with writing(path, "thing", {}) as partial:
        (partial / "one.txt").write_text("first")
    return path


def test_an_artifact_in_a_folder_is_used_where_it_is(tmp_path: Path) -> None:
    assert local_artifact(str(tmp_path / "a"), tmp_path / "copy", {}) == tmp_path / "a"


def test_an_artifact_in_s3_is_fetched(weed: S3Server, tmp_path: Path) -> None:
    uri = "s3://ready/uri/runs"
    open_store(uri, weed.environ).publish(make(tmp_path / "a"), "thing")
    got = local_artifact(f"{uri}/thing", tmp_path / "copy", weed.environ)
    assert got == tmp_path / "copy"
    assert (got / "one.txt").read_text() == "first"
    open_store("s3://ready", weed.environ).publish(tmp_path / "a", "top")
    assert local_artifact("s3://ready/top/", tmp_path / "copy2", weed.environ) == tmp_path / "copy2"
    with pytest.raises(ArtifactError, match="s3://ready/uri/runs/nothing is no committed artifact"):
        local_artifact(f"{uri}/nothing", tmp_path / "copy3", weed.environ)
    for bad in ("s3://ready", "http://host/a"):
        with pytest.raises(InputError, match="s3://bucket/prefix/key"):
            local_artifact(bad, tmp_path / "copy4", weed.environ)
