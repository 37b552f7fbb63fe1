"""`rolecast rollout serve`: the release's key comes from the environment, and only from there."""

from __future__ import annotations

import sys

import pytest

from rolecast.cli import main
from rolecast.coordinator.client import HttpCoordinator
from rolecast.coordinator.tokens import release_key
from rolecast.errors import InputError, RolecastError
from rolecast.leasing import Refused
from rolecast.rollout import app
from rolecast.rollout.settings import RolloutSettings

KEY = "0123456789abcdef"

URL = "http://127.0.0.1:9"
KEYS = [
    ("", "is not set"), (" \n", "is not set"), ("short", "has fewer than 16 characters"), (f"short{11 * ' '}\n", "has fewer than 16 characters"),
    ("0123456789abcde\udcff", "holds bytes that are no UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "fault"), [("", "is not set"), ("short", "has fewer than 16 characters")])
def test_a_worker_without_the_release_key_says_so_in_one_line(
    key: str, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROLECAST_RELEASE_KEY", key)
    flags = ["--coordinator-url", URL, "--retriever-url", URL, "--judge-url", URL, "--port", "0", "--host", "127.0.0.1"]
    monkeypatch.setattr(sys, "argv", ["rolecast", "rollout", "serve", *flags])
    with pytest.raises(SystemExit) as ended:
        main.main()
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.startswith(f"rolecast: ROLECAST_RELEASE_KEY {fault}")
    assert error.count("\n") == 1


@pytest.mark.parametrize(("key", "fault"), KEYS)
def test_a_key_that_is_none_is_refused_with_its_fault(key: str, fault: str) -> None:
    with pytest.raises(InputError, match=f"^ROLECAST_RELEASE_KEY {fault}: .*openssl rand"):
        release_key({"ROLECAST_RELEASE_KEY": key})


def test_a_newline_at_the_end_of_the_key_is_none_of_it() -> None:
    """As of a Secret that was made from a file."""
    assert release_key({"ROLECAST_RELEASE_KEY": f" {KEY}\n"}) == release_key({"ROLECAST_RELEASE_KEY": KEY}) == KEY


def test_a_worker_with_another_key_says_so_once_and_again_after_something_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A coordinator that is asked again and again, with the wrong key, then away, then with the wrong key."""
    refused = Refused("refused /v1/run with 401: give worker and learner the same ROLECAST_RELEASE_KEY")
    answers = iter([refused, refused, refused, RolecastError("does not answer"), RolecastError("does not answer"), refused, refused])
    settings = RolloutSettings(coordinator_url=URL, retriever_url=URL, judge_url=URL)
    loop = app._Loop(settings, app.Service("rollout", settings.max_body_bytes), KEY)

    def run_info(self: HttpCoordinator) -> None:
        if (answer := next(answers, None)) is not None:
            raise answer
        loop.over.set()
        raise refused

    monkeypatch.setattr(HttpCoordinator, "run_info", run_info)
    monkeypatch.setattr(app, "NAP", 0.001)
    with caplog.at_level("INFO", logger=app.log.name):
        loop._run()
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("ERROR", str(refused)), ("INFO", "does not answer"), ("ERROR", str(refused)),
    ]  # fmt: skip
