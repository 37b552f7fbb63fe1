"""RL: sample groups, score them, credit roles, update; evaluate on dev, keep the best, roll back on collapse."""

from __future__ import annotations

import json
import logging
import random
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rolecast.config import ModelConfig
from rolecast.credit import group_advantages
from rolecast.errors import CollapseError, EmptyUpdateError, InputError
from rolecast.evaluation.trace import trace
from rolecast.judge.lexical import LexicalJudge
from rolecast.learner import checkpoint
from rolecast.learner.learner import Learner, Metrics, make_learner
from rolecast.learner.model import Critic, Policy
from rolecast.learner.step import reinforce
from rolecast.methods.registry import make_method
from rolecast.ports import Sampling
from rolecast.rewards.text import exact_match, token_f1
from rolecast.rollout.collect import Collector, Episode
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.rollout.render import Renderer
from rolecast.seeding import stream
from rolecast.stages.metrics import MetricsLog
from rolecast.stages.progress import Progress
from rolecast.stages.run import Run, working
from rolecast.stages.team import load_model, load_questions, open_retriever, prepare_torch, require_model
from rolecast.store.artifact import committed, write_text, writing
from rolecast.types import Question, Trajectory, Unit, Version

log = logging.getLogger(__name__)


def rl(run: Run) -> Path:
    """Trains from the SFT model, or goes on from the newest checkpoint; returns the best model's folder."""
    if committed(run.model("rl")):
        return run.model("rl")
    if not make_method(run.config.method).objectives():
        raise InputError(f"method {run.config.method.name} is not trained by RL; see `rolecast methods`")
    require_model(run, "sft")
    with working(run, "rl"):
        prepare_torch(run.config)
        trainer = Trainer.open(run)
        trainer.train()
        with writing(run.model("rl"), "model", {"config": run.config.fingerprint, **trainer.progress.best}) as partial:
            shutil.copytree(trainer.best, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
    return run.model("rl")


@dataclass(slots=True)
class TrainerState:
    """What a checkpoint keeps beside weights and optimizer. `best` holds step and score of the best dev evaluation."""

    best: dict[str, float] = field(default_factory=lambda: {"step": -1, "em": -1.0})
    low: int = 0  # evaluations in a row under the guard's threshold
    rollbacks: int = 0
    sampled: int = 0  # tokens of trained slots, the budget that methods are compared on
    dropped: int = 0  # groups without variance


@dataclass(slots=True)
class Trainer:
    run: Run
    learner: Learner
    collector: Collector
    engine: TransformersEngine
    tokenizer: PreTrainedTokenizerBase
    questions: list[Question]
    dev: list[Question]
    start: int
    progress: TrainerState

    @property
    def folder(self) -> Path:
        return self.run.stage("rl")

    @property
    def best(self) -> Path:
        return self.folder / "best"

    @classmethod
    def open(cls, run: Run) -> Trainer:
        c = run.config
        resumed = checkpoint.newest(run.stage("rl") / "checkpoints")
        model, tokenizer = load_model(resumed.model if resumed else run.model("sft"), c.model)
        method, renderer = make_method(c.method), Renderer(tokenizer)
        [objective] = method.objectives()
        learner = make_learner(
            objective, Policy(model, c.rl.temperature), c.rl.optimizer, c.rl.steps * objective.epochs * objective.minibatches, c.seed,
            max_tokens=c.rl.max_tokens, gate=c.rl.ratio_gate,
            reference=Policy(_frozen(run.model("sft"), c.model), c.rl.temperature) if objective.kl else None,
            critic=Critic(load_model(run.model("sft"), c.model)[0]) if objective.critic else None,
        )  # fmt: skip
        if resumed:
            resumed.restore(learner)
        slots = {"shared": model}
        if any(role.slot == "frozen" for role in method.roles.values()):
            slots["frozen"] = _frozen(run.model("sft"), c.model)
        engine = TransformersEngine(slots, renderer, c.engine.max_batch, c.model.max_context)
        collector = Collector(
            method, engine, open_retriever(run), LexicalJudge(), renderer, c.seed, c.model.max_context, c.engine.in_flight, c.lockstep
        )
        state = TrainerState(**resumed.progress) if resumed else TrainerState()
        return cls(
            run, learner, collector, engine, tokenizer, load_questions(run, "train"), load_questions(run, "dev")[: c.rl.dev],
            resumed.step if resumed else 0, state,
        )  # fmt: skip

    def train(self) -> None:
        c = self.run.config.rl
        metrics = MetricsLog(self.folder, self.start or -1)  # the row of a step has the number of steps done
        bar = Progress("rl", c.steps, self.start, every=5.0)
        if self.start == 0:
            metrics.write(0, self.evaluate(0))
        for step in range(self.start, c.steps):
            numbers = self.step(step)
            done = step + 1
            if done % c.eval_every == 0 or done == c.steps:
                numbers |= self.evaluate(done)
                self._guard(done)
            metrics.write(done, numbers)
            bar.update(done, {name: value for name, value in numbers.items() if name in ("dev/em", "reward", "clip_fraction")})
            if done % c.checkpoint_every == 0 and done < c.steps:
                checkpoint.save(self.folder / "checkpoints", done, self.learner, self.tokenizer, asdict(self.progress), c.keep)
        metrics.close()

    def step(self, step: int) -> Metrics:
        """One batch of groups, one update."""
        c = self.run.config
        self.engine.version = str(Version(c.name, 0, step))
        groups, numbers = self.sample(step)
        units = [unit for group in groups for unit in self.collector.method.credit(group)]
        if c.rl.shuffle_rewards:
            units = shuffled(units, stream(c.seed, "shuffle", step))
        trajectories = [t for group in groups for t in group]
        numbers |= describe(trajectories, units)
        numbers |= reinforce(self.learner, [thread for t in trajectories for thread in t.threads], units)
        return numbers

    def sample(self, step: int) -> tuple[list[list[Trajectory]], Metrics]:
        """Groups of rollouts. With dynamic sampling, groups without variance are drawn again from other questions; without
        it, a whole step is, if no group of it varies and the objective compares within groups."""
        c = self.run.config
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
        self.progress.dropped += dropped
        return kept, {"groups": float(len(kept)), "groups/dropped": float(dropped), "tokens/sampled": float(self.progress.sampled)}

    def _groups(self, step: int, round_: int, count: int) -> list[list[Trajectory]]:
        c = self.run.config.rl
        questions = stream(self.run.config.seed, "questions", step, round_).sample(self.questions, min(count, len(self.questions)))
        episodes = [Episode(q, f"{step}.{round_}:{q.id}", m) for q in questions for m in range(c.group)]
        done = self.collector.collect(episodes, Sampling(c.temperature, c.top_p), "train")
        trained = self.learner.objective.slot  # a frozen role's tokens are no part of the budget
        threads = [thread for t in done for thread in t.threads if thread.slot == trained]
        self.progress.sampled += sum(len(action.ids) for thread in threads for action in thread.actions)
        return [done[i : i + c.group] for i in range(0, len(done), c.group)]

    def _trains(self, groups: Sequence[Sequence[Trajectory]]) -> bool:
        return self.learner.objective.estimator != "group" or any(map(self._varies, groups))

    def _varies(self, group: Sequence[Trajectory]) -> bool:
        units = self.collector.method.credit(group)
        return any(group_advantages(units, 1e-6).values())

    def _imperfect(self, group: list[Trajectory]) -> list[Trajectory]:
        """DECOR 4.4 to the letter keeps trajectories with 0 < R < 1 only; the default keeps whole groups."""
        if getattr(self.run.config.method, "dynamic_sampling", "off") != "trajectory":
            return group
        rewards = {t.id: [unit.reward for unit in self.collector.method.credit([t])] for t in group}
        return [t for t in group if rewards[t.id] and 0 < float(np.mean(rewards[t.id])) < 1]

    def evaluate(self, step: int) -> Metrics:
        """Greedy on dev; the best model so far is kept as an artifact."""
        episodes = [Episode(q, f"dev:{q.id}", 0) for q in self.dev]
        done = self.collector.collect(episodes, Sampling(0.0), "eval")
        pairs = [(t.answer, t.question.gold.answers) for t in done]
        em = float(np.mean([exact_match(*pair) for pair in pairs]))
        self.progress.low = self.progress.low + 1 if em < self.run.config.rl.guard.fraction * self.progress.best["em"] else 0
        if em > self.progress.best["em"]:
            self.progress.best = {"step": step, "em": em}
            with writing(self.best, "model", {"step": step, "dev_em": em}) as partial:
                checkpoint.save_model(self.learner.policy.model, self.tokenizer, partial)
        kept = [trace(t) for t in done[: self.run.config.rl.traces]]
        (self.folder / "traces").mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "traces" / f"step-{step:06d}.json", json.dumps(kept))
        return {"dev/em": em, "dev/f1": float(np.mean([token_f1(*pair) for pair in pairs])), "dev/valid": _valid(done)}

    def _guard(self, step: int) -> None:
        """Restores the best model after `patience` collapsed evaluations; gives up after `rollbacks` of them."""
        guard = self.run.config.rl.guard
        if self.progress.low < guard.patience:
            return
        if self.progress.rollbacks >= guard.rollbacks:
            raise CollapseError(
                f"step {step}: dev EM stayed under {guard.fraction:.0%} of its best ({self.progress.best['em']:.3f}) for {guard.patience} "
                f"evaluations, {guard.rollbacks} rollbacks did not help; lower the learning rate or the clip range"
            )
        log.warning("step %d: dev EM collapsed; rolling back to step %d", step, self.progress.best["step"])
        best, _ = load_model(self.best, self.run.config.model)
        self.learner.policy.model.load_state_dict(best.state_dict())
        self.learner.optimizer.reset()
        self.progress.rollbacks += 1
        self.progress.low = 0


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
        "valid": _valid(trajectories),
        "train/em": float(np.mean([exact_match(t.answer, t.question.gold.answers) for t in trajectories])),
        "searches": float(np.mean([t.searches for t in trajectories])),
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


def _valid(trajectories: Sequence[Trajectory]) -> float:
    return float(np.mean([action.valid for t in trajectories for action in t.actions]))


def _frozen(path: Path, config: ModelConfig) -> PreTrainedModel:
    model, _ = load_model(path, config)
    return model.requires_grad_(False)
