"""The retriever's values: reranker and swap, which values-ci.yaml turns on, and a search engine in the place of the index."""

from __future__ import annotations

import json
import os
from typing import Any

import click
import jsonschema
import pytest
import typer.main
import yaml

from rolecast.cli.main import app
from rolecast.launching.render import to_yaml
from rolecast.retriever.settings import RetrieverSettings
from rolecast.service.settings import read_settings
from tests.charts import policies
from tests.charts.rendering import CHART, ROOT, Helm, Object, of_kind, pods
from tests.charts.test_chart_edges import ours
from tests.charts.traffic import End, leaves

GOLDEN = ROOT / "tests" / "golden"
LIVE = (
    "retriever.index=", "retriever.swapsFrom=", "retriever.live.engine=serper", "retriever.live.budget=5000",
    "retriever.live.existingSecret=rolecast-serper", "retriever.live.pages.enabled=true",
)  # fmt: skip
RETRIEVER = End(ours("retriever"))


def container(objects: list[Object]) -> dict[str, Any]:
    [pod] = [pod for pod in pods(of_kind(objects, "Deployment")) if pod.owner.endswith("-retriever")]
    return pod.containers[0]


def settings_of(arguments: list[str]) -> RetrieverSettings:
    """As the command reads them."""
    command: Any = typer.main.get_command(app)
    for name in arguments[:2]:
        command = command.commands[name]
    flags, *_ = command.make_parser(click.Context(command)).parse_args(list(arguments[2:]))
    return read_settings(RetrieverSettings, flags, {})


def policy(objects: list[Object]) -> Object:
    return next(item for item in of_kind(objects, "NetworkPolicy") if item["metadata"]["name"] == "team-retriever")


def test_reranker_and_swap_reach_the_command(helm4: Helm) -> None:
    read = settings_of(container(helm4.rendered("ci"))["args"])
    assert (read.reranker, read.reranker_form, read.rerank_depth) == ("/models/reranker", "yes_no", 20)
    assert (read.index, read.swaps_from, read.live) == ("s3://rolecast/ci/runs/ci/index", "s3://rolecast/ci/indexes", "")
    plain = settings_of(container(helm4.rendered("dev"))["args"])
    assert (plain.reranker, plain.swaps_from, plain.live) == ("", "", "")


def test_a_search_engine_takes_the_place_of_the_index(helm4: Helm) -> None:
    objects = helm4.rendered("ci", *LIVE)
    read = settings_of(container(objects)["args"])
    assert (read.index, read.live, read.live_budget, read.live_record) == ("", "serper", 5000, "s3://rolecast/ci/live")
    config = read.live_config()
    assert config is not None
    assert (config.budget, config.cache_seconds) == (5000, 86_400)
    assert {"name": "SERPER_API_KEY", "valueFrom": {"secretKeyRef": {"name": "rolecast-serper", "key": "SERPER_API_KEY"}}} in container(
        objects
    )["env"]
    for rule in policies.RULES:
        assert list(rule(objects)) == []
    shown = [{"args": container(objects)["args"], "env": container(objects)["env"], "policy": policy(objects)}]
    golden = GOLDEN / "retriever_live.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(to_yaml(shown))
    assert shown == list(yaml.safe_load_all(golden.read_text()))


def test_the_key_goes_to_nobody_else_and_into_no_argument(helm4: Helm) -> None:
    having = [
        pod.owner
        for pod in pods(helm4.rendered("ci", *LIVE))
        for container in pod.containers
        if "rolecast-serper" in json.dumps(container.get("env", []))
    ]
    assert having == ["Deployment team-retriever"]


def test_who_asks_an_engine_reaches_the_web_and_nothing_private(helm4: Helm) -> None:
    """A second wall behind the fetcher's own."""
    objects, before = helm4.rendered("ci", *LIVE), helm4.rendered("ci")
    web, v6 = End({}, "elsewhere", "93.184.216.34"), End({}, "elsewhere", "2606:2800:220:1::1")
    for port in (80, 443):
        assert leaves(objects, RETRIEVER, web, port)
        assert leaves(objects, RETRIEVER, v6, port)
        assert not leaves(before, RETRIEVER, web, port)
        for address in (
            "10.96.0.1",
            "172.20.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "127.0.0.1",
            "fd00::1",
            "fe80::1",
        ):
            assert not leaves(objects, RETRIEVER, End({}, "elsewhere", address), port), address
    assert not leaves(objects, RETRIEVER, web, 22)
    assert policy(before)["spec"]["policyTypes"] == ["Ingress"]


DEFAULTS = yaml.safe_load((CHART / "charts" / "retriever" / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "charts" / "retriever" / "values.schema.json").read_text())
ENGINES: dict[str, dict[str, Any]] = {
    "serper": {"budget": 10, "existingSecret": "s"},
    "jina": {"budget": 10, "existingSecret": "s"},
    "google": {"budget": 10, "existingSecret": "s", "collection": "012:abc"},
    "searxng": {"url": "http://searxng.search.svc:8080"},
    "opensearch": {"url": "https://os.search.svc:9200", "collection": "wiki"},
}


def fault(**changed: Any) -> str:
    """What the chart's schema, which Helm reads, says of the defaults with these changes."""
    live = DEFAULTS["live"] | changed.pop("live", {})
    values = DEFAULTS | {"index": ""} | changed | {"live": live}
    found = list(jsonschema.Draft7Validator(SCHEMA).iter_errors(values))
    return " ".join(f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_each_engine_wants_what_its_command_wants(engine: str) -> None:
    own = {"engine": engine, **ENGINES[engine]}
    assert fault(live=own) == ""
    for lacking in ENGINES[engine]:
        without = {key: value for key, value in own.items() if key != lacking}
        assert f"live.{lacking}" in fault(live=without)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({}, "index"),
        ({"index": "s3://bucket/i", "live": {"engine": "serper", **ENGINES["serper"]}}, "index"),
        ({"swapsFrom": "s3://bucket/i", "live": {"engine": "serper", **ENGINES["serper"]}}, "swapsFrom"),
        ({"index": "s3://bucket/i", "swapsFrom": "/folder"}, "swapsFrom"),
        ({"index": "s3://bucket/i", "reranker": {"path": "model", "form": "cross_encoder", "depth": 5}}, "reranker.path"),
        ({"index": "s3://bucket/i", "reranker": {"path": "/m", "form": "guess", "depth": 5}}, "reranker.form"),
        ({"live": {"engine": "bing"}}, "live.engine"),
        ({"live": {"engine": "serper", **ENGINES["serper"], "key": "sk-1"}}, "key"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(changed: dict[str, Any], key: str) -> None:
    assert key in fault(**changed)


def test_the_schema_knows_the_engines_of_the_command() -> None:
    known = RetrieverSettings.model_json_schema()["properties"]["live"]["enum"]
    assert SCHEMA["properties"]["live"]["properties"]["engine"]["enum"] == known
