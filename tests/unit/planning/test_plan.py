"""A whole plan: what is counted where, and what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.planning.memory import total
from rolecast.planning.plan import GIB, PROCESS, Plan, TooLargeError, as_json, make_plan, own_memory, require_fits
from rolecast.planning.table import table

SPLITS = ("train", "dev", "test")
WORLD = {"entities": dict.fromkeys(SPLITS, 30), "questions": dict.fromkeys(SPLITS, 4)}
EIGHT_B = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "tie_word_embeddings": False, "model_type": "llama",
}  # fmt: skip


def config_of(**given: Any) -> RunConfig:
    return RunConfig.model_validate({"method": {"name": "decor", "condenser": "extractive"}, "data": {"world": WORLD}, **given})


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Llama 3 8B, as far as its config goes."""
    (tmp_path / "config.json").write_text(json.dumps(EIGHT_B))
    return tmp_path


def parts_of(plan: Plan, stage: str = "rl") -> dict[str, tuple[int, str]]:
    [found] = [one for one in plan.stages if one.name == stage]
    return {part.name: (part.bytes, part.where) for part in found.parts}


def test_without_gpus_all_is_in_the_memory_of_the_process() -> None:
    plan = make_plan(config_of(), 0, 24)
    assert {where for _, where in parts_of(plan).values()} == {"host"}
    assert parts_of(plan)["process"][0] == PROCESS
    assert "engine: KV cache" in parts_of(plan)
    assert "engine: KV cache" not in parts_of(plan, "sft")  # which samples nothing
    assert not any(name.startswith("index") for name in parts_of(plan, "sft"))
    require_fits(plan)


def test_workers_sample_elsewhere() -> None:
    plan = make_plan(config_of(rollouts="workers"), 0, 24)
    assert not any(name.startswith("engine") for name in parts_of(plan))


def test_a_sharded_learner_samples_with_a_copy(large: Path) -> None:
    given = {"model": {"path": str(large), "dtype": "bfloat16"}}
    shared, apart = (make_plan(config_of(learner={"name": "deepspeed", "zero": zero}, **given), 8, 80) for zero in (2, 3))
    assert "engine: weights" not in parts_of(shared)
    assert parts_of(apart)["engine: weights"] == (8_030_261_248 * 2, "device")


def test_an_8b_model_trained_whole_needs_what_zero_says(large: Path) -> None:
    """16 bytes a parameter are 119.7 GiB of 8.03 · 10⁹: too much for one GPU of 80, and for eight of them an eighth each."""
    given: dict[str, Any] = {"model": {"path": str(large), "dtype": "bfloat16", "max_context": 2048}, "rollouts": "workers"}
    given["stages"] = {"rl": {"max_tokens": 2048}, "sft": {"steps": 0}}
    one = make_plan(config_of(learner={"name": "deepspeed", "zero": 3}, **given), 1, 80)
    states = sum(parts_of(one)[name][0] for name in ("weights, shared", "gradients", "optimizer"))
    assert states == 16 * 8_030_261_248
    with pytest.raises(TooLargeError, match=r"stage rl takes .* each GPU has 80\.0; its largest part is optimizer, 89\.7 GiB"):
        require_fits(one)
    eight = make_plan(config_of(learner={"name": "deepspeed", "zero": 3}, **given), 8, 80)
    assert sum(parts_of(eight)[name][0] for name in ("weights, shared", "gradients", "optimizer")) == 2 * 8_030_261_248
    require_fits(eight)


@pytest.mark.parametrize(
    ("given", "part", "change"),
    [
        ({"stages": {"rl": {"max_tokens": 2**18}, "sft": {"steps": 0}}}, "activations", "stages.rl.max_tokens from 262,144 to "),
        ({"engine": {"max_batch": 4096}, "stages": {"sft": {"steps": 0}}}, "engine: KV cache", "engine.max_batch from 4,096 to "),
        ({"stages": {"sft": {"max_tokens": 2**18}}}, "activations", "stages.sft.max_tokens from 262,144 to "),
    ],
)
def test_what_does_not_fit_is_named_with_what_to_change(given: dict[str, Any], part: str, change: str) -> None:
    plan = make_plan(config_of(**given), 0, 2)
    with pytest.raises(TooLargeError) as refused:
        require_fits(plan)
    said = str(refused.value)
    assert f"largest part is {part}, " in said
    assert f"change {change}" in said
    assert "\n" not in said


def sized(key: str, number: int) -> Plan:
    stages: dict[str, dict[str, int]] = {"sft": {"steps": 0}, "rl": {}}
    engine = {"max_batch": number} if key == "engine.max_batch" else {}
    stages["rl"] |= {"max_tokens": number} if key == "stages.rl.max_tokens" else {}
    return make_plan(config_of(stages=stages, engine=engine, model={"max_context": 256}), 0, 2)


@pytest.mark.parametrize(("key", "number"), [("engine.max_batch", 4096), ("stages.rl.max_tokens", 2**18)])
def test_the_number_that_is_named_fits_and_a_little_more_does_not(key: str, number: int) -> None:
    with pytest.raises(TooLargeError) as refused:
        require_fits(sized(key, number))
    fits = int(str(refused.value).rpartition(" to ")[2].removesuffix(" or less").replace(",", ""))
    require_fits(sized(key, fits))
    with pytest.raises(TooLargeError):
        require_fits(sized(key, fits + fits // 100))


def test_what_no_number_makes_fit_is_told(large: Path) -> None:
    config = config_of(model={"path": str(large), "max_context": 1024}, stages={"sft": {"steps": 0}, "rl": {"max_tokens": 2**20}})
    with pytest.raises(TooLargeError, match="and more: what is left is too large too"):
        require_fits(make_plan(config, 0, 24))


def test_a_context_that_is_longer_than_a_micro_batch_is_what_to_change() -> None:
    with pytest.raises(TooLargeError, match=r"change model\.max_context from 262,144 to "):
        require_fits(make_plan(config_of(model={"max_context": 2**18}, rollouts="workers"), 0, 2))


def test_vllm_takes_its_share_of_a_gpu(large: Path) -> None:
    """Half of 80 GiB, or what weights and one context need: 8.03 · 10⁹ × 2 and 2048 × 131,072 bytes."""
    given = {
        "model": {"path": str(large), "dtype": "bfloat16", "max_context": 2048},
        "stages": {"sft": {"steps": 0}, "rl": {"max_tokens": 2048}},
    }
    config = config_of(learner={"name": "deepspeed", "zero": 3}, **given)
    for share, taken in ((0.5, 40 * GIB), (0.1, 8_030_261_248 * 2 + 2048 * 131_072)):
        engine = SimpleNamespace(name="vllm", max_batch=256, memory=share)
        found = parts_of(make_plan(config.model_copy(update={"engine": engine}), 8, 80))
        assert {name: part for name, part in found.items() if name.startswith("engine")} == {"engine: its share": (taken, "device")}
    served = make_plan(config.model_copy(update={"engine": SimpleNamespace(name="vllm_http")}), 8, 80)
    assert not any(name.startswith("engine") for name in parts_of(served))


def test_an_index_that_does_not_fit_is_one_of_the_parts() -> None:
    plan = make_plan(config_of(retriever={"kind": "dense"}), 0, 16, passages=21_000_000)
    with pytest.raises(TooLargeError, match=r"largest part is index: vectors, 30\.0 GiB"):
        require_fits(plan)


def test_gpus_say_how_much_they_have() -> None:
    with pytest.raises(InputError, match="--gpus 2: say how much memory each of them has"):
        make_plan(config_of(), 2)


def test_this_machine_says_how_much_it_has(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       2048 kB\nMemFree: 1 kB\n")
    assert own_memory(tmp_path / "meminfo", tmp_path) == 2048 * 1024
    (tmp_path / "memory.max").write_text("1048576\n")
    assert own_memory(tmp_path / "meminfo", tmp_path) == 2**20
    (tmp_path / "memory.max").write_text("max\n")
    assert own_memory(tmp_path / "meminfo", tmp_path) == 2**21
    with pytest.raises(InputError, match="give --memory"):
        own_memory(tmp_path / "nothing")
    assert make_plan(config_of(), 0).memory == own_memory() > GIB


def test_disk_by_hand() -> None:
    """Two checkpoints and one that is written, each of weights and two moments in float32; the best model; the stage's own."""
    plan = make_plan(config_of(stages={"sft": {"steps": 0}}), 0, 24)
    assert plan.disk == plan.shape.parameters * (12 * 3 + 4 + 4)
    workers = make_plan(config_of(stages={"sft": {"steps": 0}}, rollouts="workers"), 0, 24)
    assert workers.disk - plan.disk == 3 * 4 * plan.shape.parameters


def test_a_stage_that_is_not_trained_takes_nothing_of_training() -> None:
    plan = make_plan(config_of(stages={"sft": {"steps": 0}}), 0, 24)
    assert set(parts_of(plan, "sft")) == {"process"}


def test_the_object_and_the_table_say_the_same() -> None:
    plan = make_plan(config_of(), 0, 24)
    told, text = json.loads(json.dumps(as_json(plan))), table(plan)
    stage = told["stages"]["rl"]
    assert stage["host_bytes"] == sum(part["bytes"] for part in stage["parts"]) == total(plan.stages[1].parts, "host")
    assert told["model"]["parameters"] == plan.shape.parameters
    assert f"{plan.shape.parameters:,} parameters" in text
    assert f"{told['work']['rl']['sampled']:,}" in text
    assert f"{stage['host_bytes'] / GIB:.3f} GiB" in text
    assert "give --tokens-per-second" in text
