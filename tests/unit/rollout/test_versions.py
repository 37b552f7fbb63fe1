"""A published version computes what was published, or is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from rolecast.rollout.versions import CanaryError, canary, check_team, write_team
from rolecast.types import Version
from tests.tiny import TOKENIZER, tiny_model

VERSION = Version("run", 1, 2, "sft/model", {"shared": None})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tiny_model(scale=5.0)
    write_team(model, TOKENIZER, VERSION, model.state_dict(), tmp_path, base=tmp_path)
    return tmp_path


def test_the_same_weights_pass(folder: Path) -> None:
    check_team(tiny_model(scale=5.0), TOKENIZER, "run/1.2", folder)


def test_other_weights_are_refused(folder: Path) -> None:
    model = tiny_model(scale=5.0)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.2)
    with pytest.raises(CanaryError, match=r"version run/1\.2: log-probs of the canary prompt differ by"):
        check_team(model, TOKENIZER, "run/1.2", folder)


def test_weights_that_are_no_numbers_are_refused(folder: Path) -> None:
    model = tiny_model(scale=5.0)
    with torch.no_grad():
        model.model.embed_tokens.weight[:] = float("nan")
    with pytest.raises(CanaryError):
        check_team(model, TOKENIZER, "run/1.2", folder)


def test_another_version_under_the_name_is_refused(folder: Path) -> None:
    with pytest.raises(CanaryError, match=r"holds version run/1\.2, not run/1\.3"):
        check_team(tiny_model(scale=5.0), TOKENIZER, "run/1.3", folder)


def test_another_tokenizer_is_refused(folder: Path) -> None:
    team = json.loads((folder / "team.json").read_text())
    team["canary"]["ids"][0] += 1
    (folder / "team.json").write_text(json.dumps(team))
    with pytest.raises(CanaryError, match="other ids"):
        check_team(tiny_model(scale=5.0), TOKENIZER, "run/1.2", folder)


def test_the_weights_given_are_written_not_the_models_own(tmp_path: Path) -> None:
    """Under ZeRO-3 the model's own tensors are empty shards."""
    model, other = tiny_model(), tiny_model(seed=1)
    write_team(model, TOKENIZER, VERSION, other.state_dict(), tmp_path, base=tmp_path)
    assert json.loads((tmp_path / "team.json").read_text())["canary"]["logprobs"] == list(canary(other, TOKENIZER).logprobs)
