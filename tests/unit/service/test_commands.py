"""`rolecast retriever serve` and `rolecast judge serve`: exit codes, one line for a bad setting, and what they need not import."""

from __future__ import annotations

import inspect
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rolecast.cli import judge, main, retriever
from rolecast.judge.app import JudgeSettings
from rolecast.retriever.app import RetrieverSettings


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers, root.level = handlers, level


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["retriever", "serve"], 2, "rolecast: --index is missing; give it or set ROLECAST_INDEX"),
        (["retriever", "serve", "--index", "i", "--port", "x"], 2, "rolecast: --port (ROLECAST_PORT) is 'x'"),
        (["retriever", "serve", "--nonsense"], 2, "rolecast: No such option"),
        (["judge", "serve", "--judge-backend", "oracle"], 2, "rolecast: --judge-backend (ROLECAST_JUDGE_BACKEND) is 'oracle'"),
        (["judge", "serve", "--judge-backend", "openai"], 2, "rolecast: the openai backend needs"),
        (
            ["retriever", "serve", "--index", "/nowhere", "--host", "127.0.0.1", "--port", "0"],
            2,
            "rolecast: /nowhere is no committed index",
        ),
        (
            ["retriever", "serve", "--index", "s3://bucket", "--host", "127.0.0.1", "--port", "0"],
            2,
            "rolecast: 's3://bucket' names a bucket",
        ),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ROLECAST_INDEX", "ROLECAST_PORT", "ROLECAST_JUDGE_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["rolecast", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    error = capsys.readouterr().err
    assert ended.value.code == code
    assert error.startswith(said)
    assert error.count("\n") == 1


@pytest.mark.parametrize(("command", "settings"), [(retriever.serve, RetrieverSettings), (judge.serve, JudgeSettings)])
def test_every_setting_has_a_flag(command: object, settings: type[RetrieverSettings] | type[JudgeSettings]) -> None:
    assert set(inspect.signature(command).parameters) == set(settings.model_fields)  # type: ignore[arg-type]


def test_no_flag_takes_a_secret() -> None:
    for command in (retriever.serve, judge.serve):
        assert not [name for name in inspect.signature(command).parameters if "key" in name or "secret" in name]


def test_the_services_import_nothing_heavy() -> None:
    code = """
import sys
for name in ("torch", "transformers", "faiss", "sentence_transformers", "kserve", "kfp", "deepspeed"):
    sys.modules[name] = None
import rolecast.judge.app, rolecast.retriever.app, rolecast.service.server, rolecast.store.s3
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)


def test_clients_need_no_servers_packages() -> None:
    code = """
import sys
for name in ("fastapi", "starlette", "uvicorn", "prometheus_client"):
    sys.modules[name] = None
import rolecast.judge.client, rolecast.retriever.client, rolecast.launching.render
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)
