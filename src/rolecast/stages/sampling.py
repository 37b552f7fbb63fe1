"""A step's batch of groups: which questions, how often again, and what can be said about them."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import isfinite
from typing import Any

import numpy as np

from rolecast.config import RunConfig
from rolecast.credit import group_advantages
from rolecast.errors import EmptyUpdateError, InputError
from rolecast.evaluation import tasks
from rolecast.evaluation.cost import Cost, cost_of
from rolecast.evaluation.metrics import valid_share
from rolecast.evaluation.tasks import QA, Task, means, right_by
from rolecast.learner.tally import Metrics
from rolecast.methods.base import Method
from rolecast.ports import Sampling
from rolecast.rollout.collect import Episode
from rolecast.rollout.rollouts import Rollouts
from rolecast.seeding import stream
from rolecast.stages.budget import trained_roles
from rolecast.teachers.kept import in_form
from rolecast.types import Example, Question, Stage, Status, Trajectory, Unit, endpoint_of
from rolecast.weights.team import FROZEN

SOLVED = 0.95  # mean score of rollouts whose questions have nothing left to teach


class NothingLearnedError(EmptyUpdateError):
    """No group of a step can be learned from. `solved`: because the rollouts are right."""

    def __init__(self, message: str, solved: bool) -> None:
        super().__init__(message)
        self.solved = solved


@dataclass(frozen=True, slots=True)
class Credited:
    """One question's rollouts with what each of them earned: credit is given once."""

    trajectories: list[Trajectory]
    units: list[Unit]
    examples: list[Example]


@dataclass(frozen=True, slots=True)
class Batch:
    groups: list[Credited]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [t for group in self.groups for t in group.trajectories]

    @property
    def units(self) -> list[Unit]:
        return [unit for group in self.groups for unit in group.units]

    @property
    def examples(self) -> list[Example]:
        return [example for group in self.groups for example in group.examples]


@dataclass(slots=True)
class Sampler:
    """Draws questions and has them played. `cost` and `dropped` count over the whole stage."""

    config: RunConfig
    stage: Stage
    rollouts: Rollouts
    questions: Sequence[Question]
    cost: Cost = field(default_factory=Cost)
    dropped: int = 0  # groups without variance

    def sample(self, step: int) -> tuple[Batch, Metrics]:
        """Groups of rollouts. With dynamic sampling, groups without variance are drawn again from other questions; without
        it, a whole step is, if nothing of it can be learned from."""
        c = self.config.rl(self.stage.name)
        cancelled = 0
        if c.oversample:
            kept, drawn, cancelled = self._streamed(step)
        else:
            kept, drawn = self._in_rounds(step)
        self.settle()
        if not kept:
            task = tasks.find(self.stage.task)
            raise NothingLearnedError(f"step {step}, after {c.refill + 1} rounds: {nothing_learned(drawn, task)}", solved(drawn, task))
        dropped = len(drawn) - len(kept)
        self.dropped += dropped
        return Batch(kept), {
            "groups": float(len(kept)),
            "groups/dropped": float(dropped),
            **({"groups/cancelled": float(cancelled)} if c.oversample else {}),
            **self.told(),
            **self._mishaps(),
        }

    def _in_rounds(self, step: int) -> tuple[list[Credited], list[Credited]]:
        """(groups to learn from, all that were drawn): a round asks for what the ones before it did not give."""
        c, mode = self.config.rl(self.stage.name), self.rollouts.method.dynamic_sampling
        kept: list[Credited] = []
        drawn: list[Credited] = []
        for round_ in range(c.refill + 1):
            groups = self._groups(step, round_, c.questions - len(kept))
            drawn += groups
            if mode == "off":
                kept += groups if any(map(self._teaches, groups)) else []
            else:
                kept += [g for g in map(self._imperfect, groups) if self._teaches(g)]
            if len(kept) == c.questions or (mode == "off" and kept):
                break
        return kept, drawn

    def _streamed(self, step: int) -> tuple[list[Credited], list[Credited], int]:
        """As `_in_rounds`, without waiting for the slowest group of a round, and how many were cancelled.

        At any time as many groups play as are missing, and `oversample` more. They come in the order of the rounds, and so many at most.
        What was sampled of cancelled groups is in the cost.
        """
        c = self.config.rl(self.stage.name)
        first, sampling, phase = self._first(step)
        waiting = deque(self._pool(step)[len(first) :])
        order = {group[0].group: number for number, group in enumerate(self._pool(step))}
        kept: dict[int, Credited] = {}
        drawn: list[Credited] = []
        playing = len(first)

        def take(group: Sequence[Trajectory]) -> list[Episode] | None:
            nonlocal playing
            playing -= 1
            self.cost += cost_of(group, trained_roles(self.config, self.stage))
            if group and len(kept) < c.questions:
                credited = self._credited(list(group))
                drawn.append(credited)
                if self._teaches(imperfect := self._imperfect(credited)):
                    kept[order[group[0].group]] = imperfect
            if len(kept) == c.questions:
                return None
            new = [waiting.popleft() for _ in range(min(len(waiting), c.questions - len(kept) + c.oversample - playing))]
            playing += len(new)
            return [episode for one in new for episode in one]

        cancelled = self.rollouts.stream([episode for one in first for episode in one], sampling, phase, take)
        return [kept[number] for number in sorted(kept)], drawn, cancelled

    def settle(self, seconds: float = 0.0) -> None:
        """Counts what was sampled of groups that were not needed any more. Workers elsewhere are heard out for so long."""
        c = self.config.rl(self.stage.name)
        if c.oversample or c.staleness:
            self.cost += cost_of(self.rollouts.spent(seconds), trained_roles(self.config, self.stage))

    def told(self) -> Metrics:
        """What the stage cost so far, but for contexts, which `describe` tells of a step."""
        return {"tokens/sampled" if name == "sampled" else f"cost/{name}": float(value) for name, value in self.cost.totals().items()}

    def _mishaps(self) -> Metrics:
        """What workers lost or gave twice, in this attempt of the run; nothing where nothing went wrong."""
        counts = self.rollouts.control.counts
        return {
            f"leases/{name}": float(counts[name]) for name in ("expired", "duplicates", "fenced", "abandoned", "stale") if counts.get(name)
        }

    def begin(self, step: int) -> None:
        """Has the groups that the step begins with sampled by the weights as they are, while the caller goes on."""
        groups, sampling, phase = self._first(step)
        self.rollouts.begin([episode for group in groups for episode in group], sampling, phase)

    def _first(self, step: int) -> tuple[list[list[Episode]], Sampling, str]:
        """The groups that a step begins with."""
        c = self.config.rl(self.stage.name)
        episodes, sampling, phase = self._asked(step, 0, c.questions)
        groups = self._pool(step)[: c.questions + c.oversample] if c.oversample else _by_group(episodes)
        return groups, sampling, phase

    def _pool(self, step: int) -> list[list[Episode]]:
        """All groups that a step may draw, in their order."""
        c = self.config.rl(self.stage.name)
        return [group for round_ in range(c.refill + 1) for group in _by_group(self._asked(step, round_, c.questions)[0])]

    def _asked(self, step: int, round_: int, count: int) -> tuple[list[Episode], Sampling, str]:
        c = self.config.rl(self.stage.name)
        step += self.config.steps_before(self.stage)  # of the whole schedule: a later stage draws what none drew before
        questions = stream(self.config.seed, "questions", step, round_).sample(self.questions, min(count, len(self.questions)))
        episodes = [Episode(q, f"{step}.{round_}:{q.id}", m) for q in questions for m in range(c.group)]
        return episodes, Sampling(c.temperature, c.top_p), "train"

    def _groups(self, step: int, round_: int, count: int) -> list[Credited]:
        done = self.rollouts.collect(*self._asked(step, round_, count))
        self.cost += cost_of(done, trained_roles(self.config, self.stage))
        groups: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in done:
            groups[trajectory.group].append(trajectory)
        return [self._credited(group) for group in groups.values()]

    def _credited(self, group: list[Trajectory]) -> Credited:
        return credited(self.rollouts.method, group)

    def _teaches(self, group: Credited) -> bool:
        """Whether any objective can learn from the group: one that compares within groups needs rewards that differ."""
        for objective in self.stage.objectives:
            own = [unit for unit in group.units if unit.objective == objective.name]
            if objective.estimator == "group" and any(group_advantages(own, objective.eps).values()):
                return True
            if objective.estimator != "group" and own:
                return True
        return bool(group.examples)

    def _imperfect(self, group: Credited) -> Credited:
        return imperfect(self.rollouts.method, group)


def credited(method: Method, group: list[Trajectory]) -> Credited:
    """What each rollout of a question earned, by its named rewards. The same in training and when groups are scored again."""
    units = method.credit(group)
    for unit in units:
        if not isinstance(unit.reward, float | int) or not isfinite(unit.reward):
            raise InputError(
                f"method {method.name}: its credit gives {unit.id} the reward {unit.reward!r}; leave out units of what has no score "
                "(a reward that is None: its `reason` says why)"
            )
    return Credited(group, own_credit(units, group), method.examples(group))


def imperfect(method: Method, group: Credited) -> Credited:
    """DECOR 4.4 to the letter keeps trajectories with 0 < R < 1 only; the default keeps whole groups."""
    if method.dynamic_sampling != "trajectory":
        return group
    rewards: dict[str, list[float]] = defaultdict(list)
    for unit in group.units:
        rewards[unit.rollout].append(unit.reward)
    kept = {rollout for rollout, earned in rewards.items() if 0 < float(np.mean(earned)) < 1}
    return Credited([t for t in group.trajectories if t.id in kept], [unit for unit in group.units if unit.rollout in kept], group.examples)


def _by_group(episodes: Sequence[Episode]) -> list[list[Episode]]:
    return [list(of) for _, of in groupby(episodes, key=lambda episode: episode.group)]


def own_credit(units: Sequence[Unit], group: Sequence[Trajectory]) -> list[Unit]:
    """The units without what frozen weights or an endpoint said in the place of a trained role."""
    others = [thread for t in group for thread in t.threads if thread.slot == FROZEN or endpoint_of(thread.slot) is not None]
    foreign = {action.id for thread in others for action in thread.actions}
    own = [replace(unit, actions=tuple(action for action in unit.actions if action not in foreign)) for unit in units]
    return [unit for unit in own if unit.actions]


def solved(groups: Sequence[Credited], task: Task) -> bool:
    score = means(task, [t for group in groups for t in group.trajectories]).get(task.headline)
    return score is not None and score >= SOLVED


def nothing_learned(groups: Sequence[Credited], task: Task) -> str:
    """Why nothing can be learned from these groups: how many rollouts are in form, right by `task`, and both; how many of each kind there are,
    the cause that the largest kind names most often, or the first of the largest, and the next step for it."""
    scored = {action for group in groups for unit in group.units for action in unit.actions}
    rollouts = [t for group in groups for t in group.trajectories]
    kinds = {kind: [t for t in rollouts if _lost(t, scored) == kind] for kind in _ADVICE}
    worst = max(kinds, key=lambda kind: len(kinds[kind]))
    counts = ", ".join(f"{len(found)} {kind}" for kind, found in kinds.items() if found)
    of = f"no group teaches anything: of {len(rollouts)} rollouts ({_told(rollouts, task)}) {counts or 'none was played'}"
    causes = Counter(cause for t in kinds[worst] for cause in _causes(t, worst) if cause)
    verdicts = [reward for t in rollouts for reward in t.rewards if reward.source.partition(".")[0] == "judge"]
    if verdicts and all(verdict.value is None for verdict in verdicts):
        # Other rewards may have made units that do not differ: that is not why.
        often = _often(Counter(verdict.reason for verdict in verdicts if verdict.reason))
        told = f"all {len(verdicts)} verdicts of the judge are unscored{often}; {_ADVICE[UNSCORED]}"
        return f"{of}; {told}"
    if worst == LEVEL and not any(map(in_form, rollouts)):  # a method that asks again ends well without one reply in form
        return f"{of}; {_ADVICE[MALFORMED]}"
    return f"{of}{_often(causes)}; {_ADVICE[worst]}"


def _told(rollouts: Sequence[Trajectory], task: Task) -> str:
    """Counted as demonstrations are."""
    valid = [in_form(t) for t in rollouts]
    right = [right_by(t, task) for t in rollouts]
    return f"{sum(valid)} valid, {sum(right)} right, {sum(map(all, zip(valid, right, strict=True)))} both"


def _often(causes: Counter[str]) -> str:
    return "".join(f" (most often: {' '.join(cause.split())[:200]})" for cause, _ in causes.most_common(1))


def _causes(t: Trajectory, kind: str) -> list[str]:
    return [t.fault] if kind == FAILED else [reward.reason for reward in t.rewards if reward.value is None] if kind == UNSCORED else []


FAILED, UNSCORED, MALFORMED = "failed", "are unscored", "broke their form"
LEVEL = "earned what the others of their question did"
_ADVICE = {
    FAILED: "look at the episodes' faults",
    MALFORMED: "train longer in SFT or raise max_tokens",
    "ran out of room": "raise model.max_context or let less into the context",
    UNSCORED: "see why the judge gives no score",
    LEVEL: "the questions are solved or out of reach: take others, or raise questions or refill",
}
_BY_STATUS: dict[Status, str] = {"error": FAILED, "format": MALFORMED, "length": "ran out of room"}


def _lost(t: Trajectory, scored: Set[str]) -> str:
    """The one kind of `_ADVICE` that a rollout is. `scored`: ids of actions that are in a unit."""
    if t.status in _BY_STATUS:
        return _BY_STATUS[t.status]
    return LEVEL if any(action.id in scored for action in t.actions) else UNSCORED


def shuffled(groups: Sequence[Credited], rng: random.Random) -> list[Unit]:
    """All units, each with the reward that another rollout of its question earned in the same place: a control that keeps what is
    earned and loses who earned it.

    One permutation a question, uniform, so that what a rollout is given tells nothing of what it earned. A place is an objective, a
    role, a turn and a number among its like. Where the rollout that is next in the permutation has no such place, because it
    ended earlier, the one after it is asked: every place hands out what was earned there.
    """
    return [unit for group in groups for unit in _exchanged(group, rng)]


def _exchanged(group: Credited, rng: random.Random) -> list[Unit]:
    rollout_of = {action.id: t.id for t in group.trajectories for action in t.actions}
    rollouts = [t.id for t in group.trajectories]
    following = dict(zip(rollouts, rng.sample(rollouts, len(rollouts)), strict=True))
    earned: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    places: list[tuple[tuple[Any, ...], str]] = []
    alike: Counter[tuple[Any, ...]] = Counter()
    for unit in group.units:
        rollout, kind = rollout_of[unit.actions[0]], (unit.objective, unit.tag, unit.order)
        place = (*kind, alike[rollout, kind])
        alike[rollout, kind] += 1
        earned[place][rollout] = unit.reward
        places.append((place, rollout))
    return [
        replace(unit, reward=earned[place][_next_in(earned[place], rollout, following)])
        for unit, (place, rollout) in zip(group.units, places, strict=True)
    ]


def _next_in(those: Container[str], rollout: str, following: Mapping[str, str]) -> str:
    """The first of `those` that the permutation comes to after `rollout`, which is one of them."""
    rollout = following[rollout]
    while rollout not in those:
        rollout = following[rollout]
    return rollout


def describe(trajectories: Sequence[Trajectory], units: Sequence[Unit], task: Task = QA) -> Metrics:
    """Rewards, validity and lengths, in all and per role; nothing of a step that has examples alone."""
    if not trajectories:
        return {}
    numbers: Metrics = {
        "reward": float(np.mean([unit.reward for unit in units])) if units else 0.0,
        "valid": valid_share(trajectories),
        **{f"train/{name}": score for name, score in means(task, trajectories).items()},
        "searches": float(np.mean([t.searches for t in trajectories])),
        **{f"episodes/{status}": float(sum(t.status == status for t in trajectories)) for status in ("length", "error")},
        "unscored": float(sum(r.value is None for t in trajectories for r in t.rewards)),
    }
    for tag in sorted({unit.tag for unit in units}):
        numbers[f"reward/{tag}"] = float(np.mean([unit.reward for unit in units if unit.tag == tag]))
    numbers |= {f"context/{role}": float(tokens) for role, tokens in sorted(cost_of(trajectories, ()).context.items())}
    for role in sorted({thread.role for t in trajectories for thread in t.threads}):
        actions = [action for t in trajectories for thread in t.threads if thread.role == role for action in thread.actions]
        if actions:
            numbers[f"valid/{role}"] = float(np.mean([action.valid for action in actions]))
            numbers[f"tokens/{role}"] = float(np.mean([len(action.ids) for action in actions]))
    return numbers
