"""A stage that trains whole weights in a run of adapters."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.stages.run import Run
from rolecast.stages.team import training_team

SCRATCH = {"hidden": 16, "layers": 1, "heads": 2, "head_dim": 8, "feed_forward": 16}


def config(method: str = "search_r1", **stages: bool) -> RunConfig:
    given = {name: {"adapters": adapters} for name, adapters in stages.items()}
    return make_config({"method": {"name": method}, "model": {"scratch": SCRATCH, "lora": {"rank": 2}}, "stages": given}, "here")


@pytest.mark.parametrize("adapters", [True, False])
def test_a_stage_trains_adapters_unless_its_settings_say_otherwise(tmp_path: Path, adapters: bool) -> None:
    c = config(sft=adapters)
    sft = c.schedule[0]
    team = training_team(Run(tmp_path, c), c.method_in(sft), sft, None)
    names = [name for name, _ in team.trained("shared")]
    assert all("lora_" in name for name in names) is adapters
    assert any("embed_tokens" in name for name in names) is not adapters


def test_what_is_trained_whole_must_become_the_base() -> None:
    config("dac", sft=False)
    with pytest.raises(InputError, match=r"stages.rl.adapters: its slot 'generator' is not merged when it ends; leave adapters at true"):
        config("dac", rl=False)
