"""What the pods of the demo on a cluster hold at most, each part as the processes that its container runs.

    python -m benchmarks.pod_memory [--config configs/demo_cluster.yaml] [--model DIR] [--sft 400] [--rl 4] [--questions 200]

Starts an S3 server, creates the run, trains both stages for a few steps with a rollout worker, evaluates, and answers a few questions. Of
each part two peaks are printed in MiB, looked at ten times a second: `held` is what nothing but the processes' end gives back (anonymous
and shared memory), `with files` adds the mapped pages of programs and libraries, which count for the pod but can be read again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from tests.e2e.cluster import BIN, Cluster, Process
from tests.weed import free_ports, weed_running

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = 16  # that the agent is asked
HERE = "http://127.0.0.1"


def rolled_up(pid: int) -> tuple[int, int]:
    """KiB of a process: held, and of mapped files."""
    amounts = dict(re.findall(r"^(\w+): +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE))
    held = int(amounts["Pss_Anon"]) + int(amounts["Pss_Shmem"])
    return held, int(amounts["Rss"]) - int(amounts["Anonymous"])


def tree(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        below = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [pid, *(found for child in below for found in tree(child))]
    return []


class Peaks:
    """Of every process tree that is watched, until it ends."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}
        self.whole: dict[str, int] = {}
        self._watched: dict[str, Process] = {}
        threading.Thread(target=self._look, daemon=True).start()

    def watch(self, name: str, process: Process) -> Process:
        self._watched[name] = process
        return process

    def _look(self) -> None:
        while True:
            for name, process in list(self._watched.items()):
                found = []
                for pid in tree(process.pid):
                    with contextlib.suppress(OSError, KeyError):
                        found.append(rolled_up(pid))
                if found:
                    held = sum(one for one, _ in found)
                    self.held[name] = max(self.held.get(name, 0), held)
                    # Libraries that several of a pod's processes map count once.
                    self.whole[name] = max(self.whole.get(name, 0), held + max(files for _, files in found))
            time.sleep(0.1)

    def table(self) -> str:
        rows = [f"| {name} | {self.held[name] / 1024:,.0f} | {self.whole[name] / 1024:,.0f} |" for name in self.held]
        return "\n".join(["| part | held | with files |", "| --- | --- | --- |", *rows])


def ask(port: int, question: str) -> None:
    body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": question}]}).encode()
    request = urllib.request.Request(f"{HERE}:{port}/v1/chat/completions", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=120).close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "demo_cluster.yaml")
    parser.add_argument("--model", type=Path, help="that speaks already, as an SFT stage left it; then few steps are enough")
    parser.add_argument("--sft", type=int, default=400, help="steps")
    parser.add_argument("--rl", type=int, default=4, help="steps")
    parser.add_argument("--questions", type=int, default=200, help="of the evaluation")
    given = parser.parse_args()
    peaks = Peaks()
    with tempfile.TemporaryDirectory(prefix="rolecast-") as folder, weed_running(Path(folder) / "weed") as weed:
        cluster = Cluster(Path(folder), weed, f"s3://{weed.make_bucket('demo')}/runs/demo")
        try:
            play(cluster, peaks, given)
        finally:
            cluster.stop()
    print(peaks.table())


def play(cluster: Cluster, peaks: Peaks, given: argparse.Namespace) -> None:
    steps = [f"stages.sft.steps={given.sft}", f"stages.rl.steps={given.rl}", "stages.rl.eval_every=2", f"eval.n={given.questions}"]
    if given.model:
        steps.append(f"model.path={given.model}")
    overrides = [word for step in steps for word in ("--set", step)]

    def command(name: str, *words: str) -> None:
        process = peaks.watch(name, cluster.start(name.replace(" ", "-"), [str(BIN / "rolecast"), *words]))
        if process.wait(3600):
            sys.exit(process.tail())
        print(f"{name} is done", file=sys.stderr, flush=True)

    command("create a run", "run", "create", cluster.run, "--config", str(given.config), *overrides)
    peaks.watch("retriever", cluster.retriever())
    peaks.watch("judge", cluster.judge())
    peaks.watch("rollout worker", cluster.rollout())
    for stage in ("sft", "rl"):
        learner = peaks.watch(f"learner, {stage}", cluster.learner(stage, ranks=1))
        if learner.wait(3600):
            sys.exit(learner.tail())
        print(f"{stage} is done", file=sys.stderr, flush=True)
    command("evaluation", "eval", cluster.run, "--stage", "rl")
    command("report", "report", cluster.run)
    [port] = free_ports(1)
    words = [str(BIN / "rolecast"), "agent", "serve", cluster.run, "--host", "127.0.0.1", "--port", str(port)]
    agent = peaks.watch("agent", cluster.start("agent", words))

    def ready() -> bool:
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{HERE}:{port}/readyz", timeout=2).status == 200)
        return False

    cluster.until(ready, agent, 120)
    for number in range(QUESTIONS):
        ask(port, f"What is the twin of the birthplace of Bak Bam{number}?")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
