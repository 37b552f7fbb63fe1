"""What a judge can be asked: each kind is a record, and a method brings the kinds of its roles (`Method.judge_kinds`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from rolecast.errors import InputError
from rolecast.ports import Verdict
from rolecast.rewards.reports import share_of
from rolecast.types import Gold, RubricItem

SHOWN = 300  # characters of a reply that go into a reason
_SCORE = re.compile(r"Score:\s*(\S+)")
_SHARE = re.compile(r"0(\.\d+)?|1(\.0+)?")
_SIGN = {"1": 1.0, "+1": 1.0, "-1": -1.0}
_ITEM = re.compile(r"- \[([+-]?\d{1,2})\] (\S.*)")
HEAVIEST = 10  # weight of a criterion
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
_WORDS = {"YES": 1.0, "NO": 0.0}
FRAME = files(__package__) / "prompts" / "frame.jinja"  # what every prompt begins with

Rule = Callable[[Any], Verdict]  # the lexical judge's: from a kind's inputs, as its model reads them


class JudgeInputs(BaseModel):
    """What every kind of this package is given. A method may send more than a kind reads."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    question: str
    gold: Gold


class AnswerInputs(JudgeInputs):
    prediction: str | None


class RubricInputs(JudgeInputs):
    item: str
    report: str


class RaceInputs(JudgeInputs):
    item: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class JudgeKind:
    """`name` is METHOD.WHAT. `prompt`: the template that a model is asked with, rendered with `inputs` and the request's `mark` alone; it ends
    with the form of the score line, `Score {{ mark }}: …`. `parse` reads the reply, whose last line then is `Score: …`. `yes_no`: the line
    holds YES or NO, so that where an endpoint tells log-probs, the score is the share of YES.
    """

    name: str
    prompt: Traversable
    inputs: type[BaseModel]
    parse: Callable[[str], Verdict]
    yes_no: bool = False

    @property
    def digest(self) -> str:
        """Of all that a model is asked with but for the inputs."""
        return hashlib.sha256(FRAME.read_bytes() + self.prompt.read_bytes()).hexdigest()[:12]

    def read(self, given: Mapping[str, Any]) -> Any:
        """The inputs as an instance of `inputs`. `InputError` for one that is missing or of another type: none is made up."""
        try:
            return self.inputs.model_validate(dict(given))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            if first["type"] == "missing":
                raise InputError(f"inputs of {self.name!r} lack {where!r}") from None
            raise InputError(f"inputs of {self.name!r}: {where}: {first['msg']}") from None


def read_share(reply: str) -> Verdict:
    """A reply that ends with a line `Score: x`, x in [0, 1], YES or NO. Anything else is unscored, with the reason."""

    def score(value: str) -> float:
        if value in _WORDS:
            return _WORDS[value]
        if not _SHARE.fullmatch(value):
            raise ValueError
        return float(value)

    return _last_line(reply, score)


def read_sign(reply: str) -> Verdict:
    """A reply that ends with a line `Score: x`, x one of 1, -1, or none for no verdict."""

    def score(value: str) -> float | None:
        if value == "none":
            return None
        if value not in _SIGN:
            raise ValueError
        return _SIGN[value]

    return _last_line(reply, score)


def read_level(reply: str) -> Verdict:
    """A reply that ends with a line `Score: x`, x one of the five levels."""
    verdict = read_share(reply)
    if verdict.score is not None and verdict.score not in LEVELS:
        return Verdict(None, f"the judge model's score {verdict.score:g} is none of the five levels")
    return verdict


def read_levels(reply: str) -> Verdict:
    """A reply that ends with a line `Score: x/y`, each one of the five levels: of the first text and of the second. The score is x / (x + y),
    the first one's share; 0 where neither has any."""
    pairs: list[tuple[float, float]] = []

    def share(value: str) -> float:
        own, _, other = value.partition("/")
        pairs.append((_level(own), _level(other)))
        return share_of(*pairs[-1])

    verdict = _last_line(reply, share)
    return replace(verdict, levels=pairs[-1]) if verdict.score is not None else verdict


def _level(text: str) -> float:
    if not _SHARE.fullmatch(text) or float(text) not in LEVELS:
        raise ValueError
    return float(text)


def read_items(reply: str) -> Verdict:
    """A reply of lines `- [weight] criterion`, weight a whole number from -10 to 10 and not 0, that ends with `Score: n`, n their number:
    so that a rubric of which a part was lost or misread is none."""
    lines = [line.strip() for line in reply.split("\n") if line.strip()]
    found = [_ITEM.fullmatch(line) for line in lines[:-1]]
    items = tuple(RubricItem(item[2], float(item[1])) for item in found if item and 0 < abs(int(item[1])) <= HEAVIEST)
    said = _SCORE.fullmatch(lines[-1]) if lines else None
    if said is None or said[1] != str(len(items)) or not any(item.weight > 0 for item in items):
        return Verdict(
            None, f"the judge model wrote {len(items)} criteria and counts {said[1] if said else 'none'}; one must have a weight above 0"
        )
    return Verdict(1.0, f"{len(items)} criteria", items=items)


def _last_line(reply: str, score: Callable[[str], float | None]) -> Verdict:
    lines = [line.strip() for line in reply.split("\n") if line.strip()]
    found = _SCORE.fullmatch(lines[-1]) if lines else None
    reason = " ".join(lines[:-1])[-SHOWN:]
    if found is None:
        return Verdict(None, f"the judge model's reply does not end with a score line: {reply.strip()[-SHOWN:]!r}")
    try:
        value = score(found[1])
    except ValueError:
        return Verdict(None, f"the judge model's score {found[1]!r} is none of this kind")
    return Verdict(value, reason or ("the judge model gave no verdict" if value is None else ""))


_PROMPTS = files(__package__) / "prompts"
ANSWER = JudgeKind("answer", _PROMPTS / "answer.jinja", AnswerInputs, read_share, yes_no=True)
RUBRIC = JudgeKind("rubric", _PROMPTS / "rubric.jinja", RubricInputs, read_level)
RACE = JudgeKind("race", _PROMPTS / "race.jinja", RaceInputs, read_levels)
RUBRIC_WRITTEN = JudgeKind("rubric.write", _PROMPTS / "rubric_write.jinja", JudgeInputs, read_items)
SHARED: Mapping[str, JudgeKind] = {kind.name: kind for kind in (ANSWER, RUBRIC, RACE, RUBRIC_WRITTEN)}
