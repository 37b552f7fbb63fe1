"""A team's weights on disk, by slot: what an engine is given that reads them there itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolecast.errors import ArtifactError, InputError
from rolecast.types import Slot, endpoint_of
from rolecast.weights.adapters import is_adapter
from rolecast.weights.canary import Canary
from rolecast.weights.team import BASE, FROZEN, MERGED, slots_in
from rolecast.weights.versions import read_version


@dataclass(frozen=True, slots=True)
class Placed:
    """`adapters`: for each slot that roles speak with its adapter in peft's form, or None where the base itself speaks.

    `canaries`: the log-probs that each of those slots must give on a fixed prompt.
    """

    version: str
    base: Path  # a Hugging Face model directory
    tokenizer: Path
    adapters: Mapping[Slot, Path | None]
    canaries: Mapping[Slot, Canary]


def place_version(folder: Path, base: Path | None, spoken: Collection[Slot]) -> Placed:
    """A published version. `base`: the model that its slots belong to; None where a whole model is published alone."""
    told = read_version(folder)
    root, adapters = _speakers(folder, base, spoken)
    canaries = {slot: _canary(told, slot, folder) for slot in adapters}
    tokenizer = root if (root / "tokenizer_config.json").is_file() else folder
    return Placed(told["name"], root, tokenizer, adapters, canaries)


def place_model(folder: Path, spoken: Collection[Slot], version: str, canaries: Mapping[Slot, Canary], start: Path | None = None) -> Placed:
    """A stage's finished model, with what it keeps beside it in `slots`.

    `start`: what the stage began with, where frozen roles speak with that: then what was merged since is played as the adapter that it was.
    """
    if start is None:
        _, adapters = _speakers(None, folder, spoken)
        return Placed(version, folder, folder, adapters, canaries)
    _, adapters = _speakers(None, start, spoken)
    for slot in adapters:
        own = (folder / kept / slot for kept in ("slots", MERGED))
        adapters[slot] = next((place for place in own if slot != FROZEN and is_adapter(place)), adapters[slot])
    return Placed(version, start, folder, adapters, canaries)


def _speakers(saved: Path | None, base: Path | None, spoken: Collection[Slot]) -> tuple[Path, dict[Slot, Path | None]]:
    """The one whole model, and who speaks over it."""
    roots = [root for root in (saved, base) if root is not None]
    ours = sorted(slot for slot in spoken if endpoint_of(slot) is None)
    whole = {slot: root / "slots" / slot for root in reversed(roots) for slot in slots_in(root) if not is_adapter(root / "slots" / slot)}
    whole = {slot: place for slot, place in whole.items() if slot in ours}
    if whole and len(ours) > 1:
        raise InputError(
            f"slot {min(whole)} is a whole model, and so are others of {', '.join(ours)}; vLLM plays one model with adapters over it: "
            "set model.lora, or engine.name to transformers"
        )
    if whole:
        [(slot, place)] = whole.items()
        return place, {slot: None}
    if base is None:
        raise ArtifactError(f"{saved} holds adapters, and the model that they belong to is not there")
    return base, {slot: _adapter(roots, slot) for slot in ours}


def _adapter(roots: list[Path], slot: Slot) -> Path | None:
    """As the learner puts a team together: the slot's own adapter, the newest first, or what makes the base what it is."""
    own = [root / "slots" / slot for root in roots] if slot != FROZEN else []
    return next((place for place in (*own, roots[-1] / "slots" / BASE) if is_adapter(place)), None)


def _canary(told: Mapping[str, Any], slot: Slot, folder: Path) -> Canary:
    """Of the slot, or of the base where it has nothing of its own."""
    numbers = told["canaries"].get(slot) or told["canaries"].get(FROZEN)
    if numbers is None:
        raise ArtifactError(
            f"{folder}: version {told['name']} has no canary of slot {slot}, so its weights cannot be verified; publish it again"
        )
    return Canary(tuple(numbers["ids"]), tuple(numbers["logprobs"]))
