"""`torchrun … -m rolecast.learner.main STAGE RUN`: one training stage of a run, over as many ranks as there are."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from rolecast.errors import RolecastError


def main() -> None:
    parser = argparse.ArgumentParser(prog="rolecast.learner.main", description=__doc__)
    parser.add_argument("stage", choices=("sft", "rl"))
    parser.add_argument("run", help="the run: a folder, or s3://bucket/prefix/NAME")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        train(arguments.stage, arguments.run)
    except RolecastError as error:
        print(f"rolecast: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        # At once: a rank that waits for others at the interpreter's end would keep torchrun from ending them.
        os._exit(error.exit_code)


def train(stage: str, location: str) -> None:
    from rolecast.learner.ranks import join, leave
    from rolecast.stages.index import index
    from rolecast.stages.rl import rl
    from rolecast.stages.run import open_run
    from rolecast.stages.sft import sft
    from rolecast.stages.world import world

    run = open_run(location)
    ranks = join()
    if ranks.first:
        world(run)
        index(run)
    ranks.barrier()
    {"sft": sft, "rl": rl}[stage](run, ranks)
    leave()


if __name__ == "__main__":
    main()
