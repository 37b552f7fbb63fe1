"""What a killed rollout worker and a killed learner cost a run: seconds that are waited for or done again, times the processes that compute.

    python -m benchmarks.kills --model DIR [--config configs/demo_cluster.yaml] [--kills 3] [--set KEY=VALUE …]

Starts an S3 server, retriever, judge, two rollout workers and a learner, which goes on from DIR, a model that an SFT stage left. In the middle of a
step one of them is killed with SIGKILL and started again at once, as a Deployment or a job does; the other worker goes on. Lost is what the step took beyond
the median of undisturbed ones, and for a learner all from the kill to the end of that step, less what was left of it: its start, what it had not
checkpointed (`stages.rl.checkpoint_every`) and the step anew. Two kills of a kind have a quiet step between them at least.

GPU-seconds: lost seconds × (learner and workers), each of which has a GPU of its own on a cluster, and waits.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.cluster import BIN, Cluster, Process
from tests.weed import free_ports, weed_running

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
QUIET = 4  # steps before the first kill


class Watched:
    """A learner and its workers, and how far it came. `totals`: seconds of each step, of its newest life."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ports = free_ports(WORKERS)
        self.workers = [self.worker(number) for number in range(WORKERS)]
        self.learner = cluster.learner("rl", ranks=1)

    def worker(self, number: int) -> Process:
        # Its own capacity of episodes, as the Cluster's one worker has.
        return self.cluster._service("rollout", self.ports[number], "--capacity", "16", ROLECAST_COORDINATOR_URL="")

    def totals(self) -> dict[int, float]:
        files = sorted(self.cluster.folder.glob("work-*/**/rl/times.jsonl"), key=lambda file: file.stat().st_mtime_ns)
        rows = [json.loads(line) for line in files[-1].read_text().splitlines() if line.endswith("}")] if files else []
        return {row["step"]: row["total"] for row in rows}

    def after(self, step: int) -> None:
        """Until this step is done, in whatever life."""
        deadline = time.monotonic() + 900
        while max(self.totals(), default=0) < step:
            if not self.learner.running:
                sys.exit(self.learner.tail())
            if time.monotonic() > deadline:
                sys.exit(f"step {step} was not done after 900 s:\n{self.learner.tail()}")
            time.sleep(0.05)

    def usual(self, disturbed: set[int]) -> float:
        """Of undisturbed steps; the first one has the start in it, and a step of a dev evaluation that evaluation."""
        return statistics.median(seconds for step, seconds in self.totals().items() if step > 1 and step not in disturbed)


def killed(watched: Watched, part: str, step: int, usual: float) -> float:
    """Seconds that a kill in the middle of the step after this one costs."""
    watched.after(step)
    time.sleep(usual / 2)
    begun = time.monotonic()
    if part == "worker":
        watched.workers[0].kill()
        watched.workers[0] = watched.worker(0)
    else:
        watched.learner.kill()
        watched.learner = watched.cluster.learner("rl", ranks=1)
    watched.after(step + 1)
    return time.monotonic() - begun - usual / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "demo_cluster.yaml")
    parser.add_argument("--model", type=Path, required=True, help="that speaks already, as an SFT stage left it")
    parser.add_argument("--kills", type=int, default=3, help="of each kind")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    steps = QUIET + 4 * given.kills + 4
    settings = ["rollouts=workers", "lockstep=false", f"stages.sft.model={given.model.resolve()}", f"stages.rl.steps={steps}"]
    settings += [f"stages.rl.eval_every={steps}", *given.set]
    with tempfile.TemporaryDirectory(prefix="rolecast-") as folder, weed_running(Path(folder) / "weed") as weed:
        cluster = Cluster(Path(folder), weed, f"s3://{weed.make_bucket('demo')}/runs/demo")
        try:
            words = [word for setting in settings for word in ("--set", setting)]
            made = cluster.start("create", [str(BIN / "rolecast"), "run", "create", cluster.run, "--config", str(given.config), *words])
            if made.wait(600):
                sys.exit(made.tail())
            cluster.retriever()
            cluster.judge()
            measure(Watched(cluster), given.kills)
        finally:
            cluster.stop()


def measure(watched: Watched, kills: int) -> None:
    watched.after(QUIET)
    disturbed: set[int] = set()
    usual = watched.usual(disturbed)
    parts = 1 + WORKERS
    lost: dict[str, list[float]] = {"worker": [], "learner": []}
    step = QUIET
    for _ in range(kills):
        for part, found in lost.items():
            found.append(killed(watched, part, step, usual))
            step += 2
            print(f"{part} killed in step {step - 1}: {found[-1]:.1f} s", file=sys.stderr, flush=True)
    print(f"A step takes {usual:.1f} s. {parts} processes compute: the learner and {WORKERS} workers.\n")
    print("| killed | seconds lost, median (least to most) | GPU-seconds |\n| --- | --- | --- |")
    for part, found in lost.items():
        median = statistics.median(found)
        print(f"| {part} | {median:.1f} ({min(found):.1f} to {max(found):.1f}) | {median * parts:.0f} |")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
