"""`Store` over a folder and over a real S3 server: the same tests on both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rolecast.errors import ArtifactError, InputError
from rolecast.ports import Store
from rolecast.store.artifact import MANIFEST, verify, writing
from rolecast.store.uri import open_store
from tests.weed import S3Server

FILES = {"one.txt": b"first", "deep/two.bin": bytes(range(256)) * 400, "empty": b"", "öld näme.txt": b"text"}
OTHER = {"one.txt": b"another", "deep/two.bin": b"shorter"}


@dataclass(frozen=True)
class Place:
    uri: str
    environ: dict[str, str]

    def open(self) -> Store:
        return open_store(self.uri, self.environ)


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(str(tmp_path / "store"), {})
    weed: S3Server = request.getfixturevalue("weed")
    return Place(f"s3://{weed.make_bucket(f'b-{uuid.uuid4().hex[:12]}')}/some/prefix", weed.environ)


@pytest.fixture
def store(place: Place) -> Store:
    return place.open()


def make(path: Path, files: dict[str, bytes] = FILES) -> Path:
    with writing(path, "thing", {"seed": 3}) as partial:
        for name, content in files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(content)
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file() and f.name != MANIFEST}


# Artifacts


def test_what_is_published_is_fetched(store: Store, tmp_path: Path) -> None:
    source = make(tmp_path / "a")
    store.publish(source, "runs/x/thing")
    got = store.fetch("runs/x/thing", tmp_path / "elsewhere" / "b")
    assert contents(got) == FILES
    assert verify(got, "thing") == verify(source, "thing")
    assert store.committed("runs/x/thing")
    assert [entry.name for entry in got.parent.iterdir()] == ["b"]


def test_files_lie_under_the_key_by_their_names(store: Store, tmp_path: Path) -> None:
    store.publish(make(tmp_path / "a"), "thing")
    assert {name: store.get(f"thing/{name}") for name in FILES} == FILES


def test_publishing_the_same_again_is_no_error_and_another_is(store: Store, tmp_path: Path) -> None:
    store.publish(make(tmp_path / "a"), "thing")
    store.publish(make(tmp_path / "same"), "thing")
    with pytest.raises(ArtifactError, match="thing holds another artifact"):
        store.publish(make(tmp_path / "other", OTHER), "thing")
    assert contents(store.fetch("thing", tmp_path / "b")) == FILES


def test_a_damaged_folder_is_not_published(store: Store, tmp_path: Path) -> None:
    source = make(tmp_path / "a")
    (source / "one.txt").write_bytes(b"fIrst")
    with pytest.raises(ArtifactError, match=r"one\.txt"):
        store.publish(source, "thing")
    with pytest.raises(ArtifactError, match="no committed artifact"):
        store.publish(tmp_path / "nothing", "thing")
    assert store.artifacts("") == []


@pytest.mark.parametrize("key", ["nothing", "thin", "thing/deep"])
def test_what_is_not_there_is_named(store: Store, tmp_path: Path, key: str) -> None:
    store.publish(make(tmp_path / "a"), "thing")
    assert not store.committed(key)
    with pytest.raises(ArtifactError, match=f"{key} is no committed artifact"):
        store.fetch(key, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def flip(store: Store, key: str) -> None:
    data = bytearray(store.get(key) or b"")
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))


def cut(store: Store, key: str) -> None:
    store.put(key, (store.get(key) or b"")[:-1])


def remove(store: Store, key: str) -> None:
    store.delete(key)


@pytest.mark.parametrize("harm", [flip, cut, remove])
@pytest.mark.parametrize("name", ["one.txt", "deep/two.bin"])
def test_damage_is_found_by_name_and_nothing_is_committed(
    store: Store, tmp_path: Path, harm: Callable[[Store, str], None], name: str
) -> None:
    store.publish(make(tmp_path / "a"), "thing")
    harm(store, f"thing/{name}")
    with pytest.raises(ArtifactError, match=f"{name}.*delete .*publish it again"):
        store.fetch("thing", tmp_path / "b")
    assert sorted(entry.name for entry in tmp_path.iterdir() if entry.name != "store") == ["a"]


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", MANIFEST, ""])
def test_a_manifest_may_not_name_files_outside_its_artifact(store: Store, tmp_path: Path, name: str) -> None:
    entry = {"bytes": 1, "sha256": "0"}
    store.put("evil/manifest.json", json.dumps({"kind": "thing", "files": {name: entry}, "provenance": {}}).encode())
    with pytest.raises(ArtifactError, match="no file of an artifact"):
        store.fetch("evil", tmp_path / "b")


def test_a_sound_copy_is_not_fetched_again_and_a_harmed_one_is(store: Store, tmp_path: Path) -> None:
    store.publish(make(tmp_path / "a"), "thing")
    got = store.fetch("thing", tmp_path / "b")
    before = (got / "one.txt").stat().st_ino
    assert (store.fetch("thing", got) / "one.txt").stat().st_ino == before
    (got / "one.txt").write_bytes(b"harmed")
    assert contents(store.fetch("thing", got)) == FILES


# Writers that die, and writers that race

KILLED_UPLOAD = """
import os, sys
from pathlib import Path
from rolecast.store import local, uri
from rolecast.store.s3 import S3Store
store = uri.open_store(sys.argv[1])
calls = 0
def after_one(original):
    def call(*args, **options):
        global calls
        calls += 1
        return original(*args, **options) if calls == 1 else os._exit(9)
    return call
local.shutil.copyfile = after_one(local.shutil.copyfile)
S3Store._upload = after_one(S3Store._upload)
store.publish(Path(sys.argv[2]), "thing")
"""


def killed_upload(place: Place, folder: Path) -> None:
    command = [sys.executable, "-c", KILLED_UPLOAD, place.uri, str(folder)]
    assert subprocess.run(command, env={**os.environ, **place.environ}, check=False).returncode == 9


def test_a_killed_upload_is_not_seen_and_goes_on(place: Place, store: Store, tmp_path: Path) -> None:
    source = make(tmp_path / "a")
    killed_upload(place, source)
    assert not store.committed("thing")
    assert store.artifacts("") == []
    with pytest.raises(ArtifactError, match="no committed artifact"):
        store.fetch("thing", tmp_path / "b")
    store.publish(source, "thing")
    assert contents(store.fetch("thing", tmp_path / "b")) == FILES


def test_another_artifact_follows_a_killed_upload_after_a_delete(place: Place, store: Store, tmp_path: Path) -> None:
    killed_upload(place, make(tmp_path / "a"))
    store.delete("thing")
    store.publish(make(tmp_path / "other", OTHER), "thing")
    assert contents(store.fetch("thing", tmp_path / "b")) == OTHER


def together(*calls: Callable[[], object]) -> list[object]:
    """Runs the calls in threads that start at once; results, or the errors that they raised."""
    gate, results = threading.Barrier(len(calls)), [None] * len(calls)

    def run(n: int, call: Callable[[], object]) -> None:
        gate.wait()
        try:
            results[n] = call()  # type: ignore[call-overload]
        except Exception as error:
            results[n] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(results)


def test_of_two_writers_one_wins_whole_and_the_other_is_told(place: Place, tmp_path: Path) -> None:
    large = {f"part{n}": bytes([n]) * 300_000 for n in range(4)}
    sources = [make(tmp_path / str(n), {name: data + bytes([n]) for name, data in large.items()}) for n in range(2)]
    stores = [place.open() for _ in sources]
    for round_ in range(5):
        key = f"runs/{round_}/thing"
        results = together(*(lambda s=s, f=f, k=key: s.publish(f, k) for s, f in zip(stores, sources, strict=True)))  # type: ignore[misc]
        losers = [n for n, result in enumerate(results) if isinstance(result, ArtifactError)]
        assert len(losers) == 1, results
        assert results[1 - losers[0]] is None, results
        assert contents(stores[0].fetch(key, tmp_path / f"got{round_}")) == contents(sources[1 - losers[0]])


def test_writers_of_the_same_artifact_all_succeed(place: Place, tmp_path: Path) -> None:
    source = make(tmp_path / "a")
    stores = [place.open() for _ in range(4)]
    assert together(*(lambda s=s: s.publish(source, "thing") for s in stores)) == [None] * 4  # type: ignore[misc]
    assert contents(stores[0].fetch("thing", tmp_path / "b")) == FILES


def test_of_sixteen_conditional_puts_one_wins(place: Place) -> None:
    stores = [place.open() for _ in range(16)]
    results = together(*(lambda n=n, s=s: s.put("runs/x/attempt", f"writer {n}".encode(), absent=True) for n, s in enumerate(stores)))  # type: ignore[misc]
    assert sorted(map(str, results)) == ["False"] * 15 + ["True"]
    assert stores[0].get("runs/x/attempt") == f"writer {results.index(True)}".encode()


# Records, lists, deletion


def test_records_are_read_as_they_were_written(store: Store) -> None:
    assert store.get("runs/x/note") is None
    assert store.put("runs/x/note", b"one")
    assert not store.put("runs/x/note", b"two", absent=True)
    assert store.get("runs/x/note") == b"one"
    assert store.put("runs/x/note", b"")
    assert store.get("runs/x/note") == b""
    assert store.get("runs/x") is None
    assert store.get("runs/x/note/deeper") is None


def test_artifacts_are_listed_below_a_prefix(store: Store, tmp_path: Path) -> None:
    source = make(tmp_path / "a")
    for key in ("runs/a/sft", "runs/a/rl", "runs/ab/sft", "thing"):
        store.publish(source, key)
    store.put("runs/a/note", b"no artifact")
    assert store.artifacts("") == ["runs/a/rl", "runs/a/sft", "runs/ab/sft", "thing"]
    assert store.artifacts("runs/a") == ["runs/a/rl", "runs/a/sft"]
    assert store.artifacts("runs/a/rl") == ["runs/a/rl"]
    assert store.artifacts("nowhere") == []


def test_deleting_takes_what_is_below_and_nothing_beside(store: Store, tmp_path: Path) -> None:
    source = make(tmp_path / "a")
    for key in ("runs/a/sft", "runs/a/rl", "runs/ab/sft"):
        store.publish(source, key)
    store.put("runs/a/note", b"gone")
    store.put("runs/abc", b"stays")
    store.delete("runs/a")
    assert store.artifacts("") == ["runs/ab/sft"]
    assert store.get("runs/a/note") is None
    assert store.get("runs/a/sft/one.txt") is None
    assert store.get("runs/abc") == b"stays"
    store.delete("runs/abc")
    assert store.get("runs/abc") is None
    store.delete("runs/nothing")
    store.publish(make(tmp_path / "other", OTHER), "runs/a/sft")
    assert contents(store.fetch("runs/a/sft", tmp_path / "b")) == OTHER


@pytest.mark.parametrize("key", ["", "/", "/a", "a/", "a//b", "..", "a/../b", ".hidden", "a/.claim"])
def test_bad_keys_are_refused(store: Store, tmp_path: Path, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(key, b""),
        lambda: store.get(key),
        lambda: store.delete(key),
        lambda: store.committed(key),
        lambda: store.fetch(key, tmp_path / "b"),
        lambda: store.publish(make(tmp_path / "a"), key),
    ]
    for call in calls:
        with pytest.raises(InputError, match="no key of a store"):
            call()


def test_keys_need_not_be_ascii(store: Store) -> None:
    store.put("läufe/ein lauf+1/nöte", b"x")
    assert store.get("läufe/ein lauf+1/nöte") == b"x"
    store.delete("läufe")
    assert store.get("läufe/ein lauf+1/nöte") is None


def test_records_are_listed_below_a_prefix(store: Store, tmp_path: Path) -> None:
    assert store.keys("a") == []
    for key in ("a/2", "a/1", "a/deep/3", "ab/4", "b"):
        store.put(key, b"x")
    assert store.keys("a") == ["a/1", "a/2", "a/deep/3"]
    assert store.keys("") == ["a/1", "a/2", "a/deep/3", "ab/4", "b"]
    store.publish(make(tmp_path / "t"), "a/thing")
    assert store.keys("a/thing") == sorted(f"a/thing/{name}" for name in [*FILES, MANIFEST])
