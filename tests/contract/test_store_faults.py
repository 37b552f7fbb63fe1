"""Artifacts in a real S3 server behind a proxy that fails: nothing half-committed is read, nothing committed is lost."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from urllib3 import Timeout

from rolecast.errors import ArtifactError, StoreError
from rolecast.store import s3
from rolecast.store.artifact import MANIFEST, writing
from rolecast.store.s3 import S3Store
from rolecast.store.uri import making
from tests.fault_proxy import Fault, Kind, Proxy, faulty
from tests.weed import S3Server

pytestmark = pytest.mark.slow
FILES = {"one.txt": b"first" * 1000, "deep/two.bin": bytes(range(256)) * 400, "three.bin": b"\xff" * 50_000}


def make(path: Path, files: dict[str, bytes] = FILES) -> Path:
    with writing(path, "thing", {"made": path.name}) as partial:
        for name, content in files.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(content)
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file() and f.name != MANIFEST}


@pytest.fixture
def proxy(weed: S3Server) -> Iterator[Proxy]:
    with faulty(weed.endpoint) as proxy:
        yield proxy


class Bucket:
    def __init__(self, weed: S3Server, proxy: Proxy) -> None:
        self.name, self.weed, self.prefix = "ready", weed, f"faults-{uuid.uuid4().hex[:12]}"  # a bucket takes room of the server's
        self.environ = {**weed.environ, "ROLECAST_S3_ENDPOINT": proxy.url}

    def failing(self) -> S3Store:
        """A store through the proxy."""
        return S3Store.from_environment(self.name, self.prefix, self.environ)

    def sound(self) -> S3Store:
        return S3Store.from_environment(self.name, self.prefix, self.weed.environ)


@pytest.fixture
def bucket(weed: S3Server, proxy: Proxy) -> Bucket:
    return Bucket(weed, proxy)


def to(method: str, part: str) -> Callable[[str, str], bool]:
    return lambda asked, path: asked == method and part in path


PUBLISH = """
import sys
from pathlib import Path
from rolecast.store.uri import open_store
open_store(sys.argv[1]).publish(Path(sys.argv[2]), "thing")
"""


def killed_at(bucket: Bucket, source: Path, reached: Callable[[], bool]) -> None:
    """A publisher that is killed without a word once `reached`."""
    command = [sys.executable, "-c", PUBLISH, f"s3://{bucket.name}/{bucket.prefix}", str(source)]
    process = subprocess.Popen(command, env={**os.environ, **bucket.environ}, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(("at", "first"), [("two.bin", "mid-upload"), (MANIFEST, "between data and manifest")])
def test_a_writer_that_is_killed_leaves_nothing_that_is_read(bucket: Bucket, proxy: Proxy, tmp_path: Path, at: str, first: str) -> None:
    source = make(tmp_path / "source")
    fault = Fault("cut request", to("PUT", at))
    proxy.faults = [fault]
    killed_at(bucket, source, lambda: fault.met > 0)
    proxy.faults = []
    store = bucket.failing()
    assert (store.committed("thing"), store.artifacts("")) == (False, [])
    assert store.unfinished("") == ["thing"]
    with pytest.raises(ArtifactError, match="is no committed artifact"):
        store.fetch("thing", tmp_path / "read")
    with pytest.raises(ArtifactError, match="is claimed by another artifact, whose upload has not ended"):
        store.publish(make(tmp_path / "other", {"one.txt": b"other"}), "thing")
    store.publish(source, "thing")
    assert (store.unfinished(""), contents(store.fetch("thing", tmp_path / "read"))) == ([], FILES)


@pytest.mark.parametrize("kind", ["truncate", "flip", "cut answer"])
@pytest.mark.parametrize("part", ["two.bin", MANIFEST])
def test_what_is_damaged_on_its_way_is_fetched_again(
    bucket: Bucket, proxy: Proxy, tmp_path: Path, kind: Kind, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.sound().publish(make(tmp_path / "source"), "thing")
    proxy.faults = [Fault(kind, to("GET", part), times=1 if part == MANIFEST else 2)]
    with caplog.at_level(logging.WARNING):
        if part == MANIFEST and kind != "cut answer":  # a manifest that is damaged is none
            with pytest.raises(ArtifactError):
                bucket.failing().fetch("thing", tmp_path / "read")
            assert not (tmp_path / "read").exists()
        assert contents(bucket.failing().fetch("thing", tmp_path / "read")) == FILES
    assert ("two.bin came damaged, in 2 of at most 3 tries" in caplog.text) == (part != MANIFEST and kind != "cut answer")


@pytest.mark.parametrize("harm", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_what_lies_damaged_is_refused_by_name_and_committed_nowhere(bucket: Bucket, tmp_path: Path, harm: Callable[[bytes], bytes]) -> None:
    store = bucket.sound()
    store.publish(make(tmp_path / "source"), "thing")
    store.put("thing/deep/two.bin", harm(FILES["deep/two.bin"]))
    with pytest.raises(ArtifactError, match=r"deep/two\.bin does not match the manifest"):
        store.fetch("thing", tmp_path / "read")
    assert not (tmp_path / "read").exists()


def test_a_burst_of_refusals_longer_than_six_seconds_is_waited_out(bucket: Bucket, proxy: Proxy, tmp_path: Path) -> None:
    bucket.sound().publish(make(tmp_path / "source"), "thing")
    begun = time.monotonic()
    proxy.faults = [Fault("503", lambda method, path: time.monotonic() - begun < 8)]
    assert contents(bucket.failing().fetch("thing", tmp_path / "read")) == FILES
    assert time.monotonic() - begun > 8


@pytest.mark.parametrize("kind", ["503", "lose answer", "cut request"])
@pytest.mark.parametrize("at", [".conditional", ".claim", "one.txt", MANIFEST])
def test_an_upload_goes_on_after_a_request_that_failed(bucket: Bucket, proxy: Proxy, tmp_path: Path, kind: Kind, at: str) -> None:
    fault = Fault(kind, to("PUT", at), times=2)
    proxy.faults = [fault]
    bucket.failing().publish(make(tmp_path / "source"), "thing")
    assert fault.met == 2
    assert contents(bucket.sound().fetch("thing", tmp_path / "read")) == FILES


def test_a_part_that_is_slow_or_lost_is_sent_again(bucket: Bucket, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART", 5 * 2**20)
    large = {"large.bin": os.urandom(12 * 2**20)}
    store = bucket.failing()
    store._http.connection_pool_kw["timeout"] = Timeout(connect=5.0, read=1.0)
    slow, lost = Fault("slow", to("PUT", "partNumber=2"), times=1, seconds=2.5), Fault("lose answer", to("PUT", "partNumber=3"), times=1)
    proxy.faults = [slow, lost]
    store.publish(make(tmp_path / "source", large), "thing")
    assert (slow.met, lost.met) == (1, 1)
    assert contents(bucket.sound().fetch("thing", tmp_path / "read")) == large


def test_of_two_writers_whose_answers_are_lost_one_wins_whole(bucket: Bucket, proxy: Proxy, tmp_path: Path) -> None:
    sources = [make(tmp_path / name, {"one.txt": name.encode() * 1000}) for name in ("a", "b")]
    for round_ in range(5):
        proxy.faults = [Fault("lose answer", to("PUT", name), times=1) for name in (".claim", MANIFEST)]
        outcome: dict[str, object] = {}

        def publish(source: Path, key: str = f"{round_}/thing", outcome: dict[str, object] = outcome) -> None:
            try:
                outcome[source.name] = bucket.failing().publish(source, key)
            except ArtifactError as error:
                outcome[source.name] = error

        threads = [threading.Thread(target=publish, args=[source]) for source in sources]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [won] = [name for name, result in outcome.items() if result is None]
        [told] = [result for result in outcome.values() if result is not None]
        assert "another artifact" in str(told)
        assert contents(bucket.sound().fetch(f"{round_}/thing", tmp_path / f"read{round_}")) == {"one.txt": won.encode() * 1000}


def test_a_request_whose_signature_ran_out_on_its_way_is_signed_anew(
    bucket: Bucket, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bucket.failing()
    monkeypatch.setattr(s3, "SIGNED", timedelta(seconds=1))
    late = Fault("slow", to("PUT", MANIFEST), times=1, seconds=3.0)
    proxy.faults = [late]
    store.publish(make(tmp_path / "source"), "thing")
    assert late.met == 1
    assert contents(bucket.sound().fetch("thing", tmp_path / "read")) == FILES


def test_a_server_that_ignores_the_condition_is_refused_before_anything_is_written(
    bucket: Bucket, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.faults = [Fault("unconditional", lambda method, path: True)]
    said = rf"s3://{bucket.name}/{bucket.prefix}: {proxy.url} ignores If-None-Match, .*; take a server with conditional writes"
    with pytest.raises(StoreError, match=said):
        bucket.failing().publish(make(tmp_path / "source"), "thing")
    assert bucket.sound().keys("") == []
    built: list[Any] = []
    with pytest.raises(StoreError, match=said), making(f"s3://{bucket.name}/{bucket.prefix}/index", bucket.environ) as folder:
        built.append(folder)  # hours of work
    assert built == []
