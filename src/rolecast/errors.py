"""Errors that name the object and the next step. Each is one line on stderr, and its `exit_code` says whether to try again (`exits`).

`InputError` is for what a user can put right, `NamedStop` for what a run itself has come to: neither gets further by being started again.
Everything else derived from `RolecastError` may.
"""

from rolecast.exits import BAD_INPUT, FAILED, NAMED_STOP, PEER_LOST


class RolecastError(Exception):
    """A run cannot go on, for a reason that has a name."""

    exit_code = FAILED


class InputError(RolecastError):
    """The user's input is at fault: a bad key, file, row or argument."""

    exit_code = BAD_INPUT


class NamedStop(RolecastError):
    """What was trained or sampled so far has come to an end that the same job would come to again."""

    exit_code = NAMED_STOP


class Interrupted(RolecastError):
    """The process was told to end, by the signal `number`. What was trained so far is saved; the same command goes on."""

    def __init__(self, message: str, number: int = 15) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class PeersError(RolecastError):
    """The ranks of a job did not find each other, or this one belongs to another start of the job than they do."""

    exit_code = PEER_LOST


class ArtifactError(RolecastError):
    """A committed artifact is missing, incomplete or does not match its manifest."""


class DiskError(RolecastError):
    """A file cannot be written: the disk is full, or the place is read-only or not ours. What was committed before stays."""


class EngineError(RolecastError):
    """The engine failed: no episode can go on, so the batch ends. What else fails in an episode is that episode's alone."""


class ExternalError(RolecastError):
    """An endpoint that a role speaks through gave no reply that counts: its episode cannot go on, others do."""


class StuckError(RolecastError):
    """A tool or a judge did not answer a call in time: the episode that asked cannot go on, others do."""


class StoreError(RolecastError):
    """The store does not answer, or refuses to: nothing is known about what lies in it."""


class WrongStoreError(StoreError):
    """What the environment says of the store cannot be right: no such bucket, no rights, or an address where nothing ever answered."""

    exit_code = BAD_INPUT


class FencedError(NamedStop):
    """A later attempt of the run was started, so this one may write nothing more."""


class RatioGateError(NamedStop):
    """On the first on-policy minibatch the policy disagrees with the log-probs that it was sampled with."""


class EmptyUpdateError(NamedStop):
    """A step would train on nothing."""


class DivergedError(NamedStop):
    """Losses or gradients are no finite numbers, so updates would destroy the weights; or such weights were to be saved."""


class CollapseError(NamedStop):
    """The policy fell below the collapse threshold and rolling back did not help."""


class SamplingError(NamedStop):
    """A model gives log-probs that are no finite numbers, so nothing can be sampled from it."""


def of_exit(code: int, message: str) -> RolecastError:
    """The error that another process ended with, from its exit code and its line."""
    kinds: dict[int, type[RolecastError]] = {BAD_INPUT: InputError, NAMED_STOP: NamedStop}
    return kinds.get(code, RolecastError)(message)
