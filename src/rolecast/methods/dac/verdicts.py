"""The lexical judge's rule for DAC."""

from __future__ import annotations

from collections.abc import Mapping

from rolecast.judge.evidence import OnChain, holds
from rolecast.judge.kinds import Rule
from rolecast.methods.dac.judge import SUFFICIENT, SufficientInputs
from rolecast.ports import Verdict


def _sufficient(inputs: SufficientInputs) -> Verdict:
    """1 iff the documents state every gold fact."""
    text = "\n".join(inputs.documents)
    missing = [hop for hop in inputs.gold.chain if not holds(text, hop)]
    return Verdict(0.0, f"{len(missing)} facts are missing") if missing else Verdict(1.0, "every fact is there")


RULES: Mapping[str, Rule] = {SUFFICIENT.name: OnChain(_sufficient)}
