"""Two slots over two processes, plain and with ZeRO: each ends where it ends alone in one process, and rests where it has no rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torchrun import results_of

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("sharded_slots.py")


def train(folder: Path, ranks: int, name: str, zero: int, slots: str) -> dict[str, Any]:
    return results_of(SCRIPT, ranks, folder / f"{name}-{zero}-{slots}-{ranks}.pt", name, str(zero), slots)


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
        moved = largest(found["before"], found["start"])
        assert moved > 1e-3  # there was something to agree on
        # Of 8,225 weights, one is 1.4e-5 apart under ZeRO-3 where they moved by 0.04, on one kind of CPU: AdamW makes a step of a gradient's last bits.
        assert largest(found["before"], both["before"]) <= (1e-3 * moved if zero == 3 else 1e-5)
    rested = [name for name, tensor in both["weights"].items() if torch.equal(tensor, both["before"][name])]
    assert {"planner" in name or "critic" in name for name in rested} == {True}
    assert 0 < len(rested) < len(both["weights"])
