"""Demonstrations on real questions: a teacher plays the method itself, and episodes that are right and valid are kept for SFT.

The teacher is any endpoint, or a model directory; with the model that is to be trained this is rejection sampling. Every episode is kept
as soon as it has ended, so nothing is asked twice: the command goes on after a kill, with more questions or samples, or with a larger budget.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from rolecast.data.records import iter_questions
from rolecast.errors import InputError, NamedStop
from rolecast.evaluation.cost import Cost, cost_of, read_cost
from rolecast.evaluation.tasks import QA
from rolecast.leasing import Group
from rolecast.methods.base import Method
from rolecast.ports import Sampling
from rolecast.rollout.collect import Collector, Tell
from rolecast.rollout.render import Renderer
from rolecast.stages.alone import Trial, as_run, claim, retriever_of
from rolecast.stages.budget import judge_spent
from rolecast.stages.keeping import Keeper, each, mended, whole_lines
from rolecast.stages.models import played_method, speaking_engine
from rolecast.stages.progress import Progress
from rolecast.stages.services import open_judge
from rolecast.stages.team import prepare_torch
from rolecast.stages.working import working
from rolecast.store.artifact import writing
from rolecast.teachers.demonstrations import TURNS as FILE
from rolecast.teachers.kept import TURNS, kept_turns
from rolecast.types import Question, Trajectory

PLAYED, KEPT = "episodes.jsonl", "demonstrations"
FEW = 8  # demonstrations: fewer teach a form at most


@dataclass(frozen=True, slots=True)
class Wanted:
    """`samples`: episodes of a question at most; it gets no more once one is kept. `by`, `least`: the score that makes one right.
    `budget`: tokens that the teacher reads and says, over all times that the command was given; None is no limit."""

    samples: int = 4
    by: Literal["em", "f1", "cem"] = "em"
    least: float = 1.0
    temperature: float = 1.0
    budget: int | None = None


@dataclass(slots=True)
class Tally:
    """`both`: right and valid, which are kept. `turns`: of those, by role."""

    questions: int = 0
    asked: int = 0  # questions with an episode
    episodes: int = 0
    failed: int = 0
    valid: int = 0
    right: int = 0
    both: int = 0
    turns: Counter[str] = field(default_factory=Counter)
    cost: Cost = field(default_factory=Cost)

    @property
    def tokens(self) -> int:
        return self.cost.prompt + self.cost.frozen

    def told(self) -> str:
        return f"{self.valid} are valid, {self.right} right, {self.both or 'none is'} both"

    def counts(self) -> dict[str, int]:
        return {
            "questions": self.questions, "of them asked": self.asked, "episodes": self.episodes, "failed": self.failed, "valid": self.valid,
            "right": self.right, "both, kept": self.both, **{f"turns of {role}": n for role, n in sorted(self.turns.items())},
            "tokens read and said": self.tokens,
        }  # fmt: skip


def demonstrate(trial: Trial, wanted: Wanted) -> tuple[Path, Tally, bool]:
    """The folder with the demonstrations, what was found, and whether the budget ended it. NamedStop where none is kept."""
    trial.speaker.check()
    trial.out.mkdir(parents=True, exist_ok=True)
    run = as_run(trial)
    with working(run, "demonstrate"):
        asked = trial.asked()
        del asked["config"]["n"]  # no draw of an episode depends on how many are asked for
        claim(trial.out, {**asked, "by": wanted.by, "least": wanted.least, "temperature": wanted.temperature})
        file = trial.out / PLAYED
        known = mended(file, lambda row: (row["id"], row["member"]))
        places = {question.id: at for at, question in enumerate(islice(iter_questions(trial.questions), trial.config.eval.n))}
        before = tally(file, places)
        allowed = trial.config.judge.budget
        spent = (wanted.budget is not None and before.tokens >= wanted.budget) or _judge_spent(before, allowed)
        if not spent and (before.asked < len(places) or any(_open(file, wanted, places))):
            spent = _play(trial, run_method(trial), wanted, file, known, before, places)
        found = tally(file, places)
        if found.both:
            _write(trial, file, found, places)
        if allowed is not None and spent and _judge_spent(found, allowed):
            raise judge_spent(allowed, f"{found.both} demonstrations of {found.asked} questions are kept in {trial.out}")
    if not found.both:
        raise NamedStop(f"{trial.out}: none of {found.episodes} episodes is kept: {found.told()}{_advice(wanted, spent)}")
    return trial.out / KEPT, found, spent


def _judge_spent(found: Tally, allowed: int | None) -> bool:
    return allowed is not None and found.cost.judge_tokens >= allowed


def _advice(wanted: Wanted, spent: bool) -> str:
    if spent:
        return f"; the budget of {wanted.budget} tokens is spent, raise it to go on"
    return "; take a stronger teacher, raise --samples, or lower --least with --by f1"


def run_method(trial: Trial) -> Method:
    """The method as it is played, without probes: nothing but its own turns is learned."""
    method = copy.copy(played_method(trial.config, trial.speaker))
    method.probed = frozenset()  # type: ignore[misc]
    return method


def _open(file: Path, wanted: Wanted, places: Mapping[str, int]) -> Iterator[str]:
    """Questions that may be asked once more."""
    done = _done(file)
    for name in places:
        members, kept = done.get(name, (0, False))
        if not kept and members < wanted.samples:
            yield name


def _done(file: Path) -> dict[str, tuple[int, bool]]:
    """Of each question, how many episodes there are and whether one is kept."""
    done: dict[str, tuple[int, bool]] = {}
    for line in whole_lines(file):
        row = json.loads(line)
        members, kept = done.get(row["id"], (0, False))
        done[row["id"]] = (max(members, row["member"] + 1), kept or row["threads"] is not None)
    return done


def _play(
    trial: Trial, method: Method, wanted: Wanted, file: Path, known: set[Any], before: Tally, places: Mapping[str, int]
) -> bool:  # fmt: skip
    """Whether the budget ended it."""
    c = trial.config
    prepare_torch(c)
    retriever = retriever_of(as_run(trial), method, trial.corpus)
    engine, renderer = speaking_engine(c, method, trial.speaker, f"teacher/{trial.speaker.name or Path(trial.speaker.place).name}")
    collector = Collector(method, engine, retriever, open_judge(as_run(trial)), renderer, c.seed, c.model.max_context, c.engine.in_flight)
    done = _done(file)
    start = before.questions - sum(1 for _ in _open(file, wanted, places))
    bar = Progress("demonstrate", before.questions, start)
    try:
        with file.open("ab") as out:
            keeper = Keeper(out, judged=before.cost.judge_tokens, allowed=c.judge.budget)
            sink = _Sink(keeper, method, renderer, wanted, before.tokens, bar, start)
            asked = islice(iter_questions(trial.questions), before.questions)
            collector.run(_all(collector, asked, done, known, sink))
            return sink.spent
    finally:
        engine.close()


@dataclass(slots=True)
class _Sink:
    """What becomes of an episode that has ended. `ended`: questions that are asked no more."""

    keeper: Keeper
    method: Method
    renderer: Renderer
    wanted: Wanted
    tokens: int
    bar: Progress
    ended: int

    @property
    def spent(self) -> bool:
        taught = self.wanted.budget is not None and self.tokens >= self.wanted.budget
        return taught or self.keeper.spent

    def keep(self, question: Question, member: int, t: Trajectory) -> bool:
        """Whether it is a demonstration."""
        score = QA.scores(t)[self.wanted.by]
        assert score is not None, "questions without answers are refused before"
        turns, cost = kept_turns(t), cost_of([t], ())
        right = score >= self.wanted.least
        row = {
            "id": question.id, "dataset": question.dataset, "original_id": question.original_id, "member": member, "answer": t.answer,
            "score": score, "right": right, "valid": turns is not None, "status": t.status, "fault": t.fault if t.status == "error" else "",
            "cost": asdict(cost), "renderer": self.renderer.fingerprint(), "threads": turns[TURNS] if turns is not None and right else None,
        }  # fmt: skip
        self.keeper.keep(row, cost.judge_tokens)
        self.tokens += cost.prompt + cost.frozen
        return row["threads"] is not None

    def question_ended(self) -> None:
        self.ended += 1
        self.bar.update(self.ended)


async def _all(
    collector: Collector, questions: Iterator[Question], done: Mapping[str, tuple[int, bool]], known: set[Any], sink: _Sink
) -> None:
    async def play(waits: tuple[int, Question], _: Tell) -> None:
        number, question = waits
        phase = sink.method.taught[number % len(sink.method.taught)]
        for member in range(sink.wanted.samples):
            if (question.id, member) in known:
                continue
            if sink.spent:
                return
            sampling = Sampling(sink.wanted.temperature, 1.0)
            [t] = await collector.play_group(Group(f"demonstrate:{question.id}", question, (member,), phase, sampling))
            if sink.keep(question, member, t):
                break
        sink.question_ended()

    await each(_waiting(questions, done, sink.wanted.samples), play, collector.in_flight, lambda: sink.spent)


def _waiting(questions: Iterator[Question], done: Mapping[str, tuple[int, bool]], samples: int) -> Iterator[tuple[int, Question]]:
    """Those that may be asked once more, with their numbers."""
    for number, question in enumerate(questions):
        members, kept = done.get(question.id, (0, False))
        if kept or members >= samples:
            continue
        if not question.gold.answers:
            raise InputError(f"question {question.id!r} has a rubric and no answer, so no episode of it can be right; leave it out")
        yield number, question


def tally(file: Path, places: Mapping[str, int]) -> Tally:
    """Of the questions that have a place. What was paid for others, when more were asked for, counts too."""
    found, asked = Tally(len(places)), set()
    for line in whole_lines(file):
        row = json.loads(line)
        found.cost = found.cost + read_cost(row["cost"])
        if row["id"] not in places:
            continue
        asked.add(row["id"])
        found.episodes += 1
        found.failed += bool(row["fault"])
        found.valid += row["valid"]
        found.right += row["right"]
        found.both += row["threads"] is not None
        found.turns.update(thread["role"] for thread in row["threads"] or ())
    found.asked = len(asked)
    return found


def _write(trial: Trial, file: Path, found: Tally, places: Mapping[str, int]) -> None:
    """The demonstrations as an artifact, one episode of a question, in the order of the questions: of more of them it begins alike."""
    begins, kept = 0, list[tuple[int, int]]()
    for line in whole_lines(file):
        row = json.loads(line)
        if row["threads"] is not None and row["id"] in places:
            kept.append((places[row["id"]], begins))
        begins += len(line)
    about = {"config": trial.asked()["config"], "model": trial.speaker.name or trial.speaker.place, "counts": found.counts()}
    with writing(trial.out / KEPT, KEPT, about) as partial, file.open("rb") as lines, (partial / FILE).open("wb") as out:
        for _, at in sorted(kept):
            lines.seek(at)
            out.write(lines.readline())
