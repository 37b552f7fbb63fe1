"""`rolecast rollout serve`: the release's key comes from the environment, and only from there."""

from __future__ import annotations

import inspect
import sys

import pytest

from rolecast.cli import main, rollout

URL = "http://127.0.0.1:9"


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


def test_no_flag_takes_the_key() -> None:
    assert not [name for name in inspect.signature(rollout.serve).parameters if "key" in name or "secret" in name]
