"""What of a config decides what a run computes, and what only says how it is run.

A setting is part of what is computed unless its field is marked, by `json_schema_extra`:
HOW      addresses, patience, workers, devices: may change whenever a run goes on;
SHAPE    how work is cut: as HOW, but it moves the last bits of floating point, so it is fixed in a run in lockstep;
SEGMENT  how much a stage takes at a time, and when it ends: may change while the stage trains, from a step that is recorded.

A setting that came when there were runs already, and whose default computes what those computed, is marked ADDED: at its default it is
left out of digests, so that those runs go on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Part = Literal["result", "segment", "shape", "how"]
HOW: dict[str, Any] = {"part": "how"}
SHAPE: dict[str, Any] = {"part": "shape"}
SEGMENT: dict[str, Any] = {"part": "segment"}
ADDED: dict[str, Any] = {"added": True}


@dataclass(frozen=True, slots=True)
class Change:
    """`key` is the setting's full name; None stands for a setting that is not there."""

    key: str
    before: Any
    after: Any
    part: Part

    def __str__(self) -> str:
        return f"{self.key} from {json.dumps(self.before)} to {json.dumps(self.after)}"


def settings(config: BaseModel) -> dict[str, tuple[Part, Any]]:
    """Every setting under its full name, with its part and its value as JSON has it."""
    return {key: (part, value) for key, part, value in _walk(config, config.model_dump(mode="json"), "")}


def changes(before: BaseModel, after: BaseModel) -> list[Change]:
    """Settings that differ, in the order of the config."""
    old, new = settings(before), settings(after)
    keys = dict.fromkeys([*old, *new])
    pairs = [(key, old.get(key, ("result", None)), new.get(key, ("result", None))) for key in keys]
    return [Change(key, b, a, new_part if key in new else old_part) for key, (old_part, b), (new_part, a) in pairs if b != a]


def digest(config: BaseModel, parts: Sequence[Part] = ("result", "segment")) -> str:
    """Of what is computed: equal for two configs that differ in how they are run alone."""
    found = _walk(config, config.model_dump(mode="json"), "", lean=True)
    counted = {key: value for key, part, value in found if part in parts}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:12]


def _walk(value: Any, dumped: Any, key: str, part: Part = "result", lean: bool = False) -> Iterator[tuple[str, Part, Any]]:
    """Sections are gone into; a mapping that holds no section is one setting, and so is a section that is marked as a whole. `lean`: without
    added settings at their defaults."""
    if part == "result" and isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            if not (lean and _added(field) and getattr(value, name) == field.default):
                yield from _walk(getattr(value, name), dumped[name], f"{key}.{name}".lstrip("."), part_of(field), lean)
    elif part == "result" and isinstance(value, dict) and any(isinstance(item, BaseModel) for item in value.values()):
        for name, item in value.items():
            yield from _walk(item, dumped[name], f"{key}.{name}", lean=lean)
    else:
        yield key, part, dumped


def _added(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, dict) and bool(field.json_schema_extra.get("added"))


def part_of(field: FieldInfo) -> Part:
    """What a setting's field is marked as."""
    extra = field.json_schema_extra
    return extra.get("part", "result") if isinstance(extra, dict) else "result"  # type: ignore[return-value]
