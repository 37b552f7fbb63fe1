"""Long answers in an evaluation: their rubric, one criterion at a time, and where there is a reference report, a comparison with it.

Only evaluations ask this, of any method: what a method is rewarded for stays its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from rolecast.evaluation.tasks import QA, Scores, Task, reward_of
from rolecast.judge.kinds import RACE, RUBRIC, JudgeKind
from rolecast.ports import Judge, Verdict
from rolecast.rewards.reports import both_orders, disagree, met, race
from rolecast.types import Question, Reward, Trajectory

KINDS = (RUBRIC.name, RACE.name)  # of the judge
SCORES = ("race", "rubric")  # the first one that there is leads, where no short answers do
# Beside `race`: its score where the report stands first, and second, and the share of criteria on which the two orders disagree.
ORDERS = ("race.first", "race.second", "race.disagree")


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
    """`rubric`, and with a reference `race`, `race/DIMENSION` and what the two `ORDERS` say. A criterion that is unscored leaves its score
    unscored; no answer scores 0."""
    if not judged(t.question):
        return []
    reference = reference_of(t.question)
    if t.answer is None:
        wanted = [RUBRIC.name, *([RACE.name] if reference is not None else [])]
        return [Reward(name, t.id, 0.0, "protocol", "there is no answer") for name in wanted]
    asked = [_by_rubric(t, t.answer, judge), *([_by_reference(t, t.answer, reference, judge)] if reference is not None else [])]
    return [reward for rewards in await asyncio.gather(*asked) for reward in rewards]


async def _by_rubric(t: Trajectory, report: str, judge: Judge) -> list[Reward]:
    verdicts = await _verdicts(RUBRIC, t, judge, {"report": report})
    if lost := _unscored(RUBRIC, t, verdicts):
        return [lost]
    return [
        Reward(
            RUBRIC.name,
            t.id,
            met([(item.weight, v.score or 0.0) for item, v in zip(t.question.gold.rubric, verdicts, strict=True)]),
            "judge",
        )
    ]


async def _by_reference(t: Trajectory, report: str, reference: str, judge: Judge) -> list[Reward]:
    """The judge sees the two texts in both orders: most prefer a place, whatever stands there."""
    forth, back = await asyncio.gather(
        _verdicts(RACE, t, judge, {"first": report, "second": reference}), _verdicts(RACE, t, judge, {"first": reference, "second": report})
    )
    if lost := _unscored(RACE, t, forth) or _unscored(RACE, t, back):
        return [lost]
    first = [verdict.levels for verdict in forth if verdict.levels is not None]
    second = [(verdict.levels[1], verdict.levels[0]) for verdict in back if verdict.levels is not None]
    if len(first) + len(second) < len(forth) + len(back):
        return [Reward(RACE.name, t.id, None, "judge", "the judge tells no levels of the two texts; start one of this version")]
    rubric, orders = t.question.gold.rubric, list(zip(first, second, strict=True))
    scores = race(rubric, [both_orders(*pair) for pair in orders])
    told = {f"{RACE.name}/{name}" if name else RACE.name: score for name, score in scores.items()}
    told |= dict(zip(ORDERS, (race(rubric, first)[""], race(rubric, second)[""], fmean(disagree(*pair) for pair in orders)), strict=True))
    return [Reward(name, t.id, score, "judge") for name, score in told.items()]


async def _verdicts(kind: JudgeKind, t: Trajectory, judge: Judge, texts: Mapping[str, str]) -> list[Verdict]:
    """Of each criterion, in their order."""
    given = {"question": t.question.text, "gold": t.question.gold, **texts}
    return await asyncio.gather(*(judge.judge(kind.name, {**given, "item": item.text}) for item in t.question.gold.rubric))


def _unscored(kind: JudgeKind, t: Trajectory, verdicts: Sequence[Verdict]) -> Reward | None:
    for item, verdict in zip(t.question.gold.rubric, verdicts, strict=True):
        if verdict.score is None:
            return Reward(kind.name, t.id, None, "judge", f"{item.text!r} is unscored: {verdict.reason}")
    return None


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
        parts = {reward.name for reward in t.rewards if reward.name.startswith(f"{RACE.name}/") or reward.name in ORDERS}
        own = {} if leads else task.scores(t)
        return {**{name: reward_of(t, name) for name in names}, **own, **{name: reward_of(t, name) for name in sorted(parts)}}

    others = (*names[1:], *task.others) if leads else (*task.others, *names)
    return replace(task, headline=names[0] if leads else task.headline, scores=scores, others=others)
