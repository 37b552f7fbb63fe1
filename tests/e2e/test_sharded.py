"""ZeRO-2 and ZeRO-3 over two processes train as one plain process does, and can be resumed and rolled back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.torchrun import results_of

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("sharded.py")


def train(folder: Path, ranks: int, name: str, zero: int, optimizer: str, weights: str = "full") -> dict[str, Any]:
    return results_of(SCRIPT, ranks, folder / f"{name}-{zero}-{optimizer}-{weights}-{ranks}.pt", name, str(zero), optimizer, weights)


def largest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


@pytest.fixture(scope="module", params=["sgd", "adamw"])
def alone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    return request.param, train(tmp_path_factory.mktemp("alone"), 1, "plain", 0, request.param)


@pytest.mark.parametrize(("name", "zero"), [("plain", 0), ("deepspeed", 2), ("deepspeed", 3)])
def test_two_ranks_train_as_one(alone: tuple[str, dict[str, Any]], tmp_path: Path, name: str, zero: int) -> None:
    optimizer, one = alone
    two = train(tmp_path, 2, name, zero, optimizer)
    for ours, theirs in zip(one["told"], two["told"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], abs=1e-4)
    assert one["told"][-1]["loss"] < one["told"][0]["loss"] - 0.1  # there was something to agree on
    # AdamW divides small differences by small numbers: there the losses are what is compared, and the distance is said.
    difference = largest(one["weights"], two["weights"])
    assert largest(two["resumed"], two["weights"]) <= 1e-6
    print(f"{name} {zero} {optimizer}: max |Δθ| = {difference:.1e}")
    if optimizer == "sgd":
        assert difference <= 1e-5
        assert largest(one["after"], two["after"]) <= 1e-5


@pytest.mark.parametrize(("name", "zero"), [("plain", 0), ("deepspeed", 2), ("deepspeed", 3)])
def test_two_ranks_train_on_packs_as_one_does_on_padded_rows(tmp_path: Path, name: str, zero: int) -> None:
    one, two = train(tmp_path, 1, "plain", 0, "sgd"), train(tmp_path, 2, name, zero, "sgd", "packed")
    assert two["told"][0]["pack/trie_ratio"] > 1
    for ours, theirs in zip(one["told"], two["told"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
    for moment in ("weights", "resumed", "after"):
        assert largest(one[moment], two[moment]) <= 1e-5


@pytest.mark.parametrize("zero", [2, 3])
def test_two_ranks_train_an_adapter_as_one_and_nothing_else(tmp_path: Path, zero: int) -> None:
    one, two = train(tmp_path, 1, "plain", 0, "sgd", "lora"), train(tmp_path, 2, "deepspeed", zero, "sgd", "lora")
    assert all("lora_" in name for name in one["weights"])
    assert one["moved"] == two["moved"] == []
    assert one["told"][-1]["loss"] < one["told"][0]["loss"] - 0.01
    for moment in ("weights", "resumed", "after"):
        assert largest(one[moment], two[moment]) <= 1e-5


@pytest.mark.parametrize("zero", [2, 3])
def test_two_ranks_train_two_slots_as_one_each_at_its_own_pace(tmp_path: Path, zero: int) -> None:
    """The second slot has half the rate and learns in every other step; it stands still in the steps between."""
    one, two = train(tmp_path, 1, "plain", 0, "sgd", "slots"), train(tmp_path, 2, "deepspeed", zero, "sgd", "slots")
    assert one["moved"] == two["moved"] == []
    assert ["two/loss" in told for told in one["told"]] == [True, False, True, False, True]
    for ours, theirs in zip(one["told"], two["told"], strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert theirs[name] == pytest.approx(ours[name], abs=1e-4), name
    for slot in ("one", "two"):
        names = [name for name in one["weights"] if f".{slot}." in name]
        assert names
        assert one["told"][0][f"{slot}/grad_norm"] > (1.0 if slot == "one" else 0.2)  # it is clipped
        assert one["told"][0][f"{slot}/lr"] / two["told"][0]["one/lr"] == (1.0 if slot == "one" else 0.5)
        for moment in ("weights", "resumed", "after"):
            assert largest({n: one[moment][n] for n in names}, {n: two[moment][n] for n in names}) <= 1e-5
