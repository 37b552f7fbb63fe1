"""The engine of a finished stage: models of this process, or files that an engine reads and must compute alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.schedule import find
from rolecast.stages import playing
from rolecast.stages.playing import finished_engine
from rolecast.stages.run import Run
from rolecast.store.artifact import writing
from rolecast.weights.canary import canary
from rolecast.weights.models import CPU
from rolecast.weights.placed import Placed
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import Casting
from tests.tiny import TOKENIZER, tiny_model, tiny_team

ONE = {"method": {"name": "decor", "condenser": "extractive"}}


class Disk:
    def __init__(self) -> None:
        self.given: list[Placed] = []

    def load(self, placed: Placed) -> None:
        self.given.append(placed)


def trained(folder: Path, config: RunConfig, adapters: bool = False) -> Run:
    run = Run(folder / "run", config)
    with writing(run.model("rl"), "model", {}) as partial:
        tiny_model(3, scale=5.0).save_pretrained(partial)
        TOKENIZER.save_pretrained(partial)
        if adapters:
            tiny_team(Casting(frozenset({"shared"}), ("shared",)), 3, LoraConfig(rank=2), 5.0).save(["shared"], partial)
    return run


def opened(run: Run) -> Any:
    stage = find(run.config.schedule, "rl")
    return finished_engine(run, run.config.method_in(stage).whole(), stage, "run/0.0", lockstep=False, externals={})


def test_models_of_this_process_speak_where_nothing_else_is_said(tmp_path: Path) -> None:
    engine, renderer = opened(trained(tmp_path, make_config(ONE, "here")))
    assert isinstance(engine, TransformersEngine)
    speaker: Any = engine._decoders["shared"]._model
    assert canary(speaker(), TOKENIZER).logprobs == pytest.approx(canary(tiny_model(3, scale=5.0), TOKENIZER).logprobs)
    assert renderer.tokenizer.get_vocab() == TOKENIZER.get_vocab()


@pytest.mark.parametrize("adapters", [True, False])
def test_an_engine_that_reads_files_is_held_to_what_transformers_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapters: bool
) -> None:
    disk = Disk()
    monkeypatch.setattr(playing, "disk_engine", lambda config, renderer: disk)
    places: list[Any] = []
    team = playing.finished_team
    monkeypatch.setattr(
        playing, "finished_team", lambda run, method, stage, place: (places.append(place), team(run, method, stage, place))[1]
    )
    run = trained(tmp_path, make_config(ONE, "here"), adapters)
    opened(run)
    [given] = disk.given
    assert (given.version, given.base, given.tokenizer) == ("run/0.0", run.model("rl"), run.model("rl"))
    assert given.adapters == {"shared": run.model("rl") / "slots" / "shared" if adapters else None}
    assert given.canaries["shared"].logprobs == pytest.approx(canary(tiny_model(3, scale=5.0), TOKENIZER).logprobs, abs=1e-4)
    assert places == [CPU]  # the GPU is the engine's


def test_what_was_merged_is_played_over_what_the_stage_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where frozen roles speak with that: it is one model with an adapter, and not two models."""
    disk = Disk()
    monkeypatch.setattr(playing, "disk_engine", lambda config, renderer: disk)
    run = trained(tmp_path, RunConfig())
    with writing(run.model("sft"), "model", {}) as partial:
        tiny_model(4, scale=5.0).save_pretrained(partial)
        TOKENIZER.save_pretrained(partial)
    with pytest.raises(InputError, match="a frozen role of rl speaks with what the stage began with"):
        opened(run)
    merged = run.model("rl") / "merged" / "shared"
    team = tiny_team(Casting(frozenset({"shared"}), ("shared",)), 4, LoraConfig(rank=2), 5.0)
    team.save(["shared"], tmp_path / "saved")
    (tmp_path / "saved" / "slots" / "shared").rename(merged.parent.mkdir() or merged)
    opened(run)
    [given] = disk.given
    assert given.base == run.model("sft")
    assert given.adapters == {"shared": merged, "frozen": None}
    assert given.canaries["frozen"].logprobs == pytest.approx(canary(tiny_model(4, scale=5.0), TOKENIZER).logprobs, abs=1e-4)


def test_two_whole_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After RL that merged, frozen roles speak with what it began with."""
    monkeypatch.setattr(playing, "disk_engine", lambda config, renderer: Disk())
    with pytest.raises(InputError, match="a frozen role of rl speaks with what the stage began with"):
        opened(trained(tmp_path, RunConfig()))
