"""`lives.py CONFIG RUN KILLS`: a run in many lives, each a child that ends with SIGKILL at a given place, the last one at the end.

KILLS is JSON: a list of [stage, step, place]. A life is ended in that update of the stage, counted from 0: before it is made, after it, or
in the checkpoint that follows (where there is one). One process imports everything, so that a life costs little.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rolecast.processes import die_with_parent, prepare_process

prepare_process()

from rolecast.config import load_config  # noqa: E402
from rolecast.learner.learner import Learner  # noqa: E402
from rolecast.schedule import digest  # noqa: E402
from rolecast.stages import rl, sft, tasks  # noqa: E402

PLACES = ("before", "after", "checkpoint")


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def plan(stage: str, step: int, place: str) -> None:
    """Ends this process there."""
    at = {"step": -1}

    def counted(real: Callable[..., Any], number_of: Callable[[tuple[Any, ...]], int]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            at["step"] = number_of(given)
            if at["step"] == step and place == "before":
                die()
            answer = real(*given, **named)
            if at["step"] == step and place == "after":
                die()
            return answer

        return call

    if stage == "rl":
        rl.Trainer.step = counted(rl.Trainer.step, lambda given: given[1])  # type: ignore[method-assign]
    else:
        sft._update = counted(sft._update, lambda given: given[0].updates.get("shared", 0))
    save = Learner.save

    def saving(self: Learner, folder: Path) -> None:
        save(self, folder)
        if at["step"] >= step and place == "checkpoint":
            die()  # its optimizer is written, its weights are not

    Learner.save = saving  # type: ignore[method-assign]


def live(config: Path, run: str) -> None:
    read = load_config(config)
    tasks.prepare(run, read.model_dump_json(), digest(read.schedule))
    for stage in read.schedule:
        tasks.train(run, stage.name, stage.kind)
        tasks.evaluate(run, stage.name)
    tasks.report(run)


def main(config: Path, run: str, kills: list[tuple[str, int, str]]) -> None:
    die_with_parent()
    for kill in (*kills, None):
        child = os.fork()
        if not child:
            if kill is not None:
                plan(*kill)
            live(config, run)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        expected = os.WIFSIGNALED(status) if kill is not None else os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        if not expected:
            sys.exit(f"life {kill} ended otherwise: {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], [(str(s), int(n), str(p)) for s, n, p in json.loads(sys.argv[3])])
