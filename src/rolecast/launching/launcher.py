"""The port through which a pipeline step runs a training job, and what its adapters share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from rolecast.launching.spec import TrainingJobSpec


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job that succeeded. `seconds` that it was seen in each state."""

    name: str
    kind: str
    seconds: dict[str, float] = field(default_factory=dict)

    def report(self) -> str:
        """Markdown."""
        rows = [f"| {state} | {spent:g} |" for state, spent in self.seconds.items()]
        return "\n".join(
            [f"# Job {self.name} succeeded", "", f"Launched as {self.kind}.", "", "| state | seconds |", "| --- | --- |", *rows, ""]
        )


class Launcher(Protocol):
    def run(self, spec: TrainingJobSpec) -> Outcome:
        """Blocks until the job has succeeded. Raises `JobFailed`, whose report tells why it failed."""
        ...


def say(line: str) -> None:
    print(line, flush=True)
