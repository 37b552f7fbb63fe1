"""How long a run takes: from rates that the user gives, or from what an earlier run took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.planning.work import Work
from rolecast.stage_settings import RlConfig, SftConfig
from rolecast.stages.metrics import read_metrics
from rolecast.stages.run import Run
from rolecast.stages.working import seconds


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens a second: that an engine samples, with what it reads; that a learner takes through scoring and update."""

    sampling: float
    training: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What an earlier run took: `seconds` of one row of SFT, of one trained episode of RL or of one evaluated question, by stage; and what
    an episode of RL had on average."""

    run: str
    seconds: Mapping[str, float]
    sampled: Mapping[str, float]
    searches: Mapping[str, float]
    judged: Mapping[str, float]


def read_rates(text: str) -> Rates:
    """`SAMPLING,TRAINING`."""
    try:
        sampling, training = map(float, text.split(","))
    except ValueError:
        raise InputError(f"--tokens-per-second {text}: give two numbers, of sampling and of training, as 20000,90000") from None
    if not (0 < sampling < 1e12 and 0 < training < 1e12):
        raise InputError(f"--tokens-per-second {text}: both are to be more than 0")
    return Rates(sampling, training)


def measured(run: Run) -> Measured:
    """From metrics.jsonl and seconds.json. Raises InputError where no stage has both."""
    spent = seconds(run)
    each: dict[str, float] = {}
    means: dict[str, dict[str, float]] = {"sampled": {}, "searches": {}, "judged": {}}
    for stage in run.config.schedule:
        settings = run.config.stages[stage.name]
        file = run.recall(run.stage(stage.name) / "metrics.jsonl")
        rows = read_metrics(file.parent) if file.exists() else []
        if not rows or stage.name not in spent:
            continue
        steps = rows[-1]["step"]
        if isinstance(settings, SftConfig):
            each[stage.name] = spent[stage.name] / ((steps + 1) * settings.batch)
        elif isinstance(settings, RlConfig) and steps:
            episodes = steps * settings.questions * settings.group
            each[stage.name] = spent[stage.name] / episodes
            for name, key in (("sampled", "tokens/sampled"), ("searches", "cost/searches"), ("judged", "cost/judge_calls")):
                if rows[-1].get(key) is not None:
                    means[name][stage.name] = rows[-1][key] / episodes
        if f"eval_{stage.name}" in spent and run.manifest(run.evaluation(stage.name)) is not None:
            each[f"eval {stage.name}"] = spent[f"eval_{stage.name}"] / run.config.eval.n
    if not each:
        raise InputError(f"--like {run.place}: no stage of it has metrics and seconds yet; name a run that has trained")
    return Measured(run.place, each, **means)


def seconds_of(config: RunConfig, works: Sequence[Work], rates: Rates | Measured | None) -> dict[str, float]:
    """By stage; those that nothing is known of are left out."""
    found = {}
    for work in works:
        if isinstance(rates, Rates) and work.sampled is not None and work.trained is not None:
            found[work.name] = work.sampled / rates.sampling + work.trained / rates.training
        elif isinstance(rates, Measured) and work.name in rates.seconds:
            found[work.name] = rates.seconds[work.name] * _units(config, work)
    return found


def _units(config: RunConfig, work: Work) -> int:
    """Rows, trained episodes, or questions."""
    settings = config.stages.get(work.name)
    if isinstance(settings, SftConfig):
        return settings.steps * settings.batch
    if isinstance(settings, RlConfig):
        return settings.steps * settings.questions * settings.group
    return work.episodes
