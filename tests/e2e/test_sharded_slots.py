"""Two slots over two processes, plain and with ZeRO: each ends where it ends alone in one process, and rests where it has no rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.weed import free_ports

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("sharded_slots.py")
REPOSITORY = SCRIPT.parents[2]


def train(folder: Path, ranks: int, name: str, zero: int, slots: str) -> dict[str, Any]:
    out = folder / f"{name}-{zero}-{slots}-{ranks}.pt"
    launcher = [sys.executable]
    if ranks > 1:
        launcher = [str(Path(sys.executable).with_name("torchrun")), f"--nproc-per-node={ranks}", f"--master-port={free_ports(1)[0]}"]
    done = subprocess.run(
        [*launcher, str(SCRIPT), str(out), name, str(zero), slots],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = torch.load(out)
    return result


def largest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Each objective's slots, trained by themselves in one process."""
    folder = tmp_path_factory.mktemp("alone")
    return {slots: train(folder, 1, "plain", 0, slots) for slots in ("plan", "answer")}


@pytest.mark.parametrize(("name", "zero"), [("plain", 0), ("deepspeed", 2), ("deepspeed", 3)])
def test_each_slot_ends_where_it_ends_alone(alone: dict[str, dict[str, Any]], tmp_path: Path, name: str, zero: int) -> None:
    both = train(tmp_path, 2, name, zero, "plan,answer")
    for found in alone.values():
        assert largest(found["before"], both["before"]) <= 1e-5
        assert largest(found["before"], found["start"]) > 1e-3  # there was something to agree on
    rested = [name for name, tensor in both["weights"].items() if torch.equal(tensor, both["before"][name])]
    assert {"planner" in name or "critic" in name for name in rested} == {True}
    assert 0 < len(rested) < len(both["weights"])
