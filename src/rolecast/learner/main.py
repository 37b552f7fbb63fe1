"""`python -m rolecast.learner.main STAGE RUN`: one rank of one training stage of a run. `rolecast.launching.ranks` starts as many as there
are to be; torchrun could, too."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from rolecast.disk import disk_fault
from rolecast.errors import InputError, Interrupted, RolecastError
from rolecast.exits import FAILED, PEER_LOST
from rolecast.installed import needing
from rolecast.learner.settings import BackendConfig
from rolecast.processes import END, PARENT, die_with_parent, prepare_process, say_error
from rolecast.schedule import find
from rolecast.scratch import leave as leave_at_once
from rolecast.signals import Stopped, signals_raise
from rolecast.stages.run import Run, open_run
from rolecast.store.watched import end_unless_watched
from rolecast.working_copies import told


def main() -> None:
    parser = argparse.ArgumentParser(prog="rolecast.learner.main", description=__doc__)
    parser.add_argument("stage", help="of the method's schedule")
    parser.add_argument("run", help="the run: a folder, or s3://bucket/prefix/NAME")
    arguments = parser.parse_args()
    prepare_process()
    die_with_parent()
    with signals_raise():
        try:
            with needing("learner"):
                train(arguments.stage, arguments.run)
        except Stopped as stopped:
            _end(f"told to end: {arguments.stage} had not begun", stopped.number + 128, alike=True)
        except RolecastError as error:
            _end(told(error), error.exit_code, alike=isinstance(error, Interrupted))
        except Exception as error:
            if parted(error):
                print(f"rank {os.environ.get('RANK')}: another rank has ended, see what it says", file=sys.stderr, flush=True)
                leave_at_once(PEER_LOST)
            if isinstance(error, OSError) and (fault := disk_fault(error)) is not None:
                _end(str(fault), fault.exit_code, alike=False)
            traceback.print_exc()
            _end(f"rank {os.environ.get('RANK', '0')}: {type(error).__name__}: {error}; the traceback is above", FAILED, alike=False)


def parted(error: Exception) -> bool:
    """Whether the error is that another rank is gone, whose own line says why."""
    dist = ("DistBackendError", "DistNetworkError", "DistStoreError")
    return isinstance(error, RuntimeError) and (type(error).__name__ in dist or "gloo" in str(error))


def _end(message: str, code: int, alike: bool) -> NoReturn:
    """`alike`: every rank ends so, and the first one says it. Who started the ranks may say it for all of them."""
    if END in os.environ:
        Path(os.environ[END]).write_text(" ".join(message.split()), encoding="utf-8")
    elif not alike or os.environ.get("RANK", "0") == "0":
        say_error(message if PARENT in os.environ or not alike else f"{message}; the same command goes on from there")
    # At once: a rank that waits for others at the interpreter's end would keep those from ending.
    sys.stdout.flush()
    leave_at_once(code)


def train(stage: str, location: str) -> None:
    from rolecast.learner.ranks import join, leave
    from rolecast.stages.inputs import inputs
    from rolecast.stages.train import train as train_stage

    run = with_zero_stage(open_run(location))
    find(run.config.schedule, stage)  # before anything is made for it
    ranks = join()
    if ranks.first:
        if run.store is not None:
            end_unless_watched(run.store)
        inputs(run)
    ranks.barrier()
    train_stage(run, stage, ranks)
    leave()


def with_zero_stage(run: Run) -> Run:
    """A job may say how it shards (ROLECAST_ZERO_STAGE): 0 is plain torch, 1 to 3 DeepSpeed. Otherwise the run's config does."""
    stage = os.environ.get("ROLECAST_ZERO_STAGE", "")
    if not stage:
        return run
    if stage not in ("0", "1", "2", "3"):
        raise InputError(f"ROLECAST_ZERO_STAGE is {stage!r}; it is 0, 1, 2 or 3")
    backend = BackendConfig(name="deepspeed", zero=int(stage)) if stage != "0" else BackendConfig()
    return replace(run, config=run.config.model_copy(update={"learner": backend}))


if __name__ == "__main__":
    main()
