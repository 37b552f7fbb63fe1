"""A published team version: what the learner writes and a worker verifies before it samples with it.

The artifact holds the shared slot, a Hugging Face model or an adapter in peft's form, and `team.json`: the key of the base
that training started from and that adapters belong to, and a canary, log-probs of a fixed prompt under the weights that were
published. A worker whose engine gives other numbers does not run those weights.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from rolecast.errors import RolecastError
from rolecast.learner.adapters import is_adapter, load_adapter
from rolecast.learner.backends import Weights
from rolecast.learner.checkpoint import save_model
from rolecast.rollout.render import Renderer
from rolecast.types import Version

KIND = "team"
PROBE = [{"role": "user", "content": "canary question: who answers? The first one, the second one, or no one."}]
TOLERANCE = 1e-3  # of a log-prob in float32; bfloat16 kernels of two machines differ by up to some 5e-2


class CanaryError(RolecastError):
    """A loaded version does not compute what was published."""


@dataclass(frozen=True, slots=True)
class Canary:
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of ids[1:], each given the ones before it


@torch.no_grad()
def canary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Canary:
    ids, _ = Renderer(tokenizer).prompt(PROBE)
    tokens = torch.tensor([ids], device=model.device)
    logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    chosen = torch.log_softmax(logits, -1).gather(-1, tokens[0, 1:, None]).squeeze(-1)
    return Canary(ids, tuple(chosen.tolist()))


def write_team(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, version: Version, weights: Weights, folder: Path, base: Path
) -> None:
    """`weights`: the trained ones of `model`, whose own may be sharded. `base`: the model under `version.base`. `folder` is an
    artifact in the making.

    The canary is computed from what was written, so a fault in writing is one that workers report.
    """
    shared = folder / "shared"
    save_model(model, tokenizer, shared, weights)
    written = AutoModelForCausalLM.from_pretrained(base if is_adapter(shared) else shared, dtype=model.dtype)
    if is_adapter(shared):
        load_adapter(written, shared, "shared")
    (folder / "team.json").write_text(
        json.dumps({"name": str(version), "base": version.base, "adapters": version.adapters, "canary": asdict(canary(written, tokenizer))})
    )


def base_of(folder: Path) -> str:
    """The key of the model that the version in `folder` was trained from."""
    base: str = json.loads((folder / "team.json").read_text())["base"]
    return base


def check_team(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, folder: Path) -> None:
    """Raises `CanaryError` unless the loaded model is the published one."""
    team = json.loads((folder / "team.json").read_text())
    if team["name"] != name:
        raise CanaryError(f"{folder} holds version {team['name']}, not {name}")
    tolerance = TOLERANCE if model.dtype == torch.float32 else 0.1
    found = canary(model, tokenizer)
    if found.ids != tuple(team["canary"]["ids"]):
        raise CanaryError(f"version {name}: the tokenizer gives other ids for the canary prompt; compare tokenizer packages")
    difference = float(np.abs(np.array(found.logprobs) - np.array(team["canary"]["logprobs"])).max())
    if not difference <= tolerance:
        raise CanaryError(
            f"version {name}: log-probs of the canary prompt differ by {difference:.1e} > {tolerance:.0e} from those published"
        )
