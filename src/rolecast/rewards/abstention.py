"""How well it was told apart what can be answered: shares over answers that might have been abstentions (DAC, 6.1 and C.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class Answered:
    """Of one answer, each 0 or 1: whether its evidence was sufficient (None: nobody can say), whether it abstained, whether it was
    right, and whether the answer was that was forced from the same evidence, where there is one."""

    sufficient: float | None
    abstained: float
    right: float
    forced: float | None = None


def shares(answers: Sequence[Answered]) -> dict[str, float]:
    """One that would be over nothing is left out.

    `abstention`: abstained. `abstain_accuracy`: answered where the evidence was sufficient and abstained where it was not.
    `selective_accuracy`: right, of those not abstained. `non_abstention_recall`: answered, of those with sufficient evidence.
    `forced_accuracy`: right when made to answer, of those that abstained.
    """
    judged = [answer for answer in answers if answer.sufficient is not None]
    found = {
        "abstention": [answer.abstained for answer in answers],
        "abstain_accuracy": [float(answer.abstained != answer.sufficient) for answer in judged],
        "selective_accuracy": [answer.right for answer in answers if not answer.abstained],
        "non_abstention_recall": [1 - answer.abstained for answer in judged if answer.sufficient],
        "forced_accuracy": [answer.forced for answer in answers if answer.abstained and answer.forced is not None],
    }
    return {name: fmean(values) for name, values in found.items() if values}
