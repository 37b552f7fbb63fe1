"""A published team version: what the learner writes and a worker verifies before it samples with it.

The artifact holds every slot that roles speak with and the stage trains (`slots/SLOT`), the tokenizer, and `team.json`: the key of the
base that the slots belong to, and a canary for each slot, computed from what was written. A worker whose models give other numbers
does not run those weights.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rolecast.errors import RolecastError
from rolecast.types import Slot, Version
from rolecast.weights.canary import Canary, canary, differs
from rolecast.weights.team import Team

KIND = "team"


class CanaryError(RolecastError):
    """A loaded version does not compute what was published."""


def write_version(
    team: Team, slots: Collection[Slot], version: Version, weights: Mapping[str, Tensor], folder: Path, mirror: Team | None = None
) -> None:
    """`weights`: the trained ones by their names in the team, whose own may be shards. `folder` is an artifact in the making.

    `mirror`: a team of the same form that reads back what was written, so a fault in writing is one that workers report. None takes the team's
    own word for it. What comes with the base has canaries too, but where whole models take its place.
    """
    team.save(slots, folder, weights)
    if mirror is not None:
        mirror.load(folder, slots)
    canaries = {slot: asdict(canary((mirror or team).model(slot), team.tokenizer)) for slot in _probed(team, slots)}
    told = {"name": str(version), "base": version.base, "adapters": dict(version.adapters), "canaries": canaries}
    (folder / "team.json").write_text(json.dumps(told))


def _probed(team: Team, slots: Collection[Slot]) -> list[Slot]:
    beside = {slot for slot in team.place if slot not in team.heads} if not slots or "adapter" in team.place.values() else set()
    return sorted({*slots, *beside})


def read_version(folder: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((folder / "team.json").read_text())
    return told


def base_of(folder: Path) -> str:
    """The key of the model that the version in `folder` was trained from."""
    return str(read_version(folder)["base"])


def check_version(team: Team, tokenizer: PreTrainedTokenizerBase, name: str, folder: Path) -> None:
    """Raises `CanaryError` unless every slot that was loaded is the published one."""
    told = read_version(folder)
    if told["name"] != name:
        raise CanaryError(f"{folder} holds version {told['name']}, not {name}")
    for slot, numbers in told["canaries"].items():
        published = Canary(tuple(numbers["ids"]), tuple(numbers["logprobs"]))
        found = canary(team.model(slot), tokenizer)
        if found.ids != published.ids:
            raise CanaryError(f"version {name}: the tokenizer gives other ids for the canary prompt; compare tokenizer packages")
        if off := differs(found, published, team.base.dtype):
            raise CanaryError(f"version {name}, slot {slot}: log-probs of the canary prompt differ by {off:.1e} from those published")
