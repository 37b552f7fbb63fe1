"""Open coordinators on the board, over a folder and over a real S3 server: the same tests on both."""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from rolecast.errors import StoreError
from rolecast.ports import Store
from rolecast.store.announcements import Board, Opening
from rolecast.store.uri import open_store
from tests.weed import S3Server

KEY = "a key of this release"
A = Opening("s3://rolecast/dev/runs/demo", "rl", 1, "http://rolecast-rl-demo-1-coordinator:8300", 100.0)
B = Opening("s3://rolecast/other/runs/demo", "rl", 1, "http://rolecast-rl-demo-2-coordinator:8300", 200.0)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(str(tmp_path / "coordinators"), {})
    weed: S3Server = request.getfixturevalue("weed")
    return open_store(f"s3://{weed.make_bucket(f'b-{uuid.uuid4().hex[:12]}')}/dev/coordinators", weed.environ)


def test_what_is_open_is_read_by_others_and_is_gone_at_its_end(store: Store) -> None:
    workers = Board(store, KEY)
    assert workers.read() == []
    with Board(store, KEY).announced(A):
        assert workers.read() == [A]
        with Board(store, KEY).announced(B):  # a run of the same name elsewhere
            assert workers.read() == [B, A]
        assert workers.read() == [A]
    assert workers.read() == []
    assert store.keys("") == []


def test_the_next_attempt_sweeps_away_what_a_killed_one_left_and_nothing_else(store: Store) -> None:
    killed, elsewhere, next_ = Board(store, KEY), Board(store, KEY), Board(store, KEY)
    left = [killed.announced(A), killed.announced(replace(A, stage="plans"))]
    for one in left:
        one.__enter__()
    assert len(next_.read()) == 2
    later = replace(A, attempt=4, opened=400.0)
    with elsewhere.announced(B), next_.announced(later), next_.announced(replace(A, attempt=3, opened=300.0)):
        assert [opening.attempt for opening in next_.read() if opening.run == A.run] == [4, 3]  # a slow one takes nothing of a later one's
        assert B in next_.read()
    assert next_.read() == []


def test_an_attempt_that_was_cut_off_and_announces_itself_late_comes_after_the_next_one(store: Store) -> None:
    board, later = Board(store, KEY), replace(A, attempt=2)
    late = replace(A, opened=900.0)
    with board.announced(later), board.announced(late):
        assert board.read() == [later, late]


def test_a_slow_attempt_takes_back_its_own_announcement_and_not_the_next_ones(store: Store) -> None:
    board, later = Board(store, KEY), replace(A, attempt=2)
    slow = board.announced(A)
    slow.__enter__()
    with board.announced(later):
        slow.__exit__(None, None, None)
        assert board.read() == [later]


def test_what_somebody_without_the_key_wrote_is_passed_over_and_counted(store: Store) -> None:
    board = Board(store, KEY)
    with Board(store, "another key of a release").announced(B), board.announced(A):
        [mine] = [key for key in store.keys("") if b"dev/runs" in (store.get(key) or b"")]
        record = json.loads(store.get(mine) or b"")
        for field, value in (("url", "http://elsewhere:8300"), ("attempt", 9), ("run", B.run), ("opened", 1e12)):
            store.put(f"forged/{field}", json.dumps({**record, "opening": {**record["opening"], field: value}}).encode())
        wrong = [json.dumps({**record, "proof": proof}).encode() for proof in ("é", "\ud800")]
        for number, junk in enumerate((b"", b"[]", b"{}", b"\xff", *wrong)):
            store.put(f"junk/{number}", junk)
        assert board.read() == [A]
        assert board.foreign == 11
        assert Board(store, "another key of a release").read() == [B]
    assert KEY not in str(board)


def test_an_announcement_that_cannot_be_taken_back_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = open_store(str(tmp_path), {})
    board = Board(store, KEY)

    def away(prefix: str) -> None:
        raise StoreError("the store is away")

    with caplog.at_level(logging.WARNING), board.announced(A):
        store.delete = away  # type: ignore[method-assign]
    assert "is not taken back, workers will pass it over: the store is away" in caplog.text
