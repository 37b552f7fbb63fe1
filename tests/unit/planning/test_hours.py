"""Hours, from rates that are given and from what an earlier run took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.planning.hours import Rates, measured, read_rates, seconds_of
from rolecast.planning.work import Work, work_of
from rolecast.stages.run import Run, create
from rolecast.store.artifact import writing


def config_of(steps: int = 10, **rl: Any) -> RunConfig:
    stages = {"sft": {"steps": steps, "batch": 4}, "rl": {"steps": steps, "questions": 2, "group": 4, **rl}}
    return RunConfig.model_validate({"method": {"name": "decor"}, "stages": stages, "eval": {"n": 20}})


def test_rates_by_hand() -> None:
    work = Work("rl", "rl", sampled=600, trained=4000)
    assert seconds_of(config_of(), [work], Rates(200.0, 1000.0)) == {"rl": 3.0 + 4.0}
    assert seconds_of(config_of(), [Work("rl", "rl")], Rates(200.0, 1000.0)) == {}  # of what has no bound nothing is known
    assert seconds_of(config_of(), [work], None) == {}


@pytest.mark.parametrize("text", ["1000", "1000,", "a,b", "0,1000", "1000,-1", "nan,1", "inf,1", "1,2,3"])
def test_rates_are_two_numbers(text: str) -> None:
    with pytest.raises(InputError, match="--tokens-per-second"):
        read_rates(text)


def earlier(path: Path, seconds: dict[str, float]) -> Run:
    """10 steps of either stage: 40 rows of SFT, 80 episodes of RL."""
    run = create(path, config_of())
    rows = {"sft": [{"step": 0, "nll": 2.0}, {"step": 9, "nll": 1.0}], "rl": [
        {"step": 10, "tokens/sampled": 8000, "cost/searches": 160, "cost/judge_calls": 400}]}  # fmt: skip
    for stage, lines in rows.items():
        run.stage(stage).mkdir()
        (run.stage(stage) / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run.path / "seconds.json").write_text(json.dumps(seconds))
    with writing(run.evaluation("rl"), "evaluation", {}) as partial:
        (partial / "result.json").write_text("{}")
    return run


def test_an_earlier_run_says_what_a_row_and_an_episode_took(tmp_path: Path) -> None:
    found = measured(earlier(tmp_path / "run", {"sft": 20.0, "rl": 160.0, "eval_rl": 10.0, "eval_sft": 3.0}))
    assert found.seconds == {"sft": 0.5, "rl": 2.0, "eval rl": 0.5}  # the evaluation of SFT has not ended
    assert (found.sampled, found.searches, found.judged) == ({"rl": 100.0}, {"rl": 2.0}, {"rl": 5.0})
    config = config_of(30, refill=3)
    assert seconds_of(config, work_of(config), found) == {"sft": 30 * 4 * 0.5, "rl": 30 * 8 * 2.0, "eval rl": 20 * 0.5}


def test_a_run_that_has_not_trained_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no stage of it has metrics and seconds"):
        measured(create(tmp_path / "run", config_of()))
