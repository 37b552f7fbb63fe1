"""One fault: a piece of a source file and what stands there instead."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "rolecast"


@dataclass(frozen=True, slots=True)
class Mutant:
    """`file` is a path under src/rolecast. `at`: where `before` stands in it, counted in characters.

    `kind`: "term" for what a step computes, "wiring" for what joins its parts, or the operator that drew it.
    """

    name: str
    kind: str
    file: str
    at: int
    before: str
    after: str

    @property
    def line(self) -> int:
        return source(self.file).count("\n", 0, self.at) + 1

    @property
    def text(self) -> str:
        """The whole file with the fault."""
        whole = source(self.file)
        assert whole.startswith(self.before, self.at)
        return whole[: self.at] + self.after + whole[self.at + len(self.before) :]

    @property
    def changed(self) -> str:
        """The first line that differs, as it is then: what names a drawn fault while lines above it come and go."""
        old, new = source(self.file).splitlines(), self.text.splitlines()
        return next((line for line, was in zip(new, old, strict=False) if line != was), "").strip()

    @property
    def diff(self) -> str:
        lines = difflib.unified_diff(source(self.file).splitlines(), self.text.splitlines(), lineterm="", n=0)
        return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def source(file: str) -> str:
    return (PACKAGE / file).read_text()


def listed(kind: str, file: str, name: str, before: str, after: str) -> Mutant:
    """A fault of the hand-written lists. ValueError where `before` does not stand in the file exactly once."""
    times = source(file).count(before)
    if times != 1:
        raise ValueError(f"mutant {name!r}: its text stands in {file} {times} times, not once; write it as the file now has it")
    return Mutant(name, kind, file, source(file).index(before), before, after)
