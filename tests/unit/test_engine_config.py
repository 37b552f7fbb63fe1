"""`engine` of a config: which one, what it means for a run's identity, and what it cannot play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig, make_config, read_json_config
from rolecast.errors import InputError
from rolecast.identity import changes
from rolecast.rollout.engines.settings import TransformersConfig, VllmConfig, VllmHttpConfig, read_engine

ONE = {"name": "decor", "condenser": "extractive"}  # whose roles share one slot
HTTP = {"name": "vllm_http", "url": "https://models.example/v1/", "model": "m"}


def config(engine: Any, method: Any = ONE, **other: Any) -> RunConfig:
    return make_config({"engine": engine, "method": method, **other}, "here")


def test_configs_from_before_there_were_several_mean_the_same_run() -> None:
    assert config({"max_batch": 7}).engine == TransformersConfig(max_batch=7)
    assert RunConfig().engine == TransformersConfig()
    assert config({}).fingerprint == config({"name": "transformers", "in_flight": 9}).fingerprint
    assert RunConfig().fingerprint == "c7852fa60d52"  # of runs that were made then: it may change only where what is computed does


def test_each_engine_has_its_own_keys() -> None:
    assert isinstance(config({"name": "vllm", "dtype": "bfloat16"}).engine, VllmConfig)
    http = config(HTTP, {"name": "naive_rag"}).engine
    assert isinstance(http, VllmHttpConfig)
    assert http.url == "https://models.example"
    read = config({"name": "vllm", "max_loras": 2})
    assert read_json_config(read.model_dump_json()) == read


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ({"name": "vllm", "rows": 3}, "engine.rows: unknown key"),
        ({"name": "vllm", "max_batch": 0}, "engine.max_batch: "),
        ({"name": "sglang"}, "engine: its name is transformers, vllm or vllm_http"),
        ({"memory": 0.5}, "engine.memory: unknown key"),
        ({**HTTP, "url": "models.example"}, "engine.url: give an http"),
    ],
)
def test_a_fault_is_one_line_with_the_key(engine: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError) as caught:
        config(engine)
    assert str(caught.value).startswith(f"here: {reason}")


def test_who_samples_and_how_precisely_is_computed_and_how_it_is_run_is_not() -> None:
    plain = config({"name": "vllm"})
    assert plain.fingerprint != config({}).fingerprint
    for other, part in (
        ({"dtype": "bfloat16"}, "result"),
        ({"seeds": True}, "result"),
        ({"max_batch": 8}, "shape"),
        ({"memory": 0.3}, "how"),
    ):
        found = config({"name": "vllm", **other})
        assert [change.part for change in changes(plain, found)] == [part]
        assert (found.fingerprint == plain.fingerprint) == (part != "result")


LORA = {"lora": {"rank": 32}}
TEAM = {"name": "dac"}


@pytest.mark.parametrize(
    ("engine", "other", "reason"),
    [
        ({"name": "vllm"}, {"lockstep": True}, "lockstep: a run repeats to the last bit, and vllm puts into one batch"),
        (HTTP, {}, "stage rl wants its weights swapped; set engine.name to vllm"),
        (
            {"name": "vllm"},
            {"method": {"name": "decor", "condenser": "model"}},
            "stage rl trains whole models, and frozen, shared speak in it",
        ),
        ({"name": "vllm", "max_lora_rank": 16}, {"model": LORA}, "model.lora.rank is 32, and engine.max_lora_rank 16"),
        ({"name": "vllm"}, {"model": {"lora": {"targets": ["q_proj", "lm_head"]}}}, "model.lora.targets names lm_head"),
        ({"name": "vllm", "max_loras": 1}, {"method": TEAM, "model": LORA}, "slots have adapters"),
    ],
)
def test_what_an_engine_cannot_play_is_refused_before_anything_is_trained(
    engine: dict[str, Any], other: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        config(engine, **{"method": ONE, **other})


def test_adapters_of_several_slots_are_played() -> None:
    assert config({"name": "vllm", "max_lora_rank": 32}, {"name": "decor", "condenser": "model"}, model=LORA).model.lora is not None


@pytest.mark.parametrize(
    ("model", "own", "found"), [("float32", None, "float32"), ("float32", "bfloat16", "bfloat16"), ("bfloat16", None, "bfloat16")]
)
def test_the_gate_expects_what_the_narrowest_dtype_explains(model: str, own: str | None, found: str) -> None:
    assert config({"name": "vllm", "dtype": own}, model={"dtype": model}).sampled_in == found


def test_an_agent_s_engine_is_read_from_a_file_of_its_own(tmp_path: Path) -> None:
    assert read_engine("") is None
    file = tmp_path / "engine.yaml"
    file.write_text("{name: vllm_http, url: 'http://predictor:8000/v1', model: base}")
    found = read_engine(str(file))
    assert isinstance(found, VllmHttpConfig)
    assert found.url == "http://predictor:8000"
    file.write_text("{name: vllm_http, url: 'http://predictor:8000', modle: base}")
    with pytest.raises(InputError, match=r"engine.yaml: (model: Field required|modle: unknown key)"):
        read_engine(str(file))
