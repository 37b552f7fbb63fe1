"""Errors that name the object and the next step.

`InputError` is for what a user can put right: the command line prints it as one line on stderr and exits with 2.
Everything else derived from `RolecastError` stops a run with a named reason and exit code 1.
"""


class RolecastError(Exception):
    """A run cannot go on, for a reason that has a name."""

    exit_code = 1


class InputError(RolecastError):
    """The user's input is at fault: a bad key, file, row or argument."""

    exit_code = 2


class Interrupted(RolecastError):
    """The process was told to end, by the signal `number`. What was trained so far is saved; the same command goes on."""

    def __init__(self, message: str, number: int = 15) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


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


class FencedError(RolecastError):
    """A later attempt of the run was started, so this one may write nothing more."""


class RatioGateError(RolecastError):
    """On the first on-policy minibatch the policy disagrees with the log-probs that it was sampled with."""


class EmptyUpdateError(RolecastError):
    """A step would train on nothing."""


class DivergedError(RolecastError):
    """Losses or gradients are no finite numbers, so updates would destroy the weights; or such weights were to be saved."""


class CollapseError(RolecastError):
    """The policy fell below the collapse threshold and rolling back did not help."""


class SamplingError(RolecastError):
    """A model gives log-probs that are no finite numbers, so nothing can be sampled from it."""
