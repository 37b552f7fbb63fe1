"""DAC's rewards as pure functions of what was found and said. All inputs lie in [0, 1]; None is unscored, and so is what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

SearcherReward = Literal["cross", "answer", "sufficiency"]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Of evidence and of the generator's answer to it: s, 1 − v and a of section 3.2. Of several answers their means."""

    sufficient: float | None
    abstained: float | None = None
    right: float | None = None


NOTHING_FOUND = Verdicts(0.0, 1.0, 0.0)


def evidence_value(of: Verdicts, kind: SearcherReward) -> float | None:
    """What the evidence is worth to the searcher. `cross`: r_S = s ∧ v (eq. 1); `answer`: a (Decomp-AR); `sufficiency`: s (Decomp-SR)."""
    if kind == "answer":
        return of.right
    if kind == "sufficiency" or not of.sufficient:  # without s there is nothing to accept
        return of.sufficient
    return None if of.abstained is None else of.sufficient * (1 - of.abstained)


def differences(values: Sequence[float]) -> list[float]:
    """r(t) = R(t) − R(t−1) with R(0) = 0, so that Σ_{i≥t} r(i) = R(T) − R(t−1) (3.4)."""
    return [after - before for before, after in zip([0.0, *values], values, strict=False)]


def generator_reward(of: Verdicts) -> float | None:
    """r_G = a ∨ (¬s ∧ ¬v) (eq. 2). Without s the row is left out, also where the answer is right: else only answers would be seen."""
    if of.sufficient is None or of.right is None or of.abstained is None:
        return None
    return max(of.right, of.abstained * (1 - of.sufficient))
