"""What a judge model is asked, and which line of its reply is the verdict: so that the text which is judged can say neither.

What others wrote stands in the prompt as JSON strings on one line, in which no character may pass for the end of a line, of the string or
of a message. A verdict is a line that holds the request's mark: it is made of everything in the prompt, so a text that is judged cannot
hold its own.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, StrictUndefined, Template, UndefinedError
from jinja2.meta import find_undeclared_variables

from rolecast.errors import InputError
from rolecast.judge.kinds import FRAME, SHOWN, JudgeKind
from rolecast.ports import Verdict

_SPECIAL = re.compile(r"[^\x20-\x7e]|<|\[(?=/?(?:INST|SYS))")


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    mark: str


def quoted(value: object) -> str:
    """As JSON on one line. Escaped too: what is not printable (line separators, turns of direction), and what tokens of chat templates begin with."""
    return _SPECIAL.sub(_escaped, json.dumps(value, ensure_ascii=False, default=str))  # str of an undefined one raises


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character in "<[":
        return f"\\u{ord(character):04x}"
    return character if character.isprintable() else json.dumps(character)[1:-1]


def ask_of(kind: JudgeKind, inputs: Mapping[str, Any]) -> Prompt:
    """`inputs` as `kind.read` gives them. `InputError` if the template needs others."""
    template = _template(kind)
    try:
        mark = hashlib.sha256(template.render(inputs, mark="").encode()).hexdigest()[:8]
        return Prompt(template.render(inputs, mark=mark), mark)
    except UndefinedError as error:
        raise InputError(f"the judge prompt of {kind.name!r} needs more inputs: {error}") from None


def verdict_of(kind: JudgeKind, reply: str, mark: str) -> Verdict:
    """What the marked line says; unscored where there is none, or where two say different things. Lines without the mark say nothing."""
    lines = reply.split("\n")
    places = [at for at, line in enumerate(lines) if _value(line, mark) is not None]
    values = {_value(lines[at], mark) for at in places}
    if len(values) != 1:
        fault = "has several score lines that differ" if values else f"has no line that begins with Score {mark}"
        return Verdict(None, f"the judge model's reply {fault}: {reply.strip()[-SHOWN:]!r}")
    return kind.parse("\n".join([*lines[: places[-1]], f"Score: {values.pop()}"]))


def _value(line: str, mark: str) -> str | None:
    found = re.fullmatch(rf"Score {mark}:[ \t]*(\S+)", line.strip())
    return found[1] if found else None


@cache
def _template(kind: JudgeKind) -> Template:
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters["quoted"] = quoted
    own = kind.prompt.read_text()
    if "mark" not in find_undeclared_variables(environment.parse(own)):
        raise InputError(
            f"the judge prompt of {kind.name!r} shows no score line with the request's mark; end it with: Score {{{{ mark }}}}: …"
        )
    return environment.from_string(FRAME.read_text() + own)
