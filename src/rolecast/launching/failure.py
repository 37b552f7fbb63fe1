"""How a job failed, as an error with a name and as Markdown for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rolecast.errors import InputError, RolecastError
from rolecast.exits import DONE, FAILED, KILLED, NAMED_STOP, PEER_LOST, again
from rolecast.launching.status import PodEnd
from rolecast.processes import ERROR


class LaunchError(RolecastError):
    """A job could not be submitted or watched."""


class Denied(LaunchError):
    """The API server refuses what was asked for, with an HTTP `status` that no patience changes: somebody has to put it right."""

    exit_code = InputError.exit_code

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Unseen(Denied):
    """A TrainJob whose runtime Trainer does not know. It reads runtimes from a cache, which lags behind one that was made a moment ago."""


class SpecMismatch(LaunchError):
    """A job of this name exists, and it is not this job."""

    exit_code = NAMED_STOP


class JobFailed(RolecastError):
    """A job ended without success. `report`: Markdown. `retryable`: the same job may succeed when it is submitted again. `lost`: its
    pods were taken from it, by a drain or an eviction, and nothing is wrong with it."""

    def __init__(self, message: str, report: str = "", retryable: bool = False, lost: bool = False, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.report = report or f"# {message}\n"
        self.retryable, self.lost = retryable, lost
        self.exit_code = exit_code


class DeadlineExceeded(JobFailed):
    """The job stayed too long in one state, and was deleted."""

    def __init__(self, message: str, report: str = "") -> None:
        super().__init__(message, report, exit_code=NAMED_STOP)


class DeletedExternally(JobFailed):
    """Someone else deleted the job while it was watched."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=NAMED_STOP)


class ArtifactMissing(JobFailed):
    """The job says that it succeeded, and what it was to make is not in the store."""


def job_failed(name: str, reason: str, ends: Sequence[PodEnd], logs: Mapping[str, str], taken: bool = False) -> JobFailed:
    """`logs`: the last lines of each failed pod. `taken`: a pod was taken away while the job ran. Out of memory, bad
    input and a named stop would only happen again."""
    first = min(ends, key=_follows, default=None)
    cause = describe_end(first) if first else reason or "no pod tells why"
    code = first.exit_code if first and first.exit_code is not None and _final(first) else FAILED
    if any(end.reason == "OOMKilled" for end in ends) and code == FAILED:
        code = NAMED_STOP
    hopeless = code != FAILED
    lost = not hopeless and (taken or any(end.lost for end in ends))
    how = "lost a pod" if lost else "failed"
    text = report(f"Job {name} {how}", reason, ends, logs)
    return JobFailed(f"job {name} {how}: {cause}", text, retryable=not hopeless, lost=lost, exit_code=code)


def _final(end: PodEnd) -> bool:
    """Whether the same job would end so again."""
    return end.exit_code is not None and end.exit_code != DONE and not again(end.exit_code)


def _follows(end: PodEnd) -> int:
    """Which end is the cause, the least one: what has a name, then a pod that was taken away, and last what only lost its peer."""
    return 0 if _final(end) else 1 if end.lost else 3 if end.exit_code == PEER_LOST else 2


def describe_end(end: PodEnd) -> str:
    """What the container says of its end, if it says something; then the pod, its exit code and reason."""
    code = "" if end.exit_code is None else f" with exit code {end.exit_code}"
    hint = "; raise memory or lower the batch" if end.reason == "OOMKilled" else ""
    killed = end.reason == "OOMKilled" or end.exit_code == KILLED
    said = headline(end.message, killed)
    return f"{said} ({end.pod} ended{code}, {end.reason}){hint}" if said else f"{end.pod} ended{code} ({end.reason}){hint}"


def headline(message: str, killed: bool = False) -> str:
    """Of a termination message, which may be the last lines of a log: our own line, if it has one, else the last line. What was `killed`
    had no time to say why, and what it said last is not the reason."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    own = [line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)]
    if not own and killed and len(lines) > 1:
        return ""
    return (own or lines or [""])[-1]


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
