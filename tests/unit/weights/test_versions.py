"""A published version computes what was published, or is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rolecast.types import Version
from rolecast.weights.canary import canary
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import Casting, Team, slots_in
from rolecast.weights.versions import CanaryError, base_of, check_version, write_version
from tests.tiny import TOKENIZER, tiny_team

VERSION = Version("run", 1, 2, "sft/model", {"shared": None})
TWO = Casting(frozenset({"planner", "answerer"}), ("planner", "answerer"), ("critic",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    team = tiny_team(scale=5.0)
    write_version(team, ["shared"], VERSION, team.state_dict(), tmp_path, tiny_team(seed=1))
    return tmp_path


def test_the_same_weights_pass(folder: Path) -> None:
    check_version(tiny_team(scale=5.0), TOKENIZER, "run/1.2", folder)
    assert (base_of(folder), slots_in(folder)) == ("sft/model", ["shared"])


def test_other_weights_are_refused(folder: Path) -> None:
    team = tiny_team(scale=5.0)
    with torch.no_grad():
        team.base.model.layers[1].mlp.down_proj.weight.mul_(1.2)
    with pytest.raises(CanaryError, match=r"version run/1\.2, slot shared: log-probs of the canary prompt differ by"):
        check_version(team, TOKENIZER, "run/1.2", folder)


def test_weights_that_are_no_numbers_are_refused(folder: Path) -> None:
    team = tiny_team(scale=5.0)
    with torch.no_grad():
        team.base.model.embed_tokens.weight[:] = float("nan")
    with pytest.raises(CanaryError):
        check_version(team, TOKENIZER, "run/1.2", folder)


def test_another_version_under_the_name_is_refused(folder: Path) -> None:
    with pytest.raises(CanaryError, match=r"holds version run/1\.2, not run/1\.3"):
        check_version(tiny_team(scale=5.0), TOKENIZER, "run/1.3", folder)


def test_another_tokenizer_is_refused(folder: Path) -> None:
    told = json.loads((folder / "team.json").read_text())
    told["canaries"]["shared"]["ids"][0] += 1
    (folder / "team.json").write_text(json.dumps(told))
    with pytest.raises(CanaryError, match="other ids"):
        check_version(tiny_team(scale=5.0), TOKENIZER, "run/1.2", folder)


def test_the_weights_given_are_written_not_the_teams_own(tmp_path: Path) -> None:
    """Under ZeRO-3 the team's own tensors are empty shards."""
    team, other = tiny_team(), tiny_team(seed=1)
    write_version(team, ["shared"], VERSION, other.state_dict(), tmp_path, tiny_team(seed=2))
    told = json.loads((tmp_path / "team.json").read_text())
    assert told["canaries"]["shared"]["logprobs"] == list(canary(other.model("shared"), TOKENIZER).logprobs)


def two_slots(lora: LoraConfig | None) -> Team:
    """Slots that differ from one another."""
    team = tiny_team(TWO, lora=lora, scale=5.0)
    with torch.no_grad():
        for number, slot in enumerate(TWO.trained):
            for name, parameter in team.trained(slot):
                if "lora_B" in name or (lora is None and "down_proj" in name):
                    parameter += 0.05 * (number + 1)
    return team


@pytest.mark.parametrize("lora", [LoraConfig(rank=2), None])
def test_every_slot_has_a_canary_of_its_own_and_critics_are_left_out(tmp_path: Path, lora: LoraConfig | None) -> None:
    team = two_slots(lora)
    write_version(team, TWO.trained, VERSION, team.state_dict(), tmp_path, tiny_team(TWO, lora=lora, scale=5.0))
    assert slots_in(tmp_path) == ["answerer", "planner"]
    canaries = json.loads((tmp_path / "team.json").read_text())["canaries"]
    assert canaries["planner"]["logprobs"] != pytest.approx(canaries["answerer"]["logprobs"], abs=1e-3)
    check_version(two_slots(lora), TOKENIZER, "run/1.2", tmp_path)
    other = two_slots(lora)
    with torch.no_grad():
        for _, parameter in other.trained("answerer"):
            parameter *= 1.2
    with pytest.raises(CanaryError, match="slot answerer"):
        check_version(other, TOKENIZER, "run/1.2", tmp_path)
