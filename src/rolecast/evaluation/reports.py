"""Long answers in an evaluation: their rubric, one criterion at a time, and where there is a reference report, a comparison with it.

Only evaluations ask this, of any method: what a method is rewarded for stays its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from rolecast.evaluation.tasks import QA, Scores, Task, reward_of
from rolecast.judge.kinds import RACE, RUBRIC
from rolecast.ports import Judge
from rolecast.rewards.reports import met, race
from rolecast.types import Question, Reward, Trajectory

KINDS = (RUBRIC.name, RACE.name)  # of the judge
SCORES = ("race", "rubric")  # the first one that there is leads, where no short answers do


def judged(question: Question) -> bool:
    """Whether its answer is held to a rubric here. One with a gold chain is of a world, and has its own rules."""
    return bool(question.gold.rubric) and not question.gold.chain


def reference_of(question: Question) -> str | None:
    """The report that its answer is held against: the gold answer of a question that has a rubric whose criteria have dimensions."""
    gold = question.gold
    return gold.answers[0] if gold.answers and any(item.dimension for item in gold.rubric) else None


def rightness(task: Task, scores: Scores) -> float | None:
    """What tells a right answer (1) from a wrong one: None of a long one, which is neither."""
    return scores.get("em", None if task.headline in SCORES else scores[task.headline])


async def report_rewards(t: Trajectory, judge: Judge) -> list[Reward]:
    """`rubric`, and with a reference `race` and `race/DIMENSION`. A criterion that is unscored leaves its score unscored; no answer scores 0."""
    if not judged(t.question):
        return []
    wanted = [RUBRIC.name, *([RACE.name] if reference_of(t.question) is not None else [])]
    if t.answer is None:
        return [Reward(name, t.id, 0.0, "protocol", "there is no answer") for name in wanted]
    found = await asyncio.gather(*(_of_kind(kind, t, t.answer, judge) for kind in wanted))
    return [reward for rewards in found for reward in rewards]


async def _of_kind(kind: str, t: Trajectory, report: str, judge: Judge) -> list[Reward]:
    gold = t.question.gold
    given = {"question": t.question.text, "gold": gold, "report": report, "reference": reference_of(t.question)}
    verdicts = await asyncio.gather(*(judge.judge(kind, {**given, "item": item.text}) for item in gold.rubric))
    for item, verdict in zip(gold.rubric, verdicts, strict=True):
        if verdict.score is None:
            return [Reward(kind, t.id, None, "judge", f"{item.text!r} is unscored: {verdict.reason}")]
    if kind == RUBRIC.name:
        levels = [(item.weight, verdict.score or 0.0) for item, verdict in zip(gold.rubric, verdicts, strict=True)]
        return [Reward(kind, t.id, met(levels), "judge")]
    pairs = [verdict.levels for verdict in verdicts if verdict.levels is not None]
    if len(pairs) < len(verdicts):
        return [Reward(kind, t.id, None, "judge", "the judge tells no levels of the two texts; start one of this version")]
    return [Reward(f"{kind}/{name}" if name else kind, t.id, score, "judge") for name, score in race(gold.rubric, pairs).items()]


def with_reports(task: Task, questions: Iterable[Question]) -> Task:
    """The task with the scores of long answers beside its own, where any question has a rubric. If all have one, and the task compares short
    answers, which then are none, a report's score leads in their place."""
    some = every = compared = False
    for number, question in enumerate(questions):
        own = judged(question)
        some, every = some or own, own and (every or number == 0)
        compared = compared or reference_of(question) is not None
    if not some:
        return task
    names = SCORES if compared else SCORES[1:]
    leads = every and task.headline == QA.headline

    def scores(t: Trajectory) -> Scores:
        parts = {reward.name for reward in t.rewards if reward.name.startswith(f"{RACE.name}/")}
        own = {} if leads else task.scores(t)
        return {**{name: reward_of(t, name) for name in names}, **own, **{name: reward_of(t, name) for name in sorted(parts)}}

    others = (*names[1:], *task.others) if leads else (*task.others, *names)
    return replace(task, headline=names[0] if leads else task.headline, scores=scores, others=others)
