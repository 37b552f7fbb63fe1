"""How a job failed, as an error with a name and as Markdown for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rolecast.errors import RolecastError
from rolecast.launching.status import PodEnd

INPUT_ERROR = 2  # exit code of a stage whose input the user has to put right


class LaunchError(RolecastError):
    """A job could not be submitted or watched."""


class SpecMismatch(LaunchError):
    """A job of this name exists, and it is not this job."""


class JobFailed(RolecastError):
    """A job ended without success. `report`: Markdown. `retryable`: the same job may succeed when it is submitted again."""

    def __init__(self, message: str, report: str = "", retryable: bool = False) -> None:
        super().__init__(message)
        self.report = report or f"# {message}\n"
        self.retryable = retryable


class DeadlineExceeded(JobFailed):
    """The job stayed too long in one state, and was deleted."""


class DeletedExternally(JobFailed):
    """Someone else deleted the job while it was watched."""


def job_failed(name: str, reason: str, ends: Sequence[PodEnd], logs: Mapping[str, str]) -> JobFailed:
    """`logs`: the last lines of each failed pod. Out of memory, or input that the stage refused, would only happen again."""
    first = ends[0] if ends else None
    cause = describe_end(first) if first else reason or "no pod tells why"
    hopeless = first is not None and (first.reason == "OOMKilled" or first.exit_code == INPUT_ERROR)
    return JobFailed(f"job {name} failed: {cause}", report(f"Job {name} failed", reason, ends, logs), retryable=not hopeless)


def describe_end(end: PodEnd) -> str:
    code = "" if end.exit_code is None else f" with exit code {end.exit_code}"
    hint = "; raise memory or lower the batch" if end.reason == "OOMKilled" else ""
    return f"{end.pod} ended{code} ({end.reason}){': ' + end.message if end.message else ''}{hint}"


def report(title: str, reason: str, ends: Sequence[PodEnd], logs: Mapping[str, str]) -> str:
    """Markdown: what the operator said, a table of the failed pods in the order in which they failed, and their last lines."""
    lines = [f"# {title}", ""]
    if reason:
        lines += [reason, ""]
    if ends:
        lines += ["| pod | exit code | reason | message |", "| --- | --- | --- | --- |"]
        lines += [f"| {end.pod} | {'' if end.exit_code is None else end.exit_code} | {end.reason} | {_cell(end.message)} |" for end in ends]
        lines.append("")
    for pod, text in logs.items():
        lines += [f"## Last lines of {pod}", "", *(f"    {line}" for line in text.splitlines()), ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
