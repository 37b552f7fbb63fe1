"""What spinning threads cost: 30 SFT steps, 2 RL steps and 50 served questions, on a quiet machine and beside two busy processes.

    python benchmarks/threads.py [--pairs 5] [--old TREE] [--work DIR]

`old` is another checkout of this repository (`git worktree add TREE REVISION`), or, without --old, this one with the threads as OpenMP
has them where nobody says anything (libgomp: 300,000 turns of spinning before a thread sleeps). Every pair runs old and new in turn, in
processes of their own that first do the same work once untimed; times are of the work alone, without imports. Beside busy processes
`old` runs in the first pair only, since it takes long. A model that speaks is trained first, once, and kept in --work.

Prints medians in seconds and their ratios as a Markdown table: new beside busy ones / new quiet is to be at most 2, new / old quiet 1.05.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rolecast.processes import prepare_process

ROOT = Path(__file__).resolve().parents[1]
TASKS = ("30 SFT steps", "2 RL steps", "50 questions")
BUSY = 2
SPINNING = {"GOMP_SPINCOUNT": "300000"}  # libgomp's own, where OMP_WAIT_POLICY is not set
OVERRIDES = {
    "model": [
        "stages.sft.steps=300", "stages.sft.drills=0", "stages.rl.steps=2", "stages.rl.questions=4", "stages.rl.refill=0", "stages.rl.dev=8",
        "stages.rl.eval_every=100", 'method.dynamic_sampling="off"', "eval.n=50",
    ],
    "sft": ["stages.sft.steps=30", "stages.sft.drills=0"],
}  # fmt: skip


def work(folder: Path, rounds: int) -> None:
    """Runs in a process of its own, with the tree under test on its path. Prints seconds of each task of the last round as JSON."""
    prepare_process()  # before torch
    import time

    from rolecast.stages.run import open_run
    from rolecast.stages.train import train

    seconds = {}
    for number in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            for task, name, stage in zip(TASKS, ("sft", "model", "model"), ("sft", "rl", ""), strict=True):
                path = Path(place) / task.replace(" ", "-")
                shutil.copytree(folder / name, path)
                start = time.monotonic()
                with contextlib.redirect_stderr(io.StringIO()):
                    if stage:
                        train(open_run(path), stage)
                    else:
                        ask(path)
                seconds[task] = time.monotonic() - start
        print(f"round {number}", seconds, file=sys.stderr)
    print(json.dumps(seconds))


def ask(path: Path) -> None:
    """Fifty questions of the test set at once, as a service gets them."""
    import asyncio

    from rolecast.data.records import read_questions
    from rolecast.stages.serve import open_agent

    agent = open_agent(str(path), "sft")
    questions = [question.text for question in read_questions(path / "world" / "test.jsonl")[:50]]

    async def all_of_them() -> None:
        await agent.start()
        await asyncio.gather(*map(agent.ask, questions))
        await agent.stop()

    asyncio.run(all_of_them())


def prepare(folder: Path) -> None:
    """The two runs that are copied for every round: one with a world and an index, one with an SFT model as well."""
    from rolecast.config import load_config
    from rolecast.methods.registry import find
    from rolecast.stages.index import index
    from rolecast.stages.run import create
    from rolecast.stages.train import train

    for name, overrides in OVERRIDES.items():
        run = create(folder / name, load_config(Path(str(find("decor").preset("demo"))), overrides))
        index(run)
        if name == "model":
            train(run, "sft")
            shutil.rmtree(run.stage("sft") / "checkpoints", ignore_errors=True)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(tree: Path, extra: dict[str, str], folder: Path, rounds: int) -> dict[str, float]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_", "ROLECAST_"))}
    environment = {**kept, **extra, "PYTHONPATH": os.pathsep.join((str(tree / "src"), str(tree / "pipelines")))}
    command = [sys.executable, __file__, "--worker", str(rounds), "--work", str(folder)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--old", type=Path, help="another checkout")
    parser.add_argument("--work", type=Path, default=Path("runs/threads"))
    parser.add_argument("--worker", type=int, metavar="ROUNDS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.work, given.worker)
        return
    if not (given.work / "model" / "sft" / "model").exists():
        prepare_process()
        prepare(given.work)
    sides = {"old": (given.old or ROOT, {} if given.old else SPINNING), "new": (ROOT, {})}
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for pair in range(given.pairs):
        for count in (0, BUSY):
            with busy(count):
                for side, (tree, extra) in sides.items() if pair % 2 == 0 else reversed(sides.items()):
                    if side == "new" or not count or pair == 0:
                        seconds = measure(tree, extra, given.work, rounds=1 if side == "old" and count else 2)
                        found.setdefault((side, count), []).append(seconds)
                        print(f"pair {pair + 1}, {side}, {'busy' if count else 'quiet'}: {seconds}", file=sys.stderr, flush=True)
    middle = {key: {task: statistics.median(one[task] for one in times) for task in TASKS} for key, times in found.items()}
    print("| | old quiet | new quiet | new / old | old busy | new busy | busy / quiet |\n| --- | --- | --- | --- | --- | --- | --- |")
    for task in TASKS:
        old, new, old_busy, new_busy = (middle[key][task] for key in (("old", 0), ("new", 0), ("old", BUSY), ("new", BUSY)))
        print(f"| {task} | {old:.2f} | {new:.2f} | {new / old:.2f} | {old_busy:.2f} | {new_busy:.2f} | {new_busy / new:.2f} |")


if __name__ == "__main__":
    main()
