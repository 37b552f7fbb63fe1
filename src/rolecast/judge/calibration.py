"""How far a judge agrees with people: on rows that they have judged before it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rolecast.errors import InputError, RolecastError
from rolecast.judge.kinds import JudgeKind, read_level
from rolecast.methods.registry import judge_kind
from rolecast.ports import Judge, Verdict
from rolecast.reading import read_json

AT_ONCE: Final = 64  # verdicts that are asked for
Z: Final = 1.959964  # of a normal distribution, for 95 %


class JudgedRow(BaseModel):
    """A line of the file: what a judge of `kind` is given, and the score that people gave."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: str
    inputs: dict[str, Any]
    expected: Annotated[float, Field(ge=-1, le=1, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Length:
    """By how much the judge's labels are above people's, on average, for the shorter and the longer half of what is judged."""

    short: float
    long: float


@dataclass(frozen=True, slots=True)
class Position:
    """Of `n` rows with lists, asked again with these the other way round: the share whose label changed, and by how much scores rose."""

    n: int
    flipped: float
    shift: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of one kind. Labels are levels where the kind has levels; else a score is good from 0.5, so ±1 by its sign.

    `ci95`: Wilson's interval of the agreement. `kappa`: Cohen's; None where both always say the same one thing. `lenient`: by how much
    labels are above people's, on average. Unscored rows are in `n` alone.
    """

    kind: str
    n: int
    unscored: int
    agreement: float
    ci95: tuple[float, float]
    kappa: float | None
    lenient: float
    length: Length | None
    position: Position | None
    reasons: Mapping[str, int] = field(default_factory=dict)  # why rows are unscored, the three most frequent


def read_rows(file: Path) -> list[JudgedRow]:
    """`InputError` names the line that is none, or whose kind does not take its inputs."""
    try:
        lines = file.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from None
    rows = list(_rows(file, lines))
    if not rows:
        raise InputError(f"{file} has no rows; give lines of {{kind, inputs, expected}}")
    return rows


def _rows(file: Path, lines: Sequence[str]) -> Iterator[JudgedRow]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            row = JudgedRow.model_validate(read_json(line, where))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise InputError(f"{where}: {'.'.join(map(str, first['loc'])) or 'the row'}: {first['msg']}") from None
        kind = judge_kind(row.kind)
        if kind is None:
            raise InputError(f"{where}: no judge has the kind {row.kind!r}")
        try:
            kind.read(row.inputs)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        yield row


async def calibrate(judge: Judge, rows: Sequence[JudgedRow]) -> list[Calibration]:
    """By kind, in the order in which they come. RolecastError if no verdict of a kind has a score."""
    room = asyncio.Semaphore(AT_ONCE)

    async def asked(row: JudgedRow, inputs: Mapping[str, Any]) -> Verdict:
        async with room:
            return await judge.judge(row.kind, inputs)

    turned = {at: other for at, row in enumerate(rows) if (other := turned_round(row.inputs)) is not None}
    verdicts = await asyncio.gather(*(asked(row, row.inputs) for row in rows))
    again = dict(zip(turned, await asyncio.gather(*(asked(rows[at], other) for at, other in turned.items())), strict=True))
    found = []
    for name in dict.fromkeys(row.kind for row in rows):
        kind = judge_kind(name)
        assert kind is not None, "read_rows refuses others"
        of = [at for at, row in enumerate(rows) if row.kind == name]
        found.append(_calibrated(kind, [(rows[at], verdicts[at], again.get(at)) for at in of]))
    return found


def turned_round(inputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """The inputs with every list the other way round; None where that makes no difference."""
    gold = inputs.get("gold")
    other = {name: value[::-1] if isinstance(value, list) else value for name, value in inputs.items()}
    if isinstance(gold, Mapping) and isinstance(gold.get("answers"), list):
        other["gold"] = {**gold, "answers": gold["answers"][::-1]}
    return None if other == inputs else other


def _calibrated(kind: JudgeKind, judged: Sequence[tuple[JudgedRow, Verdict, Verdict | None]]) -> Calibration:
    label = _level if kind.parse is read_level else _good
    scored = [(row, verdict.score, again) for row, verdict, again in judged if verdict.score is not None]
    reasons = Counter(verdict.reason for _, verdict, _ in judged if verdict.score is None)
    if not scored:
        raise RolecastError(f"none of {len(judged)} verdicts of {kind.name} has a score, most often: {reasons.most_common(1)[0][0]}")
    pairs = [(label(row.expected), label(score)) for row, score, _ in scored]
    same = sum(expected == said for expected, said in pairs)
    lengths = [_length(row) for row, _, _ in scored]
    return Calibration(
        kind.name, len(judged), len(judged) - len(scored), same / len(pairs), wilson(same, len(pairs)), kappa(pairs),
        fmean(said - expected for expected, said in pairs), _by_length(pairs, lengths),
        _by_position([(score, again.score) for _, score, again in scored if again is not None and again.score is not None], label),
        dict(reasons.most_common(3)),
    )  # fmt: skip


def _level(score: float) -> float:
    return score


def _good(score: float) -> float:
    return float(score >= 0.5)


def wilson(same: int, n: int) -> tuple[float, float]:
    """95 % of a share (Wilson 1927): of 32 of 32 it is not [1, 1]."""
    share, spread = same / n, Z * Z / n
    middle = (share + spread / 2) / (1 + spread)
    half = Z * sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)


def kappa(pairs: Sequence[tuple[float, float]]) -> float | None:
    """(p_o − p_e) / (1 − p_e), p_e from the shares of each label on both sides (Cohen 1960)."""
    n = len(pairs)
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    chance = sum(first[label] * second[label] for label in first) / (n * n)
    return None if chance == 1 else (sum(a == b for a, b in pairs) / n - chance) / (1 - chance)


def _by_length(pairs: Sequence[tuple[float, float]], lengths: Sequence[int]) -> Length | None:
    middle = median(lengths)
    short = [said - expected for (expected, said), length in zip(pairs, lengths, strict=True) if length <= middle]
    long = [said - expected for (expected, said), length in zip(pairs, lengths, strict=True) if length > middle]
    return Length(fmean(short), fmean(long)) if short and long else None


def _length(row: JudgedRow) -> int:
    """Characters of what is judged, and what it is judged with, but for the question and what is known to be right."""
    return sum(len(text) for name, value in row.inputs.items() if name not in ("question", "gold") for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _by_position(pairs: Sequence[tuple[float, float]], label: Callable[[float], float]) -> Position | None:
    if not pairs:
        return None
    return Position(len(pairs), fmean(label(a) != label(b) for a, b in pairs), fmean(b - a for a, b in pairs))
