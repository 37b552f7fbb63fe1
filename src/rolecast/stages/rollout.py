"""Rollout: plays the start's model on questions, and keeps what the method prepares of each episode as questions of later stages.

Train questions are played `samples` times at the stage's temperature, dev ones once and greedily, as an evaluation plays them. Test
questions are not prepared: a team is measured on the whole method, from a question's text, which is also what it is served for.

Shards of questions are committed one by one, train before dev, and a stage that was ended goes on after the last sound one. All ranks
of a job run the loop; the first one plays.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rolecast.data.records import read_questions, write_questions
from rolecast.errors import ArtifactError, Interrupted, NamedStop
from rolecast.evaluation import tasks
from rolecast.evaluation.cost import Cost, cost_of, read_cost
from rolecast.evaluation.metrics import shortfall, valid_share
from rolecast.evaluation.tasks import means
from rolecast.learner.ranks import Ranks
from rolecast.learner.tally import Metrics
from rolecast.ports import Sampling
from rolecast.rollout.collect import Episode
from rolecast.rollout.env import PREPARE
from rolecast.rollout.rollouts import Rollouts
from rolecast.seeding import stream
from rolecast.stage_settings import RolloutConfig
from rolecast.stages.budget import trained_roles
from rolecast.stages.environment import environment_of
from rolecast.stages.metrics import MetricsLog
from rolecast.stages.progress import Progress
from rolecast.stages.publish import open_publisher
from rolecast.stages.run import Run
from rolecast.stages.segments import begin_segment
from rolecast.stages.stopping import stopping
from rolecast.stages.team import QUESTIONS, load_questions, training_team
from rolecast.stages.trackers import open_trackers
from rolecast.store.artifact import verify, writing
from rolecast.types import Question, Stage, Trajectory

log = logging.getLogger(__name__)
SHARD = "shard"  # the kind of an artifact
SHARDS = "shards"  # their folder
ROWS = "questions.jsonl"
SPLITS = ("train", "dev")
Counts = dict[str, int]  # of a shard: episodes asked, prepared, left out by the method, failed, missing


@dataclass(frozen=True, slots=True)
class Played:
    """A shard that is committed. `cost`: nothing for dev, whose greedy replies are no part of a run's budget, as in RL."""

    counts: Counts
    cost: Cost


def rollout(run: Run, stage: Stage, ranks: Ranks) -> None:
    """Plays what is left to play; then the questions of all shards become one artifact. NamedStop if there are none of a split."""
    with ExitStack() as stack:
        roller = Roller.open(run, stage, stack) if ranks.first else None
        count, start = ranks.agree((len(roller.shards), len(roller.done)) if roller is not None else None)
        stop = stack.enter_context(stopping(ranks))
        for number in range(start, count):
            if roller is not None:
                roller.play(number)
            told = stop.asked()
            if told and number + 1 < count:
                raise Interrupted(f"told to end: {stage.name} has saved {number + 1} of {count} shards", told)
        if roller is not None:
            roller.finish()
        stop.leave(f"told to end: {stage.name} is done")
    ranks.barrier()


@dataclass(frozen=True, slots=True)
class Shard:
    split: str
    questions: Sequence[Question]


@dataclass(slots=True)
class Roller:
    """The first rank's. `done`: the shards that are committed, which are the first ones."""

    run: Run
    stage: Stage
    rollouts: Rollouts
    shards: Sequence[Shard]
    done: list[Played]
    metrics: MetricsLog
    bar: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.bar = Progress(self.stage.name, sum(map(self._asked, self.shards)), self._played, every=5.0)

    @property
    def config(self) -> RolloutConfig:
        return self.run.config.rollout(self.stage.name)

    @property
    def folder(self) -> Path:
        return self.run.stage(self.stage.name)

    @property
    def _played(self) -> int:
        return sum(played.counts["asked"] for played in self.done)

    @classmethod
    def open(cls, run: Run, stage: Stage, stack: ExitStack) -> Roller:
        shards = shards_of(run, stage)
        done = finished(run, stage)[: len(shards)]
        begin_segment(run, stage.name, len(done), environment_of(run))
        method = run.config.method_in(stage)
        publisher = stack.enter_context(open_publisher(run, method, stage, training_team(run, method, stage, None)))
        publisher.publish(0, {})
        run.recall(run.stage(stage.name) / "metrics.jsonl")
        metrics = MetricsLog(run.stage(stage.name), len(done), trackers=open_trackers(run.config.name, stage.name, run.place))
        return cls(run, stage, publisher.rollouts, shards, done, metrics)

    def play(self, number: int) -> None:
        """A shard's episodes, committed with its questions; its row of metrics has the number of shards done."""
        shard, before = self.shards[number], self._played
        sampling = Sampling(self.config.temperature if shard.split == "train" else 0.0)
        episodes = [
            Episode(question, f"{self.stage.name}:{shard.split}:{question.id}", member)
            for question in shard.questions
            for member in range(self._members(shard))
        ]
        done = self.rollouts.collect(episodes, sampling, PREPARE, lambda played: self.bar.update(before + played))
        short = shortfall(len(episodes), done, f"stage {self.stage.name}, {shard.split}")
        questions = [prepared for t in done if (prepared := prepared_question(t)) is not None]
        cost = cost_of(done, trained_roles(self.run.config, self.stage)) if shard.split == "train" else Cost()
        self.done.append(Played(self._count(shard, done, len(questions)), cost))
        scores = means(tasks.find(self.stage.task), [t for t in done if t.status != "error"])
        # Before the shard: who goes on drops rows of shards that are not committed, and could not make one again of a shard that is.
        self.metrics.write(number + 1, {**short, **self._told(shard, done), **{f"{shard.split}/{name}": s for name, s in scores.items()}})
        self.run.record(self.folder / "metrics.jsonl")
        self._commit(number, questions)

    def finish(self) -> None:
        """One artifact of all shards, which are then no longer needed."""
        with writing(self.run.questions(self.stage.name), QUESTIONS, self._provenance()) as partial:
            for split in SPLITS:
                places = [self._place(number) for number, shard in enumerate(self.shards) if shard.split == split]
                rows = [q for place in places if self.run.has(place) and (place / ROWS).exists() for q in read_questions(place / ROWS)]
                if not rows:
                    raise NamedStop(f"stage {self.stage.name} prepared no {split} question: {self._said(split)}")
                write_questions(partial / f"{split}.jsonl", rows)
        self.metrics.close()
        self.run.publish(self.run.questions(self.stage.name))
        self.run.discard(self.folder / SHARDS)

    def _commit(self, number: int, questions: Sequence[Question]) -> None:
        self.run.discard(self._place(number))  # one that was damaged
        with writing(self._place(number), SHARD, {**self.run.made, **asdict(self.done[number])}) as partial:
            if questions:
                write_questions(partial / ROWS, questions)
        self.run.publish(self._place(number))

    def _place(self, number: int) -> Path:
        return place_of(self.run, self.stage, number)

    def _members(self, shard: Shard) -> int:
        return self.config.samples if shard.split == "train" else 1

    def _asked(self, shard: Shard) -> int:
        return len(shard.questions) * self._members(shard)

    def _count(self, shard: Shard, done: Sequence[Trajectory], prepared: int) -> Counts:
        failed = sum(t.status == "error" for t in done)
        asked = self._asked(shard)
        left_out = len(done) - failed - prepared
        return {"asked": asked, "prepared": prepared, "left_out": left_out, "failed": failed, "missing": asked - len(done)}

    def _told(self, shard: Shard, done: Sequence[Trajectory]) -> Metrics:
        counts = self.done[-1].counts
        return {
            f"{shard.split}/prepared": counts["prepared"] / counts["asked"],
            "valid": valid_share(done),
            "tokens/sampled": float(self._cost().sampled),
        }

    def _totals(self, split: str) -> Counts:
        own = [played.counts for shard, played in zip(self.shards, self.done, strict=True) if shard.split == split]
        return {name: sum(counts[name] for counts in own) for name in own[0]}

    def _provenance(self) -> dict[str, object]:
        counts = {split: self._totals(split) for split in SPLITS}
        return {
            **self.run.made,
            "stage": self.stage.name,
            "start": self.stage.start,
            "counts": counts,
            "cost": asdict(self._cost()),
        }

    def _cost(self) -> Cost:
        return sum((played.cost for played in self.done), Cost())

    def _said(self, split: str) -> str:
        c, method = self._totals(split), self.rollouts.method
        return (
            f"of {c['asked']} episodes {type(method).__name__}.prepare left out {c['left_out']}, {c['failed']} failed and {c['missing']} "
            f"are missing; let it take more, or train {self.stage.start or 'a stage'} longer, and delete {self.run.place}/{self.stage.name}/{SHARDS}"
        )


def place_of(run: Run, stage: Stage, number: int) -> Path:
    return run.stage(stage.name) / SHARDS / f"{number:05d}"


def shards_of(run: Run, stage: Stage) -> list[Shard]:
    """What is to be played, the same in every attempt."""
    c = run.config.rollout(stage.name)
    shards = []
    for split, most in zip(SPLITS, (c.questions, c.dev), strict=True):
        questions = load_questions(run, split, stage.data)
        if most is not None and most < len(questions):
            drawn = stream(run.config.seed, "prepared", stage.name, split).sample(range(len(questions)), most)
            questions = [questions[number] for number in sorted(drawn)]
        shards += [Shard(split, questions[at : at + c.shard]) for at in range(0, len(questions), c.shard)]
    return shards


def finished(run: Run, stage: Stage) -> list[Played]:
    """The sound shards before the first that is missing or damaged."""
    done: list[Played] = []
    try:
        while run.has(place := place_of(run, stage, len(done))):
            kept = verify(place, SHARD)["provenance"]
            done.append(Played(kept["counts"], read_cost(kept["cost"])))
    except ArtifactError as error:
        log.warning("going on after %d shards: %s", len(done), error)
    return done


def prepared_question(t: Trajectory) -> Question | None:
    """The episode's question as a later stage has it: a question of its own, since another sample prepares it otherwise."""
    if t.prepared is None or t.status == "error":
        return None
    return replace(t.question, id=f"{t.question.id}.{t.member}", given={**t.question.given, **t.prepared})
