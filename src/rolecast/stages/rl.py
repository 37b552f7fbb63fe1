"""RL: sample groups, score them, credit roles, update; evaluate on dev, keep the best, roll back on collapse.

All ranks of a job run this loop. The first one samples, credits and decides; what it found is agreed on, and every rank takes
its share of the update.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import torch

from rolecast.errors import CollapseError, Interrupted, NamedStop
from rolecast.evaluation import tasks
from rolecast.evaluation.cost import Cost, read_cost
from rolecast.evaluation.metrics import bounds_of, shortfall, valid_share
from rolecast.evaluation.tasks import Task, means_of
from rolecast.evaluation.trace import trace
from rolecast.learner import checkpoint
from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.ranks import Ranks
from rolecast.learner.step import reinforce
from rolecast.learner.tally import Metrics
from rolecast.methods.base import Method
from rolecast.ports import Sampling
from rolecast.rollout.collect import Episode
from rolecast.rollout.render import Renderer
from rolecast.schedule import keys_of
from rolecast.seeding import stream
from rolecast.stage_settings import RlConfig
from rolecast.stages import checkpoints, looked
from rolecast.stages.budget import ON_DEV, allowance, judge_allowance, judge_spent
from rolecast.stages.environment import environment_of
from rolecast.stages.metrics import MetricsLog, read_metrics
from rolecast.stages.progress import Progress
from rolecast.stages.publish import Publisher, open_publisher
from rolecast.stages.refusals import keeping
from rolecast.stages.run import Run
from rolecast.stages.sampling import Batch, NothingLearnedError, Sampler, describe, shuffled
from rolecast.stages.segments import begin_segment
from rolecast.stages.stopping import Stopping, stopping
from rolecast.stages.team import load_questions, training_team, write_model
from rolecast.stages.times import FILE, StepTimes
from rolecast.stages.trackers import open_trackers
from rolecast.store.artifact import write_text, writing
from rolecast.types import Example, Objective, Question, Stage, Thread, Trajectory, Unit
from rolecast.weights.team import Weights, require_finite
from rolecast.wire.coordinator import pack

log = logging.getLogger(__name__)
GATE = 1e-4  # mean |ratio − 1| of freshly sampled tokens, where trainer and engine compute in float32
HEARD_OUT = 10.0  # seconds that workers have, when a stage ends, to tell what they sampled for nothing
NARROW_GATE = 5e-2  # in bfloat16, where another batch shape changes a log-prob by some 1e-2


def rl(run: Run, stage: Stage, ranks: Ranks) -> None:
    """Trains from the stage's start, or goes on from the newest checkpoint; the best model on dev is the stage's."""
    with ExitStack() as stack:
        trainer = Trainer.open(run, stage, ranks, stack)
        stop = stack.enter_context(stopping(ranks))
        trainer.train(stop)
        if ranks.first:
            run.has(trainer.best)  # after a resume it may be in the store alone
            made = {
                **run.made, "threads": torch.get_num_threads(), "cost": trainer.progress.cost, "ended": trainer.ended,
                **trainer.progress.best, **({ON_DEV: trainer.progress.judged_on_dev} if trainer.progress.judged_on_dev else {}),
            }  # fmt: skip
            with writing(run.model(stage.name), "model", made) as partial:
                write_model(run, stage, trainer.best, partial)
            run.publish(run.model(stage.name))
        ranks.barrier()
        stop.leave(f"told to end: {stage.name} is done")


def anchored(objectives: Sequence[Objective], kl: float | None) -> list[Objective]:
    """The objectives with another coefficient of their KL terms; 0 takes them out."""
    if kl is None:
        return list(objectives)
    return [replace(o, kl=replace(o.kl, coefficient=kl) if o.kl and kl else None) for o in objectives]


@dataclass(slots=True)
class TrainerState:
    """What a checkpoint keeps beside weights and optimizer. `best` holds step and score of the best dev evaluation."""

    best: dict[str, float] = field(default_factory=lambda: {"step": -1, "score": -1.0})
    low: int = 0  # evaluations in a row under the guard's threshold
    rollbacks: int = 0
    cost: dict[str, Any] = field(default_factory=lambda: asdict(Cost()))
    dropped: int = 0
    idle: int = 0  # steps in a row that nothing could be learned from
    judged_on_dev: int = 0  # tokens of the judge, beside those of `cost`


@dataclass(frozen=True, slots=True)
class Sampled:
    """What an update needs of a step's rollouts."""

    threads: list[Thread]
    units: list[Unit]
    examples: list[Example]
    stale: frozenset[str]  # ids of actions that earlier weights sampled
    look: frozenset[str] = frozenset()  # ids of actions whose tokens the report shows


@dataclass(slots=True)
class Trainer:
    """`sampler` and `publisher` are the first rank's; the others have None and follow."""

    run: Run
    stage: Stage
    learner: Learner
    sampler: Sampler | None
    publisher: Publisher | None
    dev: list[Question]
    start: int
    progress: TrainerState
    allowed: int | None = None  # tokens that may be sampled
    judged: int | None = None  # tokens that the judge may take
    ended: str = ""  # why: "steps", "budget" or "solved"
    looked_at: list[Trajectory] = field(default_factory=list)  # of the step, for the report

    @property
    def config(self) -> RlConfig:
        return self.run.config.rl(self.stage.name)

    @property
    def method(self) -> Method:
        return self.run.config.method_in(self.stage)

    @property
    def task(self) -> Task:
        return tasks.find(self.stage.task)

    @property
    def folder(self) -> Path:
        return self.run.stage(self.stage.name)

    @property
    def best(self) -> Path:
        return self.folder / "best" / f"step-{int(self.progress.best['step']):06d}"

    @classmethod
    def open(cls, run: Run, stage: Stage, ranks: Ranks, stack: ExitStack) -> Trainer:
        c = run.config.rl(stage.name)
        method = run.config.method_in(stage)
        resumed = checkpoints.newest(run, stage.name, ranks)
        team = training_team(run, method, stage, resumed.path if resumed else None)
        learner = make_learner(
            anchored(stage.objectives, c.kl), team, c.optimizer, c.steps, run.config.seed, temperature=c.temperature, max_tokens=c.max_tokens, packing=c.packing, ranks=ranks,
            backend=run.config.learner, optimizers=c.optimizers,
        )  # fmt: skip
        if resumed:
            resumed.restore(learner)
        learner.keep = keeping(run, stage.name)
        state = TrainerState(**resumed.progress) if resumed else TrainerState()
        sampler = publisher = None
        if ranks.first:
            begin_segment(run, stage.name, resumed.step if resumed else 0, environment_of(run))
            publisher = stack.enter_context(open_publisher(run, method, stage, team))
            sampler = Sampler(
                run.config, stage, publisher.rollouts, load_questions(run, "train", stage.data), read_cost(state.cost), state.dropped
            )
        dev = load_questions(run, "dev", stage.data)[: c.dev] if ranks.first else []
        allowed, judged = ranks.agree((allowance(run, stage), judge_allowance(run, stage)) if ranks.first else None)
        return cls(run, stage, learner, sampler, publisher, dev, resumed.step if resumed else 0, state, allowed, judged)

    def train(self, stop: Stopping) -> None:
        c, name = self.config, self.stage.name
        first = self.learner.ranks.first
        trackers = open_trackers(self.run.config.name, name, self.run.place) if first else ()
        metrics = MetricsLog(self.folder, self.start or -1, first, trackers)  # the row of a step has the number of steps done
        times = StepTimes(self.folder, self.start or -1, first)
        bar = Progress(name, self.allowed or c.steps, self._way(self.start), every=5.0, shown=first)
        shown = {f"dev/{self.task.headline}", "reward", *keys_of(self.stage, "clip_fraction").values()}
        weights = self.publish(self.start)
        if self.start == 0:
            metrics.write(0, self.evaluate(0, weights))
        del weights
        times.begin()
        self.ended = self._over(self.start)
        if not self.ended:
            self._require_judge(self.start)
        for step in range(self.start, self.start if self.ended else c.steps):
            numbers = self.step(step, times)
            done = step + 1
            over = self.ended = self._over(done)
            with times.of("publish"):
                weights = self.publish(done)
            if done % c.eval_every == 0 or over:
                with times.of("evaluate"):
                    numbers |= self.evaluate(done, weights)
                if self._guard(done):
                    weights = self.publish(done)
            numbers |= self._alarms(done, numbers)
            metrics.write(done, numbers)
            bar.update(self._way(done), {name: value for name, value in numbers.items() if name in shown})
            told = 0 if over else stop.asked()
            if not over and (told or self._judge_left() <= 0 or done % c.checkpoint_every == 0):
                with times.of("save"):
                    checkpoints.save(self.run, name, done, self.learner, asdict(self.progress), c.keep, weights)
                    self._prune_best()
            times.add(self.learner.take_spent())
            times.write(done)
            if over:
                break
            if told:
                raise Interrupted(f"told to end: {name} is saved at step {done} of {c.steps}", told)
            self._require_judge(done)
            del weights  # gathered from shards they are a whole copy, which is not kept through the next step
        self._settle()
        metrics.close()
        if first:
            for file in ("metrics.jsonl", FILE, *((looked.FILE,) if (self.folder / looked.FILE).exists() else ())):
                self.run.record(self.folder / file)

    def _settle(self) -> None:
        """What was sampled for nothing and has not been told yet is in the stage's cost too."""
        if self.sampler is not None:
            self.sampler.settle(HEARD_OUT)
            self.progress.cost = asdict(self.sampler.cost)

    def _way(self, done: int) -> int:
        """How far the stage has come after so many steps: steps, or tokens where they end it."""
        return min(self.allowed, self.progress.cost["sampled"]) if self.allowed else done

    def _over(self, done: int) -> str:
        """Why the stage is over after so many steps; "" while it is not."""
        if self.allowed is not None and self.progress.cost["sampled"] >= self.allowed:
            return "budget"
        return "steps" if done == self.config.steps else "solved" if self.progress.idle >= (self.config.idle_steps or inf) else ""

    def _judge_left(self) -> float:
        """Tokens of the judge's budget; below 0 by what the last step passed it."""
        spent = self.progress.cost["judge_tokens"] + self.progress.judged_on_dev
        return inf if self.judged is None else self.judged - spent

    def _require_judge(self, done: int) -> None:
        """`NamedStop` where the judge's budget is spent. All that was trained until then is saved, or was never begun."""
        if self._judge_left() == self.judged and self.progress.cost["judge_calls"] and done == self.start + 1:
            log.warning("step %d: the judge tells no tokens, so judge.budget stops nothing, unless its verdicts are all cached", done)
        if self._judge_left() <= 0:
            assert self.run.config.judge.budget is not None
            raise judge_spent(self.run.config.judge.budget, f"{self.stage.name} is saved at step {done} of {self.config.steps}")

    def publish(self, step: int) -> Weights:
        """The weights as they are answer from now on. They are gathered here, once for all that a step does with them.

        Raises `DivergedError` if they are not finite, before anybody has them.
        """
        weights = self.learner.weights()
        require_finite(weights, f"step {step}")
        if self.publisher is not None:
            self.publisher.publish(step, weights, self.progress.rollbacks)
        return weights

    def step(self, step: int, times: StepTimes) -> Metrics:
        """One batch of groups, one update. A step that nothing can be learned from is left out; too many in a row end the stage:
        with its best model if the questions are solved, as an error otherwise."""
        with times.playing(self.sampler.rollouts.waits.seconds if self.sampler is not None else {}):
            sampled, numbers, self.progress.cost = self.learner.ranks.agree(
                (*self._sampled(step), asdict(self.sampler.cost)) if self.sampler is not None else None
            )
        if sampled is None:
            self.progress.idle += 1
            return numbers
        self.progress.idle = 0
        gate = self.config.ratio_gate or (GATE if self.run.config.sampled_in == "float32" else NARROW_GATE)
        self.learner.look = sampled.look
        numbers |= reinforce(self.learner, sampled.threads, sampled.units, sampled.examples, gate=gate, stale=sampled.stale)
        told = self.learner.take_looked()
        if told and self.learner.ranks.first:
            looked.keep(self.folder, step + 1, self.looked_at, told, Renderer(self.learner.team.tokenizer).decode, self.task)
        return numbers

    def _sampled(self, step: int) -> tuple[Sampled | None, Metrics]:
        assert self.sampler is not None
        try:
            batch, numbers = self._batch(step)
        except NothingLearnedError as nothing:
            log.warning("%s", nothing)
            # A stage shorter than that is over when none of its steps taught anything.
            bound = min(self.config.idle_steps, self.config.steps) if self.config.idle_steps else inf
            if not nothing.solved and self.progress.idle + 1 >= bound:
                raise
            return None, {"idle": 1.0, **self.sampler.told()}
        finally:
            self.progress.dropped = self.sampler.dropped
        units = batch.units
        if self.config.shuffle_rewards:
            units = shuffled(batch.groups, stream(self.run.config.seed, "shuffle", self.run.config.steps_before(self.stage) + step))
        if self.config.record:
            self._record(step, batch.trajectories)
        threads = [thread for t in batch.trajectories for thread in t.threads]
        stale = frozenset(a.id for thread in threads for a in thread.actions if a.version != self.sampler.rollouts.version)
        own = self.method.diagnostics(batch.trajectories)
        numbers |= {f"method/{name}": value for name, value in own.items()}
        shown = self.config.traces if step == 0 or (step + 1) % self.config.eval_every == 0 else 0
        self.looked_at = looked.chosen(batch.trajectories, units, shown)
        look = frozenset(action.id for t in self.looked_at for action in t.actions)
        return Sampled(threads, units, batch.examples, stale, look), {**numbers, **describe(batch.trajectories, units, self.task)}

    def _batch(self, step: int) -> tuple[Batch, Metrics]:
        """What the step learns from. One-step-off, the next step's groups are begun before this one's update is made."""
        assert self.sampler is not None
        batch, numbers = self.sampler.sample(step)
        if self.config.staleness and step + 1 < self.config.steps:
            self.sampler.begin(step + 1)
        return batch, numbers

    def _alarms(self, step: int, numbers: Metrics) -> Metrics:
        """What the method finds wrong in the metrics so far is said once, when it begins, and stands in each step's row."""
        if not self.learner.ranks.first:
            return {}
        rows = read_metrics(self.folder)
        alarms = self.method.alarms([*rows, {"step": step, **numbers}])
        for name, text in alarms.items():
            if not rows or f"alarm/{name}" not in rows[-1]:
                log.warning("step %d: %s", step, text)
        return {f"alarm/{name}": 1.0 for name in alarms}

    def _record(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        """The step's shard. A step that is done again after a crash has samples of its own, and replaces it."""
        shard = self.folder / "trajectories" / f"step-{step:06d}"
        self.run.discard(shard)
        with writing(shard, "trajectories", {"step": step, **self.run.made}) as partial:
            (partial / "trajectories.json.gz").write_bytes(pack(trajectories))
        self.run.publish(shard)

    def evaluate(self, step: int, weights: Weights) -> Metrics:
        """Greedy on dev; the best model so far, with the `weights` that answer, is kept as an artifact. Every rank calls it."""
        ranks = self.learner.ranks
        numbers = ranks.agree(self._evaluated(step) if self.sampler is not None else None)
        self.progress.judged_on_dev += int(numbers.get("dev/judge_tokens", 0))
        score = numbers[f"dev/{self.task.headline}"]
        self.progress.low = self.progress.low + 1 if score < self.config.guard.fraction * self.progress.best["score"] else 0
        if score > self.progress.best["score"]:
            self.progress.best = {"step": step, "score": score}
            if ranks.first:
                self.run.discard(self.best)  # a step that is done again after a crash
                with writing(self.best, "model", {"step": step, "dev": score}) as partial:
                    self.learner.team.save(self.learner.slots, partial, weights)
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
        scored = [self.task.scores(t) for t in done if t.status != "error"]
        scores = means_of(scored)
        if self.task.headline not in scores:
            raise NamedStop(f"step {step}: no dev episode has the score {self.task.headline!r} that models are selected on; see its judge")
        return {
            **{f"dev/{name}": number for name, number in short.items()},
            **{f"dev/{name}": score for name, score in scores.items()},
            **{f"dev/{name}": bound for name, bound in bounds_of(scored, self.run.config.seed, self.run.config.eval.bootstrap).items()},
            "dev/valid": valid_share(done),
            **({"dev/judge_tokens": float(judged)} if (judged := sum(t.judge_tokens for t in done)) else {}),
        }

    def _keep_traces(self, step: int, done: list[Trajectory]) -> None:
        kept = [trace(t, self.task) for t in done[: self.config.traces]]
        (self.folder / "traces").mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "traces" / f"step-{step:06d}.json", json.dumps(kept))

    def _guard(self, step: int) -> bool:
        """Restores the best model after `patience` collapsed evaluations; gives up after `rollbacks` of them."""
        guard = self.config.guard
        if self.progress.low < guard.patience:
            return False
        if self.progress.rollbacks >= guard.rollbacks:
            raise CollapseError(
                f"step {step}: dev {self.task.headline} stayed under {guard.fraction:.0%} of its best ({self.progress.best['score']:.3f}) for {guard.patience} "
                f"evaluations, {guard.rollbacks} rollbacks did not help; lower the learning rate or the clip range"
            )
        log.warning("step %d: dev %s collapsed; rolling back to step %d", step, self.task.headline, self.progress.best["step"])
        checkpoints.ready(self.run, self.best, self.learner.ranks)
        self.learner.load_weights(self.learner.team.read(self.best, self.learner.slots))
        if self.sampler is not None:
            self.sampler.rollouts.forget()  # sampled by the weights that collapsed
        self.progress.rollbacks += 1
        self.progress.low = 0
        return True
