"""A step's batch of groups: which questions, how often again, and what can be said about them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rolecast.config import RunConfig
from rolecast.credit import group_advantages
from rolecast.errors import EmptyUpdateError
from rolecast.learner.learner import Metrics
from rolecast.ports import Sampling
from rolecast.rewards.text import exact_match
from rolecast.rollout.collect import Episode
from rolecast.rollout.rollouts import Rollouts
from rolecast.seeding import stream
from rolecast.types import Objective, Question, Trajectory, Unit


@dataclass(slots=True)
class Sampler:
    """Draws questions and has them played. `sampled` and `dropped` count over the whole run."""

    config: RunConfig
    objective: Objective
    rollouts: Rollouts
    questions: Sequence[Question]
    sampled: int = 0  # tokens of the trained slot, the budget that methods are compared on
    dropped: int = 0  # groups without variance

    def sample(self, step: int) -> tuple[list[list[Trajectory]], Metrics]:
        """Groups of rollouts. With dynamic sampling, groups without variance are drawn again from other questions; without
        it, a whole step is, if no group of it varies and the objective compares within groups."""
        c = self.config
        mode = getattr(c.method, "dynamic_sampling", "off")
        kept: list[list[Trajectory]] = []
        dropped = 0
        for round_ in range(c.rl.refill + 1):
            wanted = c.rl.questions - len(kept)
            groups = self._groups(step, round_, wanted)
            if mode == "off":
                useful = groups if self._trains(groups) else []
            else:
                useful = [g for g in map(self._imperfect, groups) if self._varies(g)]
            dropped += len(groups) - len(useful)
            kept += useful
            if len(kept) == c.rl.questions or (mode == "off" and kept):
                break
        if not kept:
            raise EmptyUpdateError(
                f"step {step}: no group has any variance after {c.rl.refill + 1} rounds; raise rl.questions or rl.refill"
            )
        self.dropped += dropped
        return kept, {
            "groups": float(len(kept)),
            "groups/dropped": float(dropped),
            "tokens/sampled": float(self.sampled),
            **self._mishaps(),
        }

    def _mishaps(self) -> Metrics:
        """What workers lost or gave twice, in this attempt of the run; nothing where nothing went wrong."""
        counts = self.rollouts.control.counts
        return {f"leases/{name}": float(counts[name]) for name in ("expired", "duplicates", "fenced", "abandoned") if counts.get(name)}

    def _groups(self, step: int, round_: int, count: int) -> list[list[Trajectory]]:
        c = self.config.rl
        questions = stream(self.config.seed, "questions", step, round_).sample(self.questions, min(count, len(self.questions)))
        episodes = [Episode(q, f"{step}.{round_}:{q.id}", m) for q in questions for m in range(c.group)]
        done = self.rollouts.collect(episodes, Sampling(c.temperature, c.top_p), "train")
        threads = [thread for t in done for thread in t.threads if thread.slot == self.objective.slot]
        self.sampled += sum(len(action.ids) for thread in threads for action in thread.actions)
        groups: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in done:
            groups[trajectory.group].append(trajectory)
        return list(groups.values())

    def _trains(self, groups: Sequence[Sequence[Trajectory]]) -> bool:
        return self.objective.estimator != "group" or any(map(self._varies, groups))

    def _varies(self, group: Sequence[Trajectory]) -> bool:
        units = self.rollouts.method.credit(group)
        return any(group_advantages(units, 1e-6).values())

    def _imperfect(self, group: list[Trajectory]) -> list[Trajectory]:
        """DECOR 4.4 to the letter keeps trajectories with 0 < R < 1 only; the default keeps whole groups."""
        if getattr(self.config.method, "dynamic_sampling", "off") != "trajectory":
            return group
        rewards = {t.id: [unit.reward for unit in self.rollouts.method.credit([t])] for t in group}
        return [t for t in group if rewards[t.id] and 0 < float(np.mean(rewards[t.id])) < 1]


def shuffled(units: Sequence[Unit], rng: random.Random) -> list[Unit]:
    """Rewards permuted among the units of each baseline: a control that keeps their distribution and loses their meaning."""
    places: dict[str, list[int]] = defaultdict(list)
    for index, unit in enumerate(units):
        places[unit.baseline].append(index)
    result = list(units)
    for indices in places.values():
        rewards = [units[index].reward for index in indices]
        rng.shuffle(rewards)
        for index, reward in zip(indices, rewards, strict=True):
            result[index] = replace(units[index], reward=reward)
    return result


def describe(trajectories: Sequence[Trajectory], units: Sequence[Unit]) -> Metrics:
    """Rewards, validity and lengths, in all and per role."""
    numbers: Metrics = {
        "reward": float(np.mean([unit.reward for unit in units])) if units else 0.0,
        "valid": valid_share(trajectories),
        "train/em": float(np.mean([exact_match(t.answer, t.question.gold.answers) for t in trajectories])),
        "searches": float(np.mean([t.searches for t in trajectories])),
        **{f"episodes/{status}": float(sum(t.status == status for t in trajectories)) for status in ("length", "error")},
        "unscored": float(sum(r.value is None for t in trajectories for r in t.rewards)),
    }
    for tag in sorted({unit.tag for unit in units}):
        numbers[f"reward/{tag}"] = float(np.mean([unit.reward for unit in units if unit.tag == tag]))
    for role in sorted({thread.role for t in trajectories for thread in t.threads}):
        actions = [action for t in trajectories for thread in t.threads if thread.role == role for action in thread.actions]
        if actions:
            numbers[f"valid/{role}"] = float(np.mean([action.valid for action in actions]))
            numbers[f"tokens/{role}"] = float(np.mean([len(action.ids) for action in actions]))
    return numbers


def valid_share(trajectories: Sequence[Trajectory]) -> float:
    return float(np.mean([action.valid for t in trajectories for action in t.actions]))
