"""Faults that no test can notice, since the program does the same with them: they are left out of the rate."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

# (file, the line as the fault has it) → why it changes nothing
EQUIVALENT: dict[tuple[str, str], str] = {}


def why(mutant: Mutant) -> str | None:
    return EQUIVALENT.get((mutant.file, mutant.changed))
