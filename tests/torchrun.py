"""A script of the tests over several processes, as torchrun starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from rolecast.processes import PARENT
from tests.weed import free_ports

REPOSITORY = Path(__file__).parents[1]


def results_of(script: Path, ranks: int, out: Path, *arguments: str) -> dict[str, Any]:
    """Runs `script OUT ARGUMENTS…` and reads what its first rank saved at `out`. One rank is a plain process."""
    path = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(REPOSITORY)]
    launcher = [sys.executable]
    if ranks > 1:
        launcher = [str(Path(sys.executable).with_name("torchrun")), f"--nproc-per-node={ranks}", f"--master-port={free_ports(1)[0]}"]
    done = subprocess.run(
        [*launcher, str(script), str(out), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path), PARENT: str(os.getpid())},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = torch.load(out)
    return result
