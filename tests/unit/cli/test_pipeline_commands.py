"""`rolecast pipeline index-only`, `deploy` and `--parameter`: what is sent, and what is refused before anything is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rolecast.cli.pipeline import app
from rolecast.errors import InputError
from rolecast.launching import submit
from tests.compiled import Compiled

Sent = list[dict[str, Any]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    found: Sent = []

    def start(host: Any, arguments: dict[str, Any], pipeline: Any, **about: Any) -> Any:
        found.append({"pipeline": pipeline.name, **about, "arguments": arguments})
        return submit.Submission("1", "http://kfp/1")

    monkeypatch.setattr(submit, "submit", start)
    return found


def run(*arguments: str) -> None:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception:
        raise result.exception


INDEX = ("index-only", "--corpus", "s3://b/c.jsonl", "--index", "s3://b/i")


def test_an_index_is_sent_with_its_parameters(sent: Sent) -> None:
    run(*INDEX, "--kind", "bm25", "--parameter", "index_memory=64Gi", "--parameter", "index_cpu=4", "--parameter", "node_selector={a: b}")
    assert sent[0]["arguments"] == {
        "corpus": "s3://b/c.jsonl", "out": "s3://b/i", "kind": "bm25", "encoder": "minilm", "index_memory": "64Gi", "index_cpu": "4",
        "index_memory_request": "64Gi", "index_cpu_request": "4", "node_selector": {"a": "b"},
    }  # fmt: skip
    assert sent[0]["service_account"] == "rolecast-launcher"


@pytest.mark.parametrize(
    ("given", "sent_as"),
    [
        (["index_memory=64Gi"], {"index_memory": "64Gi", "index_memory_request": "64Gi"}),
        (["index_memory=64Gi", "index_memory_request=48Gi"], {"index_memory": "64Gi", "index_memory_request": "48Gi"}),
        (["index_cpu_request=100m"], {"index_cpu": "4", "index_cpu_request": "100m"}),
        (["index_cpu_request=8"], {"index_cpu": "8", "index_cpu_request": "8"}),
    ],
)
def test_one_amount_that_is_given_alone_leaves_no_pod_that_asks_for_more_than_it_may_take(
    sent: Sent, given: list[str], sent_as: dict[str, str]
) -> None:
    run(*INDEX, *(word for one in given for word in ("--parameter", one)))
    assert {name: value for name, value in sent[0]["arguments"].items() if "_cpu" in name or "_memory" in name} == sent_as


def test_asking_for_more_than_may_be_taken_is_refused(sent: Sent) -> None:
    with pytest.raises(InputError, match="index_cpu_request is 2 and index_cpu 1: nobody may ask for more"):
        run(*INDEX, "--parameter", "index_cpu=1", "--parameter", "index_cpu_request=2")
    assert not sent


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no_such=1", "--parameter no_such: there is no such parameter; there are image, retriever_image"),
        ("tolerations={a: b}", "--parameter tolerations: give a list"),
        ("node_selector=[a]", "--parameter node_selector: give a mapping"),
        ("index_memory", "--parameter index_memory: write index_memory=VALUE"),
        ("node_selector={disk: 1}", "--parameter node_selector: disk: 1 is no text; put it into quotes"),
        ("index_memory=lots", "--parameter: 'lots' is no quantity"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused(sent: Sent, given: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        run(*INDEX, "--parameter", given)
    assert not sent


def service(folder: Path, text: str = "{name: demo, image: 'agent:1'}") -> Path:
    (folder / "agent.yaml").write_text(text)
    return folder / "agent.yaml"


def deploy(folder: Path, *more: str, text: str = "{name: demo, image: 'agent:1'}") -> None:
    run("deploy", "--run", "s3://b/runs/a", "--stage", "rl", "--service", str(service(folder, text)), *more)


def test_a_deployment_is_sent_with_its_service(sent: Sent, tmp_path: Path) -> None:
    deploy(tmp_path, "--margin", "0.02", "--questions", "50", "--parameter", "evaluation_gpus=1")
    arguments = sent[0]["arguments"]
    assert json.loads(arguments.pop("service")) == {"name": "demo", "image": "agent:1"}
    assert arguments == {
        "run": "s3://b/runs/a", "stage": "rl", "target": "kserve", "margin": 0.02, "questions": 50, "evaluation_gpus": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{name: demo}", "image: Field required"),
        ("{name: demo, image: a, uri: 's3://b/c'}", "without kind, uri and stage"),
        ("{name: demo, image: a, gpu: 1}", "gpu"),
    ],
)
def test_a_service_that_cannot_be_is_refused_before_anything_is_evaluated(sent: Sent, tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        deploy(tmp_path, text=text)
    assert not sent


def test_a_pipeline_in_a_file_has_what_it_was_given(sent: Sent, tmp_path: Path) -> None:
    """Its arguments, and what is said by `--parameter`, are its parameters' defaults: whoever uploads it types them no more."""
    words = [*INDEX, "--kind", "bm25", "--parameter", "index_memory=64Gi", "--parameter", "node_selector={a: b}"]
    run(*words)
    run(*words, "--out", str(tmp_path / "p.yaml"))
    parameters = Compiled.read((tmp_path / "p.yaml").read_text()).spec["root"]["inputDefinitions"]["parameters"]
    given = sent[0]["arguments"]
    assert {name: parameters[name]["defaultValue"] for name in given} == given
    assert given["corpus"] == "s3://b/c.jsonl"
    assert given["index_memory"] == "64Gi"
    assert given["node_selector"] == {"a": "b"}


@pytest.mark.parametrize(("flag", "place"), [("--corpus", "corpus.jsonl"), ("--index", "runs/index")])
def test_an_index_whose_pods_could_not_reach_it_is_refused(sent: Sent, flag: str, place: str) -> None:
    given = [place if before == flag else word for before, word in zip(("", *INDEX), INDEX, strict=False)]
    with pytest.raises(InputError, match=f"{flag} {place}: .*s3://"):
        run(*given)
    assert not sent


def test_jobs_without_a_spec_are_asked_for_it(sent: Sent) -> None:
    with pytest.raises(InputError, match="--launcher pytorchjob starts jobs: give --job FILE"):
        run("submit", "--config", "configs/demo_cluster.yaml", "--run", "s3://b/runs/a")
    assert not sent


def test_keys_of_endpoints_are_compiled_in(tmp_path: Path) -> None:
    deploy(tmp_path, "--keys", "A_KEY,B_KEY", "--out", str(tmp_path / "p.yaml"))
    compiled = Compiled.read((tmp_path / "p.yaml").read_text())
    given = [secret for secret in compiled.platform["exec-evaluate"]["secretAsEnv"] if "A_KEY" in json.dumps(secret)]
    assert [pair["envVar"] for pair in given[0]["keyToEnv"]] == ["A_KEY", "B_KEY"]


def test_a_config_with_endpoints_gives_its_keys_to_evaluations(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "method: {name: decor}\ncast: {answerer: 'external:big'}\n"
        "externals: {big: {url: 'http://x/v1', model: m, key_env: BIG_KEY}, open: {url: 'http://y/v1', model: m}}\n"
    )
    run("compile", "--config", str(tmp_path / "c.yaml"), "--out", str(tmp_path / "p.yaml"))
    compiled = Compiled.read((tmp_path / "p.yaml").read_text())
    holders = {task for task, about in compiled.tasks.items() if "BIG_KEY" in json.dumps(compiled.platform[compiled.executor(about)])}
    assert holders == {"evaluate", "evaluate-2"}
