"""Faults that no test can notice, since the program does the same with them: they are left out of the rate."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

# (file, the line as the fault has it) → why it changes nothing
EQUIVALENT: dict[tuple[str, str], str] = {
    ("coordinator/leases.py", "_numbers: count[int] = field(default_factory=lambda: count(0))  # of leases"): "a lease's number has to differ from the others', no more",
    ("learner/backends.py", "def forward(self, slot: Slot, rows: Rows, temperature: float = 2.0) -> Any: ..."): "a protocol, which is never called",
    ("learner/cut.py", "width = 1"): "it is read only after a first part has set it",
    ("weights/team.py", 'if team._built_in is None or "adapter" in team.place.values():'): "without adapters nothing is activated, and the base's own is when it is first asked for",
}  # fmt: skip


def why(mutant: Mutant) -> str | None:
    return EQUIVALENT.get((mutant.file, mutant.changed))
