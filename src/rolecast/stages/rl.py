"""RL: sample groups, score them, credit roles, update; evaluate on dev, keep the best, roll back on collapse.

All ranks of a job run this loop. The first one samples, credits and decides; what it found is agreed on, and every rank takes
its share of the update.
"""

from __future__ import annotations

import functools
import json
import logging
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rolecast.config import ModelConfig
from rolecast.errors import CollapseError, InputError, Interrupted
from rolecast.evaluation.metrics import shortfall
from rolecast.evaluation.trace import trace
from rolecast.learner import checkpoint
from rolecast.learner.adapters import is_adapter, merge_adapter
from rolecast.learner.backends import trained_weights
from rolecast.learner.learner import Learner, Metrics, make_learner
from rolecast.learner.model import Critic, Policy
from rolecast.learner.ranks import ALONE, Ranks
from rolecast.learner.step import reinforce
from rolecast.methods.registry import make_method
from rolecast.ports import Sampling
from rolecast.rewards.text import exact_match, token_f1
from rolecast.rollout.collect import Episode
from rolecast.seeding import stream
from rolecast.stages import checkpoints
from rolecast.stages.metrics import MetricsLog
from rolecast.stages.progress import Progress
from rolecast.stages.publish import Publisher, open_publisher
from rolecast.stages.run import Run, working
from rolecast.stages.sampling import Sampler, describe, shuffled, valid_share
from rolecast.stages.stopping import stopping
from rolecast.stages.team import CPU, load_model, load_questions, prepare_torch, require_model, trained_model
from rolecast.store.artifact import write_text, writing
from rolecast.types import Question, Thread, Trajectory, Unit
from rolecast.wire.coordinator import pack

log = logging.getLogger(__name__)


def rl(run: Run, ranks: Ranks = ALONE) -> Path:
    """Trains from the SFT model, or goes on from the newest checkpoint; returns the best model's folder."""
    if checkpoints.ready(run, run.model("rl"), ranks):
        return run.model("rl")
    if not make_method(run.config.method).objectives():
        raise InputError(f"method {run.config.method.name} is not trained by RL; see `rolecast methods`")
    checkpoints.ready(run, run.model("sft"), ranks)
    require_model(run, "sft")
    with working(run, "rl", ranks.first), ExitStack() as stack:
        prepare_torch(run.config)
        trainer = Trainer.open(run, ranks, stack)
        trainer.train()
        if ranks.first:
            run.has(trainer.best)  # after a resume it may be in the store alone
            with writing(run.model("rl"), "model", {"config": run.config.fingerprint, **trainer.progress.best}) as partial:
                shutil.copytree(trainer.best, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
                if is_adapter(partial):
                    merge_adapter(partial, load_model(run.model("sft"), run.config.model, CPU)[0], trainer.tokenizer)
            run.publish(run.model("rl"))
        ranks.barrier()
    return run.model("rl")


@dataclass(slots=True)
class TrainerState:
    """What a checkpoint keeps beside weights and optimizer. `best` holds step and score of the best dev evaluation."""

    best: dict[str, float] = field(default_factory=lambda: {"step": -1, "em": -1.0})
    low: int = 0  # evaluations in a row under the guard's threshold
    rollbacks: int = 0
    sampled: int = 0
    dropped: int = 0


@dataclass(slots=True)
class Trainer:
    """`sampler` and `publisher` are the first rank's; the others have None and follow."""

    run: Run
    learner: Learner
    sampler: Sampler | None
    publisher: Publisher | None
    tokenizer: PreTrainedTokenizerBase
    dev: list[Question]
    start: int
    progress: TrainerState

    @property
    def folder(self) -> Path:
        return self.run.stage("rl")

    @property
    def best(self) -> Path:
        return self.folder / "best" / f"step-{int(self.progress.best['step']):06d}"

    @classmethod
    def open(cls, run: Run, ranks: Ranks, stack: ExitStack) -> Trainer:
        c = run.config
        resumed = checkpoints.newest(run, "rl", ranks)
        model, tokenizer = trained_model(c, functools.partial(load_model, run.model("sft"), c.model), resumed.model if resumed else None)
        method = make_method(c.method)
        [objective] = method.objectives()
        learner = make_learner(
            objective, Policy(model, c.rl.temperature), c.rl.optimizer, c.rl.steps * objective.epochs * objective.minibatches, c.seed,
            max_tokens=c.rl.max_tokens, gate=c.rl.ratio_gate, ranks=ranks, backend=c.learner,
            reference=Policy(_frozen(run.model("sft"), c.model), c.rl.temperature) if objective.kl else None,
            critic=Critic(load_model(run.model("sft"), c.model)[0]) if objective.critic else None,
        )  # fmt: skip
        if resumed:
            resumed.restore(learner)
        state = TrainerState(**resumed.progress) if resumed else TrainerState()
        sampler = publisher = None
        if ranks.first:
            publisher = stack.enter_context(open_publisher(run, method, model, tokenizer))
            sampler = Sampler(c, objective, publisher.rollouts, load_questions(run, "train"), state.sampled, state.dropped)
        dev = load_questions(run, "dev")[: c.rl.dev] if ranks.first else []
        return cls(run, learner, sampler, publisher, tokenizer, dev, resumed.step if resumed else 0, state)

    def train(self) -> None:
        c = self.run.config.rl
        first = self.learner.ranks.first
        metrics = MetricsLog(self.folder, self.start or -1, first)  # the row of a step has the number of steps done
        bar = Progress("rl", c.steps, self.start, every=5.0, shown=first)
        self.publish(self.start)
        if self.start == 0:
            metrics.write(0, self.evaluate(0))
        with stopping(self.learner.ranks) as stop:
            for step in range(self.start, c.steps):
                numbers = self.step(step)
                done = step + 1
                self.publish(done)
                if done % c.eval_every == 0 or done == c.steps:
                    numbers |= self.evaluate(done)
                    if self._guard(done):
                        self.publish(done)
                metrics.write(done, numbers)
                bar.update(done, {name: value for name, value in numbers.items() if name in ("dev/em", "reward", "clip_fraction")})
                told = stop.asked()
                if done < c.steps and (told or done % c.checkpoint_every == 0):
                    checkpoints.save(self.run, "rl", done, self.learner, self.tokenizer, asdict(self.progress), c.keep)
                    self._prune_best()
                    if told:
                        raise Interrupted(f"rl was told to end; it is saved at step {done}, the same command goes on from there")
        metrics.close()
        if first:
            self.run.record(self.folder / "metrics.jsonl")

    def publish(self, step: int) -> None:
        """The weights as they are answer from now on."""
        weights = self.learner.model_weights()
        if self.publisher is not None:
            self.publisher.publish(step, weights, self.progress.rollbacks)

    def step(self, step: int) -> Metrics:
        """One batch of groups, one update."""
        threads, units, numbers = self.learner.ranks.agree(self._sampled(step) if self.sampler is not None else None)
        return {**numbers, **reinforce(self.learner, threads, units)}

    def _sampled(self, step: int) -> tuple[list[Thread], list[Unit], Metrics]:
        assert self.sampler is not None
        c = self.run.config
        groups, numbers = self.sampler.sample(step)
        self.progress.sampled, self.progress.dropped = self.sampler.sampled, self.sampler.dropped
        units = [unit for group in groups for unit in self.sampler.rollouts.method.credit(group)]
        if c.rl.shuffle_rewards:
            units = shuffled(units, stream(c.seed, "shuffle", step))
        trajectories = [t for group in groups for t in group]
        if c.rl.record:
            self._record(step, trajectories)
        return [thread for t in trajectories for thread in t.threads], units, {**numbers, **describe(trajectories, units)}

    def _record(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """The step's shard. A step that is done again after a crash has samples of its own, and replaces it."""
        shard = self.folder / "trajectories" / f"step-{step:06d}"
        self.run.discard(shard)
        with writing(shard, "trajectories", {"step": step, "config": self.run.config.fingerprint}) as partial:
            (partial / "trajectories.json.gz").write_bytes(pack(trajectories))
        self.run.publish(shard)

    def evaluate(self, step: int) -> Metrics:
        """Greedy on dev; the best model so far is kept as an artifact. Every rank calls it."""
        ranks = self.learner.ranks
        numbers = ranks.agree(self._evaluated(step) if self.sampler is not None else None)
        em = numbers["dev/em"]
        self.progress.low = self.progress.low + 1 if em < self.run.config.rl.guard.fraction * self.progress.best["em"] else 0
        if em > self.progress.best["em"]:
            self.progress.best = {"step": step, "em": em}
            weights = self.learner.model_weights()
            if ranks.first:
                self.run.discard(self.best)  # a step that is done again after a crash
                with writing(self.best, "model", {"step": step, "dev_em": em}) as partial:
                    checkpoint.save_model(self.learner.policy.model, self.tokenizer, partial, weights)
                self.run.publish(self.best)
        return numbers

    def _prune_best(self) -> None:
        """Keeps the best models that a checkpoint may still come back to."""
        if self.learner.ranks.first:
            kept = {int(found.progress["best"]["step"]) for found in checkpoint.all_of(self.folder / "checkpoints")}
            for path in self.run.artifacts(self.folder / "best"):
                if int(path.name.removeprefix("step-")) not in kept | {int(self.progress.best["step"])}:
                    self.run.discard(path)

    def _evaluated(self, step: int) -> Metrics:
        assert self.sampler is not None
        done = self.sampler.rollouts.collect([Episode(q, f"dev:{q.id}", 0) for q in self.dev], Sampling(0.0), "eval")
        self._keep_traces(step, done)
        short = shortfall(len(self.dev), done, f"step {step}, dev")
        pairs = [(t.answer, t.question.gold.answers) for t in done if t.status != "error"]
        return {
            **{f"dev/{name}": number for name, number in short.items()},
            "dev/em": float(np.mean([exact_match(*pair) for pair in pairs])),
            "dev/f1": float(np.mean([token_f1(*pair) for pair in pairs])),
            "dev/valid": valid_share(done),
        }

    def _keep_traces(self, step: int, done: list[Trajectory]) -> None:
        kept = [trace(t) for t in done[: self.run.config.rl.traces]]
        (self.folder / "traces").mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "traces" / f"step-{step:06d}.json", json.dumps(kept))

    def _guard(self, step: int) -> bool:
        """Restores the best model after `patience` collapsed evaluations; gives up after `rollbacks` of them."""
        guard = self.run.config.rl.guard
        if self.progress.low < guard.patience:
            return False
        if self.progress.rollbacks >= guard.rollbacks:
            raise CollapseError(
                f"step {step}: dev EM stayed under {guard.fraction:.0%} of its best ({self.progress.best['em']:.3f}) for {guard.patience} "
                f"evaluations, {guard.rollbacks} rollbacks did not help; lower the learning rate or the clip range"
            )
        log.warning("step %d: dev EM collapsed; rolling back to step %d", step, self.progress.best["step"])
        checkpoints.ready(self.run, self.best, self.learner.ranks)
        c = self.run.config
        best, _ = trained_model(c, functools.partial(load_model, self.run.model("sft"), c.model), self.best, CPU)
        self.learner.load_model_weights(trained_weights(best))
        self.progress.rollbacks += 1
        self.progress.low = 0
        return True


def _frozen(path: Path, config: ModelConfig) -> PreTrainedModel:
    model, _ = load_model(path, config)
    return model.requires_grad_(False)
