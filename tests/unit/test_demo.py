"""`rolecast demo` takes its presets from the method's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecast.cli.demo import demo, plan
from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.stage_settings import RolloutConfig


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, RunConfig]]:
    """What would have been run, and where."""
    runs: list[tuple[Path, RunConfig]] = []
    monkeypatch.setattr("rolecast.launching.local_pipeline.run_local", lambda path, config, procs: runs.append((path, config)))
    monkeypatch.setattr("rolecast.evaluation.table.print_summary", lambda path: None)
    monkeypatch.setattr("rolecast.weights.models.check_model", lambda path: None)
    return runs


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "demo"),
        ({"preset": "small_model"}, "demo-small-model"),
        ({"method": "search_r1"}, "demo-search-r1-grpo"),
        ({"method": "search_r1", "algorithm": "ppo"}, "demo-search-r1-ppo"),
        ({"method": "search_r1", "preset": "ppo"}, "demo-search-r1-ppo"),
        ({"model": Path("m")}, "demo-small-model"),
        ({"model": Path("m"), "preset": "demo"}, "demo"),
    ],
)
def test_the_preset_is_the_methods_first_or_the_one_named(
    started: list[tuple[Path, RunConfig]], options: dict[str, object], name: str
) -> None:
    demo(**options)  # type: ignore[arg-type]
    [(path, config)] = started
    assert (path, config.name) == (Path("runs") / name, name)
    assert config.model.path == (str(Path("m").resolve()) if "model" in options else None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"method": "decr"}, "unknown method 'decr'; known: .*decor, .*search_r1"),
        ({"method": "direct"}, "method direct has no presets; write a config"),
        ({"algorithm": "ppo"}, "method decor has no preset 'ppo'; it has demo, small_model"),
        ({"method": "search_r1", "algorithm": "dpo"}, "method search_r1 has no preset 'dpo'; it has grpo, ppo"),
        ({"method": "search_r1", "preset": "ppo", "algorithm": "grpo"}, "name two presets"),
        ({"method": "search_r1", "model": Path("m")}, "--model needs a preset small_model, which search_r1 lacks"),
    ],
)
def test_a_preset_that_is_not_there_is_named(started: list[tuple[Path, RunConfig]], options: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        demo(**options)  # type: ignore[arg-type]
    assert started == []


def test_the_plan_says_what_each_stage_does() -> None:
    config = RunConfig()
    config.stages.update(plans=RolloutConfig(samples=2), some=RolloutConfig(questions=9))
    assert plan(config) == (
        "sft 1000 steps of 16 rows, rl 200 steps of 8 questions × 8 rollouts, plans of all questions × 2 rollouts, some of 9 questions × 1 rollouts"
    )
