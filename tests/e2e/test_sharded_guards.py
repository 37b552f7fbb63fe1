"""What is no finite number in one rank only: no rank makes that update, other slots go on, and no such state is saved; on every backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torchrun import results_of

SCRIPT = Path(__file__).with_name("sharded_guards.py")


def moved(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
    """The slots whose weights differ; the first is the base itself."""
    return {"two" if name.startswith("whole.two.") else "one" for name in one if not torch.equal(one[name], other[name])}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["loss", "gradient"])
@pytest.mark.parametrize(("name", "zero"), [("plain", 0), ("deepspeed", 2), ("deepspeed", 3)])
def test_one_rank_s_fault_is_every_rank_s(tmp_path: Path, name: str, zero: int, kind: str) -> None:
    found: dict[str, Any] = results_of(SCRIPT, 2, tmp_path / "out.pt", name, str(zero), kind)
    # DeepSpeed looks for what is no number itself, in all gradients together, and then no slot moves.
    others = name == "plain" or kind == "loss"
    assert [told["two/refused"] for told in found["told"]] == [0, 1, 1, 0]
    assert [told["one/refused"] for told in found["told"]] == [0, 0 if others else 1, 0 if others else 1, 0]
    steps = [moved(before, after) for before, after in zip(found["weights"], found["weights"][1:], strict=False)]
    rest = {"one"} if others else set()
    assert steps == [{"one", "two"}, rest, rest, {"one", "two"}]
    assert all(torch.isfinite(tensor).all() for weights in found["weights"] for tensor in weights.values())
    kept = [line.split(" is left out")[0] for line in found["kept"] if line.startswith("slot two")]
    assert kept == ["slot two, update 1", "slot two, update 2"]
    assert "is not finite on rank 1" in found["saved"]
    assert not found["found"]
