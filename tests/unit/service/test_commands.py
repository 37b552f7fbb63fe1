"""`rolecast PART serve`: flags and their help, exit codes, one line for a bad setting, and what they need not import."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rolecast.agent.settings import AgentSettings
from rolecast.cli import main
from rolecast.cli.flags import takes_settings
from rolecast.judge.settings import JudgeSettings
from rolecast.retriever.settings import RetrieverSettings
from rolecast.rollout.settings import RolloutSettings
from rolecast.service.settings import ServiceSettings


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


SERVICES = {"retriever": RetrieverSettings, "judge": JudgeSettings, "rollout": RolloutSettings, "agent": AgentSettings}


@pytest.mark.parametrize("service", SERVICES)
def test_help_lists_every_setting_with_its_type_and_default(service: str) -> None:
    """And needs no web server, and no model, to do so."""
    code = f"""
import sys
for name in {HEAVY}:
    sys.modules[name] = None
sys.argv = ["rolecast", "{service}", "serve", "--help"]
from rolecast.cli.main import main
main()
"""
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    lines = re.sub(r"\n {6,}", " ", said.partition("Arguments:" if service == "agent" else "Options:")[2])  # a row's lines as one
    listed = {name: " ".join(row.split()) for name, row in re.findall(r"^  (?:--)?([\w-]+) +(.*)$", lines, re.M)}
    fields = SERVICES[service].model_fields
    assert {name.lower().replace("-", "_") for name in listed} == {*fields, "help"}
    for name, field in fields.items():
        row = listed.get(name.replace("_", "-")) or listed[name.upper()]
        assert str(field.description) in row
        assert ("[required]" in row) == field.is_required()
        assert ("[default: " in row) == (not field.is_required() and field.default not in (None, ""))
    assert listed["port"].startswith("<int> ")
    assert listed["port"].endswith("[default: 8080]")
    assert listed["drain-seconds"].endswith("[default: 30]")
    assert listed["log-level"].startswith("<debug|info|warning|error> ")


@pytest.mark.parametrize(
    ("flags", "environ", "port"),
    [([], "", 8080), ([], "81", 81), (["--port", "82"], "81", 82), (["--port", ""], "81", 8080)],
)
def test_a_flag_wins_over_its_variable(flags: list[str], environ: str, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    app = typer.Typer()
    app.command()(takes_settings(ServiceSettings)(lambda settings: seen.append(settings.port)))
    monkeypatch.setenv("ROLECAST_PORT", environ)
    assert CliRunner().invoke(app, flags).exit_code == 0
    assert seen == [port]


def test_no_flag_takes_a_secret() -> None:
    for settings in SERVICES.values():
        assert not [
            name
            for name in settings.model_fields
            if re.search("key|secret|token|password", re.sub("max_tokens|tokens_file|token_rate", "", name))
        ]


HEAVY = ("torch", "transformers", "fastapi", "uvicorn", "faiss", "kserve", "kfp", "deepspeed")


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
