"""Prints docs/config.md: every key of a run's config with its default and meaning, as the code has them (`make reference`).

A key's meaning is the comment beside its field, at the end of the line or on the lines above it.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rolecast.config import RunConfig
from rolecast.externals import ExternalConfig
from rolecast.identity import part_of
from rolecast.methods.registry import find, known
from rolecast.rollout.engines.settings import TransformersConfig, VllmConfig, VllmHttpConfig
from rolecast.stage_settings import STAGE_KINDS

HEAD = """# Configuration

Every key of a run's config. This page is printed by `make reference` from the code, where the meanings stand beside the fields; a test
holds it to that. `--set KEY=VALUE` gives a key's full name.

*Changes*: whether another value may be given when the command is given again for the same run. **no**: it is part of what is
computed, so another value makes another run. **any time**: it only says how the run is run. **any time but in lockstep**: it moves the
last bits of floating point. **until the stage ends**: from the step on at which the stage goes on; the summary shows it.
"""
CHANGES = {"result": "no", "how": "any time", "shape": "any time but in lockstep", "segment": "until the stage ends"}
BOUNDS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}
STAGES = {"sft": "SFT", "rollout": "a rollout stage", "rl": "RL"}


@dataclass(frozen=True)
class Row:
    key: str
    values: str
    default: str
    meaning: str
    changes: str

    def __str__(self) -> str:
        cells = (f"`{self.key}`", self.values, f"`{self.default}`" if self.default else "", self.meaning, self.changes)
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def page() -> str:
    parts = [HEAD, *section("The run", RunConfig, ""), *section("An endpoint", ExternalConfig, "externals.NAME.")]
    parts += section("Engine vllm", VllmConfig, "engine.") + section("Engine vllm_http", VllmHttpConfig, "engine.")
    for kind, model in STAGE_KINDS.items():
        parts += section(f"A stage of kind {kind}: {STAGES[kind]}", model, "stages.STAGE.")
    for name in known():
        method = find(name)
        if method.__module__.startswith("rolecast.methods."):
            parts += section(f"Method {name}", method.config_type, "method.")
    return "\n".join(parts)


def section(title: str, model: type[BaseModel], prefix: str) -> list[str]:
    table = ["| key | values | default | meaning | changes |", "| --- | --- | --- | --- | --- |"]
    return [f"## {title}\n", *table, *map(str, rows(model, prefix)), ""]


def rows(model: type[BaseModel], prefix: str, inherited: str = "result") -> Iterator[Row]:
    """Sections are gone into. `method` and `stages` have sections of the page: their types depend on the method."""
    for name, field in model.model_fields.items():
        part = part_of(field) if inherited == "result" else inherited
        if model is RunConfig and name in ("method", "stages"):
            continue
        # What an engine can be are sections of the page; the table of the run has the one that there is by default.
        inner = TransformersConfig if model is RunConfig and name == "engine" else _model_in(field.annotation)
        if inner is None:
            yield Row(prefix + name, values(field.annotation, field.metadata), default(field), meaning(model, name), CHANGES[part])
            continue
        if NoneType in get_args(field.annotation):
            shown = "null" if field.default is None else ""
            yield Row(prefix + name, "section or null", shown, meaning(model, name), CHANGES[part])
        yield from rows(inner, f"{prefix}{name}.", part)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a field is; None of a mapping of sections, which is one key."""
    found = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, BaseModel)]
    return found[0] if found and get_origin(annotation) in (None, Union, UnionType) else None


def values(annotation: Any, metadata: list[Any]) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if origin in (Union, UnionType):
        kinds = [values(one, metadata) for one in inner if one is not NoneType]
        return " or ".join([*kinds, *(["null"] if NoneType in inner else [])])
    if origin is Annotated:
        return values(inner[0], [bound for one in inner[1:] for bound in getattr(one, "metadata", [one])])
    if origin is dict:
        return f"mapping of {values(inner[0], [])} to {values(inner[1], [])}"
    if origin in (list, tuple):
        return f"list of {values(inner[0], [])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    name = {"str": "text", "bool": "true, false", "float": "number", "int": "integer", "Any": "value"}[annotation.__name__]
    bounds = [f"{BOUNDS[type(one)]} {_bound(one)}" for one in metadata if type(one) in BOUNDS]
    return " ".join([name, ", ".join(bounds)]).strip()


def _bound(one: Any) -> str:
    [bound] = (getattr(one, name) for name in ("ge", "gt", "le", "lt") if hasattr(one, name))
    return f"{'-' if bound < 0 else ''}2^63" if abs(bound) == 2**63 else f"{bound:g}"


def default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    found = field.default if field.default is not PydanticUndefined else field.get_default(call_default_factory=True)
    return found if isinstance(found, str) and found else json.dumps(found)


def meaning(model: type[BaseModel], name: str) -> str:
    owner = next(one for one in model.__mro__ if name in inspect.get_annotations(one))
    lines = textwrap.dedent(inspect.getsource(owner)).splitlines()
    [body] = [node for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.ClassDef)]
    field = next(node for node in body.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name)
    assert field.end_lineno is not None
    assert field.end_col_offset is not None
    beside = lines[field.end_lineno - 1].encode()[field.end_col_offset :].decode().strip()
    above = []
    for line in reversed(lines[: field.lineno - 1]):
        if not line.strip().startswith("#"):
            break
        above.insert(0, line)
    found = " ".join(line.strip().lstrip("# ") for line in (*above, beside) if line.strip())
    if not found:
        raise SystemExit(f"{owner.__module__}.{owner.__name__}.{name} has no comment that says what it means; write one beside it")
    return found


if __name__ == "__main__":
    print(page(), end="")
