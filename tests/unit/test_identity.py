"""Which settings decide what a run computes, and which only say how it is run."""

from __future__ import annotations

from typing import Any

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.identity import Change, changes, digest, settings

HOW = {
    "retriever.index": "s3://bucket/an/index", "retriever.url": "http://retriever:8080", "retriever.patience": 5.0,
    "judge.url": "http://judge:8080", "judge.patience": 5.0, "stages.sft.model": "runs/other/sft/model", "stages.sft.checkpoint_every": 7,
    "stages.rl.keep": 7, "stages.rl.lease_seconds": 7.0, "stages.rl.lease_tries": 7, "stages.rl.traces": 7, "stages.rl.record": True,
}  # fmt: skip
SHAPE = {
    "engine.max_batch": 7, "engine.in_flight": 7, "threads": 7, "learner.zero": 1, "rollouts": "workers", "stages.rl.max_tokens": 4096,
}  # fmt: skip
SEGMENT = {"stages.rl.questions": 7, "stages.rl.refill": 7, "stages.rl.steps": 7, "stages.rl.idle_steps": 7, "stages.sft.steps": 7}
RESULT = {
    "seed": 7, "name": "other", "lockstep": True, "judge.model": "some-model", "retriever.kind": "dense", "retriever.encoder": "e",
    "model.max_context": 2048, "method.alpha": 0.5, "stages.rl.group": 7, "stages.rl.temperature": 0.5, "stages.rl.eval_every": 7,
    "stages.rl.guard.patience": 7, "stages.rl.optimizer.name": "sgd", "stages.sft.lr": 0.5, "stages.sft.errors.stop_early": 0.5, "eval.n": 7,
    "data.world.questions": {"train": 7}, "stages.rl.optimizers": {"shared": {"name": "sgd"}}, "stages.rl.staleness": 1, "stages.sft.errors.faultless": 0.5,
}  # fmt: skip


def with_setting(key: str, value: Any) -> RunConfig:
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    if key.startswith("method"):
        nested["method"]["name"] = "decor"
    return make_config(nested, "here")


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [(k, v, part) for part, keys in (("how", HOW), ("shape", SHAPE), ("segment", SEGMENT), ("result", RESULT)) for k, v in keys.items()],
)
def test_every_setting_has_its_part(key: str, value: Any, part: str) -> None:
    found = changes(RunConfig(), with_setting(key, value))
    assert found
    assert {change.part for change in found} == {part}
    assert all(change.key.startswith(key.rpartition(".")[0]) for change in found)


@pytest.mark.parametrize(("key", "value"), [*HOW.items(), *SHAPE.items()])
def test_a_fingerprint_does_not_tell_how_a_run_is_run(key: str, value: Any) -> None:
    assert with_setting(key, value).fingerprint == RunConfig().fingerprint


@pytest.mark.parametrize(("key", "value"), [*RESULT.items(), *SEGMENT.items()])
def test_a_fingerprint_tells_what_is_computed(key: str, value: Any) -> None:
    assert with_setting(key, value).fingerprint != RunConfig().fingerprint


def test_a_change_is_told_with_both_values() -> None:
    [change] = changes(RunConfig(), with_setting("stages.rl.questions", 16))
    assert change == Change("stages.rl.questions", 8, 16, "segment")
    assert str(change) == "stages.rl.questions from 8 to 16"


def test_a_section_that_comes_is_a_change_of_what_is_computed() -> None:
    found = changes(RunConfig(), with_setting("model.lora", {"rank": 4}))
    assert [(change.key, change.before, change.after, change.part) for change in found][:1] == [("model.lora.rank", None, 4, "result")]
    assert {change.key.rpartition(".")[0] for change in found} == {"model.lora"}


def test_settings_have_every_value_once() -> None:
    found = settings(RunConfig())
    assert found["retriever.patience"] == ("how", 120.0)
    assert found["seed"] == ("result", 0)
    assert found["learner"] == ("shape", {"name": "plain", "zero": 2, "offload": False, "compile": False, "recompute": False})
    assert not [key for key in found if key.startswith("learner.")]


def test_a_digest_is_that_of_the_values() -> None:
    assert digest(RunConfig()) == digest(make_config(RunConfig().model_dump(mode="json"), "here"))
