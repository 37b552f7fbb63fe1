"""Submitting over HTTP against a server that answers like Kubeflow Pipelines."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import as_file
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from rolecast_pipelines.schedule import make_pipeline
from typer.testing import CliRunner

from rolecast.cli.pipeline import app
from rolecast.config import RunConfig
from rolecast.errors import InputError, RolecastError
from rolecast.launching.submit import HOST, TOKEN, submit
from rolecast.methods.decor import Decor


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses: dict[str, int] = {}  # by the last part of the path
        self.runs: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer({"experiments": [], "multi_user": False} if "experiments" in self.path else {"multi_user": False})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path.split("?")[0].endswith("runs"):
            self.server.runs.append(body)
            return self._answer({"run_id": "run-1", "experiment_id": "experiment-1"})
        return self._answer({"experiment_id": "experiment-1", "display_name": body["display_name"]})

    def _answer(self, body: dict[str, Any]) -> None:
        self.server.tokens.append(self.headers.get("authorization"))
        status = self.server.statuses.get(self.path.split("?")[0].rsplit("/", 1)[-1], 200)
        data = json.dumps(body if status == 200 else {"message": "no such right"}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setattr("kfp.Client._LOCAL_KFP_CONTEXT", str(tmp_path / "none.json"))
    monkeypatch.delenv(TOKEN, raising=False)
    with Server() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield running
        running.shutdown()


ARGUMENTS = {"run": "s3://store/runs/a", "config": "{}", "launcher": "pytorchjob", "job": '{"image": "rolecast-learner:1"}'}
PIPELINE = make_pipeline(RunConfig().schedule)


def test_a_run_is_submitted_with_its_arguments_and_the_token_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "a-token")
    started = submit(server.url + "/", ARGUMENTS, PIPELINE, name="demo", service_account="rolecast-launcher")
    assert started.url == f"{server.url}/#/runs/details/run-1"
    (run,) = server.runs
    assert run["runtime_config"]["parameters"] == ARGUMENTS
    assert (run["display_name"], run["service_account"]) == ("demo", "rolecast-launcher")
    assert set(server.tokens) == {"Bearer a-token"}
    assert "a-token" not in json.dumps(run)
    assert yaml.safe_load(json.dumps(run))["pipeline_spec"]


def test_a_missing_host_is_named() -> None:
    with pytest.raises(InputError, match="--host or set ROLECAST_KFP_HOST"):
        submit(None, ARGUMENTS, PIPELINE, name="demo")


def test_a_host_without_a_scheme_is_refused() -> None:
    with pytest.raises(InputError, match="http:// or https://"):
        submit("kfp.example", ARGUMENTS, PIPELINE, name="demo")


def test_a_server_that_is_not_there_is_named_at_once() -> None:
    with pytest.raises(RolecastError, match=r"http://127\.0\.0\.1:9 is no Kubeflow Pipelines server that can be reached"):
        submit("http://127.0.0.1:9", ARGUMENTS, PIPELINE, name="demo")


@pytest.mark.parametrize(("status", "hint"), [(401, "valid token"), (403, "no right"), (404, "address of Kubeflow Pipelines 2")])
def test_a_server_that_refuses_says_what_to_do(server: Server, status: int, hint: str) -> None:
    server.statuses["healthz"] = status
    with pytest.raises(RolecastError, match=hint):
        submit(server.url, ARGUMENTS, PIPELINE, name="demo")


def test_a_run_that_is_refused_shows_the_servers_words(server: Server) -> None:
    server.statuses["runs"] = 403
    with pytest.raises(RolecastError, match="HTTP 403 no such right"):
        submit(server.url, ARGUMENTS, PIPELINE, name="demo")


def command(*arguments: str, config: Path) -> Result:
    return CliRunner().invoke(app, ["submit", "--config", str(config), "--run", "s3://store/runs/a", *arguments])


@pytest.fixture
def config() -> Iterator[Path]:
    with as_file(Decor.preset("demo")) as file:
        yield file


def test_the_command_passes_config_job_and_images_on(server: Server, config: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("image: rolecast-learner:1\nnodes: 2\n")
    result = command("--host", server.url, "--job", str(tmp_path / "job.yaml"), "--image", "rolecast-control:1", config=config)
    assert result.output == f"{server.url}/#/runs/details/run-1\n", result.exception
    parameters = server.runs[0]["runtime_config"]["parameters"]
    assert set(parameters) == {"run", "config", "launcher", "job", "image"}
    assert json.loads(parameters["job"]) == {"image": "rolecast-learner:1", "nodes": 2}
    assert json.loads(parameters["config"])["name"] == "demo"
    assert server.runs[0]["service_account"] == "rolecast-launcher"


def test_the_host_comes_from_the_environment_too(server: Server, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOST, server.url)
    assert command("--launcher", "local", config=config).exit_code == 0
    assert len(server.runs) == 1


def test_a_fault_in_the_job_is_told_before_anything_is_submitted(server: Server, config: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("image: rolecast-learner:1\nzero_stage: 5\n")
    result = command("--host", server.url, "--job", str(tmp_path / "job.yaml"), config=config)
    assert isinstance(result.exception, InputError)
    assert "job.yaml: zero_stage" in str(result.exception)
    assert not server.runs


@pytest.mark.parametrize("key", ["run", "stage", "kind"])
def test_a_job_that_says_what_the_pipeline_sets_is_refused(server: Server, config: Path, tmp_path: Path, key: str) -> None:
    (tmp_path / "job.yaml").write_text(f"image: rolecast-learner:1\n{key}: sft\n")
    result = command("--host", server.url, "--job", str(tmp_path / "job.yaml"), config=config)
    assert isinstance(result.exception, InputError)
    assert f"leave out {key}" in str(result.exception)
    assert not server.runs
