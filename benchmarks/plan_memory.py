"""The peak of a real stage next to what `rolecast plan` says of it.

    python benchmarks/plan_memory.py CONFIG STAGE [--set KEY=VALUE …] [--repeats 3]

Trains the stage of a new run as a process of its own and takes its largest resident set (VmHWM, as the kernel counts it). On a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from rolecast.config import load_config
from rolecast.origin import machine
from rolecast.planning.memory import total
from rolecast.planning.plan import GIB, make_plan

COMMAND = [sys.executable, "-m", "rolecast.cli.main"]


def peak(config: Path, stage: str, overrides: list[str]) -> float:
    """GiB of the process that trains the stage; those before it are trained by others."""
    with tempfile.TemporaryDirectory(prefix="rolecast-plan-") as folder:
        run = str(Path(folder) / "run")
        given = [word for override in overrides for word in ("--set", override)]
        subprocess.run([*COMMAND, "run", "create", run, "--config", str(config), *given], check=True, stdout=subprocess.DEVNULL)
        for before in load_config(config, overrides).schedule:
            if before.name == stage:
                break
            subprocess.run([*COMMAND, "train", run, before.name], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        process = subprocess.Popen([*COMMAND, "train", run, stage], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"stage {stage} failed")
        return usage.ru_maxrss * 1024 / GIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("stage")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    plan = make_plan(load_config(given.config, given.set), 0, 1e6)
    [stage] = [stage for stage in plan.stages if stage.name == given.stage]
    planned = total(stage.parts, "host") / GIB
    measured = [peak(given.config, given.stage, given.set) for _ in range(given.repeats)]
    print(json.dumps({"machine": machine(), "parameters": plan.shape.parameters, "stage": given.stage, "set": given.set,
                      "plan_gib": round(planned, 3), "measured_gib": [round(one, 3) for one in measured],
                      "plan/median": round(planned / median(measured), 3)}))  # fmt: skip


if __name__ == "__main__":
    main()
