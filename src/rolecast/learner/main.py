"""`torchrun … -m rolecast.learner.main STAGE RUN`: one training stage of a run, over as many ranks as there are."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace

from rolecast.errors import InputError, RolecastError
from rolecast.installed import needing
from rolecast.learner.settings import BackendConfig
from rolecast.processes import prepare_process
from rolecast.schedule import find
from rolecast.stages.run import Run, open_run


def main() -> None:
    parser = argparse.ArgumentParser(prog="rolecast.learner.main", description=__doc__)
    parser.add_argument("stage", help="of the method's schedule")
    parser.add_argument("run", help="the run: a folder, or s3://bucket/prefix/NAME")
    arguments = parser.parse_args()
    prepare_process()
    try:
        with needing("learner"):
            train(arguments.stage, arguments.run)
    except RolecastError as error:
        print(f"rolecast: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        # At once: a rank that waits for others at the interpreter's end would keep torchrun from ending them.
        os._exit(error.exit_code)


def train(stage: str, location: str) -> None:
    from rolecast.learner.ranks import join, leave
    from rolecast.stages.inputs import inputs
    from rolecast.stages.train import train as train_stage

    run = with_zero_stage(open_run(location))
    find(run.config.schedule, stage)  # before anything is made for it
    ranks = join()
    if ranks.first:
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
