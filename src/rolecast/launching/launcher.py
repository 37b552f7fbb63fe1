"""The port through which a pipeline step runs a training job, and its three adapters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from rolecast.errors import InputError
from rolecast.launching.spec import TrainingJobSpec

LauncherName = Literal["local", "pytorchjob", "trainjob"]


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


def make_launcher(name: str) -> Launcher:
    if name == "local":
        from rolecast.launching.local import LocalLauncher

        return LocalLauncher()
    if name in get_args(LauncherName):
        from rolecast.launching.cluster import KINDS, connect
        from rolecast.launching.kubernetes import KubernetesLauncher

        return KubernetesLauncher(connect(), KINDS[name])
    raise InputError(f"no launcher {name!r}; there are {', '.join(get_args(LauncherName))}")


def say(line: str) -> None:
    print(line, flush=True)
