"""The process of a pipeline's step: how it begins, how it ends, and what it leaves behind for those that come after.

KFP tries a step again whatever it ended with, since its launcher passes no exit code on. So an end is recorded beside the run, under the
pipeline's execution: a step that finds there that it ended for a reason that stays (bad input, a named stop) says it again at once and
does nothing. The pipeline's last step tells what is recorded and deletes it, so that a person may try again.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, ParamSpec

from pydantic import BaseModel, ConfigDict, ValidationError

from rolecast import exits
from rolecast.disk import disk_fault
from rolecast.errors import RolecastError
from rolecast.installed import needing
from rolecast.processes import die_with_parent, prepare_process, say_error
from rolecast.signals import Stopped, signals_raise
from rolecast.store.uri import S3, open_store
from rolecast.working_copies import told

P = ParamSpec("P")
FOLDER = "ends"
S3_CA = Path("/etc/rolecast/s3-ca/ca.crt")  # of the store's private authority, where a pipeline mounts one


class End(BaseModel):
    """`report`: Markdown, where there is more to say than the line."""

    model_config = ConfigDict(frozen=True)

    step: str
    code: int
    message: str
    report: str = ""


@dataclass(frozen=True, slots=True)
class Ends:
    """How steps of one execution of a pipeline ended without success. `place`: what they work at, a folder or s3://…"""

    place: str
    execution: str

    def note(self, end: End) -> None:
        """Nothing is made of a place where nothing is yet."""
        if self.execution and (self.place.startswith(S3) or Path(self.place).is_dir()):
            open_store(self.place).put(f"{self._folder}/{end.step}.json", json.dumps(end.model_dump()).encode())

    def of(self, step: str) -> End | None:
        return _read(open_store(self.place).get(f"{self._folder}/{step}.json")) if self.execution else None

    def all(self) -> list[End]:
        store = open_store(self.place)
        ends = [_read(store.get(key)) for key in store.keys(self._folder)] if self.execution else []
        return [end for end in ends if end is not None]

    def forget(self) -> None:
        open_store(self.place).delete(self._folder)

    @property
    def _folder(self) -> str:
        return f"{FOLDER}/{re.sub('[^A-Za-z0-9-]', '-', self.execution)}"


def _read(data: bytes | None) -> End | None:
    """A record that cannot be read says nothing."""
    try:
        return End.model_validate_json(data) if data is not None else None
    except ValidationError:
        return None


def step(stage: Callable[P, str]) -> Callable[P, str]:
    """A step's process is prepared as a command's is; a named failure is one line in its log, not a traceback.

    The first argument of `stage` is the place that it works at. With the arguments `execution` and `stage` ends are recorded.
    """
    signature = inspect.signature(stage)

    @functools.wraps(stage)
    def run(*args: P.args, **kwargs: P.kwargs) -> str:
        prepare_process()
        die_with_parent()
        if S3_CA.is_file():
            os.environ.setdefault("AWS_CA_BUNDLE", str(S3_CA))
        given = signature.bind(*args, **kwargs).arguments
        name = "-".join(filter(None, (stage.__name__, given.get("stage", ""))))
        ends = Ends(str(next(iter(given.values()))), given.get("execution", ""))
        with signals_raise():
            try:
                with needing():
                    if (before := ends.of(name)) is not None and not exits.again(before.code):
                        say_error(before.message)
                        sys.exit(before.code)
                    return stage(*args, **kwargs)
            except Stopped as stopped:
                say_error(f"told to end: nothing was to be saved in {stage.__name__}")
                sys.exit(stopped.code)
            except RolecastError as error:
                _end(ends, End(step=name, code=error.exit_code, message=told(error), report=getattr(error, "report", "")))
            except OSError as error:
                if (fault := disk_fault(error)) is None:
                    raise
                _end(ends, End(step=name, code=fault.exit_code, message=str(fault)))

    return run


def _end(ends: Ends, end: End) -> NoReturn:
    try:
        ends.note(end)
    except (RolecastError, OSError) as error:  # what the step ended with matters more
        say_error(f"how the step ended could not be recorded: {error}")
    say_error(end.message)
    sys.exit(end.code)
