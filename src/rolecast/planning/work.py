"""What a run does, counted before it is done: episodes, replies, tokens, searches, judge calls. Upper bounds, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from rolecast.config import RunConfig
from rolecast.judge.lexical import LEXICAL
from rolecast.methods.base import Method, Spoken
from rolecast.schedule import trained
from rolecast.stage_settings import RlConfig, RolloutConfig, SftConfig
from rolecast.stages.budget import trained_roles
from rolecast.types import Stage


@dataclass(frozen=True, slots=True)
class Work:
    """Of one stage, or one evaluation. None where the method gives no bound. `trained`: tokens that updates run over, in all epochs."""

    name: str
    kind: str
    steps: int = 0
    episodes: int = 0
    replies: int | None = None
    sampled: int | None = None
    counted: int | None = None  # of `sampled`, what a budget counts
    searches: int | None = None
    judged: int | None = None
    trained: int | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """One, at most; with probes, as training has them."""

    replies: int
    sampled: int
    counted: int
    searches: int
    judged: int
    tokens: int  # of all of its contexts


def work_of(config: RunConfig) -> list[Work]:
    """Every stage in order, and the evaluation of each model."""
    found = []
    for stage in config.schedule:
        found.append(_of_stage(config, stage))
    return [*found, *(_evaluation(config, stage) for stage in trained(config.schedule))]


def episode_of(config: RunConfig, stage: Stage, method: Method, probes: bool) -> Episode | None:
    """A reply is as long as it may be, and a context as long as the model's."""
    most = method.most
    if most is None:
        return None
    longest, own = config.model.max_context, trained_roles(config, stage)
    kinds: list[Mapping[str, Spoken]] = [most.said, *([most.probes] if probes else [])]
    replies = sampled = counted = tokens = 0
    for said in kinds:
        for role, spoken in said.items():
            if role in method.silent:
                continue
            new = spoken.contexts * min(spoken.replies * method.roles[role].max_tokens, longest)
            replies += spoken.contexts * spoken.replies
            sampled += new
            counted += new if role in own else 0
            tokens += spoken.contexts * longest
    return Episode(replies, sampled, counted, most.searches, most.judged, tokens)


def _of_stage(config: RunConfig, stage: Stage) -> Work:
    settings, method = config.stages[stage.name], config.method_in(stage)
    if isinstance(settings, SftConfig):
        rows = settings.steps * settings.batch
        return Work(stage.name, "sft", settings.steps, 0, 0, 0, 0, 0, 0, rows * config.model.max_context)
    if isinstance(settings, RolloutConfig):
        train, dev = (_questions(config, split, limit) for split, limit in (("train", settings.questions), ("dev", settings.dev)))
        return _played(Work(stage.name, "rollout"), train * settings.samples + dev, episode_of(config, stage, method, True))
    assert isinstance(settings, RlConfig)
    episodes = settings.steps * settings.questions * settings.group
    one = episode_of(config, stage, method, True)
    greedy = (ceil(settings.steps / settings.eval_every) + 1) * settings.dev if settings.steps else 0
    work = _played(Work(stage.name, "rl", settings.steps), episodes * (settings.refill + 1), one)
    if config.budget is not None and work.counted is not None and work.sampled is not None:  # it ends at the step that passes it
        overshoot = settings.questions * settings.group * (settings.refill + 1) * (one.counted if one else 0)
        spared = max(0, work.counted - config.budget - overshoot)
        work = replace(work, counted=work.counted - spared, sampled=work.sampled - spared)
    inner = _played(Work("", ""), greedy, episode_of(config, stage, method, False))
    epochs = max((objective.epochs for objective in stage.objectives), default=1)
    return replace(
        work, episodes=work.episodes + greedy, replies=_sum(work.replies, inner.replies), sampled=_sum(work.sampled, inner.sampled),
        searches=_sum(work.searches, inner.searches), judged=_sum(work.judged, inner.judged),
        trained=episodes * one.tokens * epochs if one is not None else None,
    )  # fmt: skip


def _evaluation(config: RunConfig, stage: Stage) -> Work:
    method = config.method_in(stage).whole()
    count = min(config.eval.n, _questions(config, "test", None))
    return _played(Work(f"eval {stage.name}", "eval", trained=0), count, episode_of(config, stage, method, "eval" in method.probed))


def _played(work: Work, episodes: int, one: Episode | None) -> Work:
    if one is None:
        return replace(work, episodes=episodes)
    return replace(
        work, episodes=episodes, replies=episodes * one.replies, sampled=episodes * one.sampled, counted=episodes * one.counted,
        searches=episodes * one.searches, judged=episodes * one.judged,
    )  # fmt: skip


def _questions(config: RunConfig, split: str, limit: int | None) -> int:
    """Of a split: those of a world of one's own, or lines of its file."""
    given = getattr(config.data, split)
    if given is None:
        assert config.data.world is not None
        count = config.data.world.questions.get(split, 0)
    elif not Path(given).is_file():
        return limit or 0
    else:
        with Path(given).open("rb") as lines:
            count = sum(1 for line in lines if line.strip())
    return min(count, limit) if limit is not None else count


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def asked_judge(config: RunConfig) -> str:
    """Who is asked: rules of this package cost nothing."""
    return "rules of this package" if config.judge.model == LEXICAL.model else config.judge.model
