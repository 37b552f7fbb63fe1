"""What a config says of endpoints and of who speaks through them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.externals import ExternalConfig
from rolecast.identity import changes
from rolecast.methods.registry import make_method
from rolecast.schedule import check, find
from rolecast.types import Objective, PolicyTerm, Stage

FAR = {"url": "https://far.example/v1/", "model": "far-1", "key_env": "FAR_KEY"}


def config(**keys: Any) -> RunConfig:
    return make_config({"externals": {"far": FAR}, "cast": {"answerer": "external:far"}, **keys}, "here")


def refusal(**keys: Any) -> str:
    with pytest.raises(InputError) as caught:
        config(**keys)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_cast_role_speaks_through_its_endpoint_in_every_stage() -> None:
    c = config()
    for stage in c.schedule:
        method = c.method_in(stage)
        assert {role.name: role.slot for role in method.roles.values()} == {
            "planner": "shared", "filter": "shared", "answerer": "external:far", "condenser": "frozen",
        }  # fmt: skip
        assert method.spoken == {"shared", "frozen"}
        assert c.externals_of(method) == {"far": c.externals["far"]}
    assert c.externals["far"].url == "https://far.example/v1"


def test_endpoints_that_nobody_speaks_through_are_not_asked_for() -> None:
    c = config(cast={})
    assert c.externals_of(c.method_in(find(c.schedule, "rl"))) == {}


def test_a_role_may_be_frozen() -> None:
    c = config(cast={"answerer": "frozen"})
    assert c.method_in(find(c.schedule, "rl")).roles["answerer"].slot == "frozen"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"cast": {"judge": "external:far"}}, "cast: decor has no role 'judge'; it has planner, filter, answerer, condenser"),
        ({"cast": {"answerer": "external:near"}}, "role answerer of decor speaks through external:near, and externals has no 'near'"),
        ({"cast": {"answerer": "planner"}}, "cast.answerer: "),
        ({"cast": {"answerer": "external:"}}, "cast.answerer: "),
        ({"lockstep": True}, "external:far promises no such thing; set lockstep to false"),
        (
            {"cast": dict.fromkeys(("planner", "filter", "answerer"), "external:far")},
            "nobody who speaks with 'shared', which stage sft trains",
        ),
        (
            {"stages": {"sft": {"mix": {"planner": 0.5, "answerer": 0.5}}}},
            "stages.sft.mix: answerer speaks with external:far, which is not trained",
        ),
        ({"externals": {"Far": FAR}}, "externals"),
        ({"externals": {"far": {**FAR, "key": "sk-1"}}}, "externals.far.key: unknown key"),
        ({"externals": {"far": {**FAR, "key_file": "k"}}}, "externals.far: "),
        ({"externals": {"far": {**FAR, "url": "far.example"}}}, "externals.far.url: "),
        ({"externals": {"far": {**FAR, "url": "https://me:sk-1@far.example/v1"}}}, "an address holds no user, key or query"),
        ({"externals": {"far": {**FAR, "url": "https://far.example/v1?api_key=sk-1"}}}, "an address holds no user, key or query"),
        ({"externals": {"far": {**FAR, "request": {"stop": ["x"]}}}}, "stop is set for each request"),
    ],
)
def test_what_cannot_work_is_said_before_any_work(keys: dict[str, Any], reason: str) -> None:
    text = refusal(**keys)
    assert reason in text
    assert "sk-1" not in text


def test_where_an_endpoint_is_may_change_and_what_it_is_may_not() -> None:
    parts = {
        change.key: change.part
        for other in (
            {"url": "http://other/v1"}, {"key_env": "OTHER"}, {"key_env": None, "key_file": "f"}, {"timeout": 1.0}, {"patience": 1.0}, {"concurrency": 1},
            {"model": "far-2"}, {"request": {"top_k": 1}},
        )
        for change in changes(config(), config(externals={"far": {**FAR, **other}}))
    }  # fmt: skip
    result = {"externals.far.model", "externals.far.request"}
    assert {key for key, part in parts.items() if part == "result"} == result
    assert {part for key, part in parts.items() if key not in result} == {"how"}
    assert len(parts) == 8
    assert config().fingerprint == config(externals={"far": {**FAR, "url": "http://other/v1"}}).fingerprint
    assert config().fingerprint != config(cast={}).fingerprint


def test_the_key_is_no_part_of_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", "sk-very-secret")
    c = config()
    assert c.externals["far"].key("far") == "sk-very-secret"
    assert "sk-very-secret" not in json.dumps(c.model_dump(mode="json")) + repr(c)


@pytest.mark.parametrize(
    ("held", "reason"), [("", "holds no key"), (" \n", "holds no key"), ("sk ü", "holds what is no key"), ("a b", "holds what is no key")]
)
def test_what_is_no_key_is_not_quoted(held: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(held)
    with pytest.raises(InputError, match=reason) as caught:
        ExternalConfig(url="http://x", model="m", key_file=str(file)).key("far")
    assert not held.strip() or held not in str(caught.value).replace(str(file), "")


def test_a_key_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"externals.far: its key file /nowhere/key cannot be read"):
        ExternalConfig(url="http://x", model="m", key_file="/nowhere/key").key("far")


def test_no_stage_trains_an_endpoint() -> None:
    objective = Objective("o", "external:far", 1e-3, "group", PolicyTerm())
    with pytest.raises(ValueError, match="trains 'external:far', which is no weights of the team"):
        check((Stage("rl", "rl", objectives=(objective,)),))


def test_a_baseline_may_be_played_by_an_endpoint_alone() -> None:
    c = config(method={"name": "react"}, cast={"actor": "external:far"}, stages={"sft": {"steps": 0}})
    assert c.method_in(find(c.schedule, "sft")).spoken == frozenset()
    assert make_method(c.method).spoken == {"shared"}
