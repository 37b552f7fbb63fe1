"""What a killed rollout worker and a killed learner cost a run: seconds that are waited for or done again, times the processes that compute.

    python -m benchmarks.kills --model DIR [--config configs/demo_cluster.yaml] [--kills 3] [--capacity 8] [--set KEY=VALUE …]

Starts an S3 server, retriever, judge, two rollout workers and a learner, which goes on from DIR, a model that an SFT stage left. One of them is
killed with SIGKILL and started again at once, as a Deployment or a job does; the other worker goes on. Before each kill both play again.

worker   in the middle of a step's playing. What it held is played anew once it was silent for `stages.rl.lease_seconds`. Lost is what the step
         took beyond the median of quiet ones
learner  in the middle of a step. Lost is all from the kill to the end of that step, less what was left of it: its start, what it had not
         checkpointed (`stages.rl.checkpoint_every`) and the step anew

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
import urllib.request
from pathlib import Path

from tests.e2e.cluster import BIN, Cluster, Process
from tests.weed import free_ports, weed_running

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
QUIET = 6  # steps before the first kill
STEPS = 10_000  # more than there will be: the run is ended when all is measured


class Watched:
    """A learner and its workers, and how far it came. `capacity`: groups that a worker plays at once."""

    def __init__(self, cluster: Cluster, capacity: int) -> None:
        self.cluster, self.capacity = cluster, capacity
        self.ports = free_ports(WORKERS)
        self.workers = [self.worker(number) for number in range(WORKERS)]
        self.learner = self.start_learner()

    def worker(self, number: int) -> Process:
        return self.cluster.rollout(self.ports[number], self.capacity)

    def start_learner(self) -> Process:
        return self.cluster.learner("rl", ranks=1)

    def steps(self) -> dict[int, dict[str, float]]:
        """Seconds of each step of the learner's newest life, by part."""
        files = sorted(self.cluster.folder.glob("work-*/**/rl/times.jsonl"), key=lambda file: file.stat().st_mtime_ns)
        rows = [json.loads(line) for line in files[-1].read_text().splitlines() if line.endswith("}")] if files else []
        return {row["step"]: row for row in rows}

    def done(self) -> int:
        """Steps that have ended."""
        return max(self.steps(), default=0)

    def after(self, step: int) -> None:
        """Until this step is done, in whatever life."""
        deadline = time.monotonic() + 900
        while self.done() < step:
            for process in (self.learner, *self.workers):
                if not process.running:
                    sys.exit(f"{process.name} ended:\n{process.tail()}")
            if time.monotonic() > deadline:
                sys.exit(f"step {step} was not done after 900 s:\n{self.learner.tail()}")
            time.sleep(0.05)

    def played(self) -> list[float]:
        """Groups that each worker has played in its newest life."""
        pages = [urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode() for port in self.ports]
        return [float(page.partition("\nrolecast_rollout_groups_total ")[2].split("\n", 1)[0]) for page in pages]

    def quiet(self) -> int:
        """Waits for the end of a step in which every worker played; which it is. One that was killed takes a while to be back."""
        while True:
            before, step = self.played(), self.done() + 1
            self.after(step)
            if all(now > then for then, now in zip(before, self.played(), strict=True)):
                return step


def killed(watched: Watched, part: str, moment: float, usual: float) -> tuple[int, float]:
    """The step in which the part was killed, `moment` seconds after its beginning, and seconds that it cost."""
    step = watched.quiet() + 1
    time.sleep(moment)
    begun = time.monotonic()
    if part == "worker":
        watched.workers[0].kill()
        watched.workers[0] = watched.worker(0)  # it may be ready long after the step has ended
        watched.after(step)
        return step, watched.steps()[step]["total"] - usual
    watched.learner.kill()
    watched.learner = watched.start_learner()
    watched.after(step)
    return step, time.monotonic() - begun - (usual - moment)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "demo_cluster.yaml")
    parser.add_argument("--model", type=Path, required=True, help="that speaks already, as an SFT stage left it")
    parser.add_argument("--kills", type=int, default=3, help="of each kind")
    parser.add_argument(
        "--capacity", type=int, default=8, help="groups that a worker plays at once; half of a step's, so that both have some"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    settings = ["rollouts=workers", "lockstep=false", f"stages.sft.model={given.model.resolve()}", f"stages.rl.steps={STEPS}"]
    settings += [f"stages.rl.eval_every={STEPS}", *given.set]
    with tempfile.TemporaryDirectory(prefix="rolecast-") as folder, weed_running(Path(folder) / "weed") as weed:
        cluster = Cluster(Path(folder), weed, f"s3://{weed.make_bucket('demo')}/runs/demo")
        try:
            words = [word for setting in settings for word in ("--set", setting)]
            made = cluster.start("create", [str(BIN / "rolecast"), "run", "create", cluster.run, "--config", str(given.config), *words])
            if made.wait(600):
                sys.exit(made.tail())
            cluster.retriever()
            cluster.judge()
            measure(Watched(cluster, given.capacity), given.kills)
        finally:
            cluster.stop()


def measure(watched: Watched, kills: int) -> None:
    watched.after(QUIET)
    quiet = [row for step, row in watched.steps().items() if step > 1]  # the first one meets workers that begin
    usual = statistics.median(row["total"] for row in quiet)
    playing = statistics.median(row["sample"] + row["search"] + row["judge"] for row in quiet)  # a step begins with it
    parts = 1 + WORKERS
    lost: dict[str, list[float]] = {"worker": [], "learner": []}
    for _ in range(kills):
        for part, found in lost.items():
            step, seconds = killed(watched, part, (playing if part == "worker" else usual) / 2, usual)
            found.append(seconds)
            print(f"{part} killed in step {step}: {seconds:.1f} s", file=sys.stderr, flush=True)
    print(f"A step takes {usual:.1f} s, {playing:.1f} s of it playing. {parts} processes compute: the learner and {WORKERS} workers.\n")
    print("| killed | seconds lost, median (least to most) | GPU-seconds |\n| --- | --- | --- |")
    for part, found in lost.items():
        median = statistics.median(found)
        print(f"| {part} | {median:.1f} ({min(found):.1f} to {max(found):.1f}) | {median * parts:.0f} |")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
