"""The lexical judge's rule."""

from __future__ import annotations

from echo_method.judge import EchoInputs
from rolecast.ports import Verdict


def _echoer(inputs: EchoInputs) -> Verdict:
    return Verdict(1.0, "repeats") if inputs.said == inputs.question else Verdict(-1.0, "says something else")


RULES = {"echo.echoer": _echoer}
