"""Strict reading of YAML and JSON: a key that is given twice is refused, where the last would win without a word.

Errors are `InputError`s of one line that name the file, or where else the text came from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from rolecast.errors import ArtifactError, InputError

LIMIT = 4 << 20  # bytes of a file that somebody wrote
CLOSED = ConfigDict(
    extra="forbid", frozen=True, allow_inf_nan=False
)  # a section of a config: an unknown key, or a number that is none, is an error


def read_mapping(path: Path | None, overrides: Sequence[str], what: str) -> dict[str, Any]:
    """A YAML file with `key.sub=value` overrides, values in YAML; without a file, the overrides alone.

    `what` the file is, for errors: a config, a spec.
    """
    data = _read_file(path, what) if path is not None else {}
    for text in overrides:
        override(data, text)
    return data


def read_json(text: str, origin: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=distinct)
    except json.JSONDecodeError as error:
        raise InputError(f"{origin}: not JSON: {error}") from None
    except RecursionError:
        raise InputError(f"{origin}: nested too deeply") from None
    except InputError as error:
        raise InputError(f"{origin}: {error}") from None


def read_own(file: Path, shape: Any, mend: str) -> Any:
    """A JSON file that a run wrote itself, held to a type. `ArtifactError` says where it is damaged, and what to do: `mend`."""
    return _own(file.read_bytes(), TypeAdapter(shape), str(file), mend)


def read_own_lines(file: Path, shape: Any, mend: str) -> list[Any]:
    """As `read_own`, of JSON lines. A last one that was cut off by a crash is left out."""
    *lines, _cut = file.read_bytes().split(b"\n")
    reader = TypeAdapter(shape)
    return [_own(line, reader, f"{file}, line {number},", mend) for number, line in enumerate(lines, 1)]


def _own(data: bytes, reader: TypeAdapter[Any], where: str, mend: str) -> Any:
    try:
        value = json.loads(data.decode())
        reader.validate_python(value)
    except UnicodeDecodeError:
        fault = "not UTF-8"
    except json.JSONDecodeError as error:
        fault = f"not JSON: {error}"
    except RecursionError:
        fault = "nested too deeply"
    except ValidationError as error:
        fault = describe(error, "it")
    else:
        return value
    raise ArtifactError(f"{where} is damaged ({fault}); {mend}")


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        raise InputError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice; keep one")
    return data


class _Loader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise InputError(f"key {key.value!r} is given twice, again in line {key.start_mark.line + 1}; keep one")
            seen.add((key.tag, key.value))
        return node


# `off` is a word that some settings have: only true and false are booleans, as in YAML 1.2. A switch takes on and off as well.
_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag != _BOOL] for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def _read_yaml(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError(f"not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InputError("nested too deeply") from None


def _read_file(path: Path, what: str) -> dict[str, Any]:
    try:
        data = _read_yaml(_written(path))
    except FileNotFoundError:
        raise InputError(f"{path}: no such {what} file; see configs/ and docs/ for examples") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error.__class__.__name__})") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if data is None:
        raise InputError(f"{path}: holds nothing; write the keys of the {what} into it, or {{}} for its defaults")
    if not isinstance(data, dict):
        raise InputError(f"{path}: {what}: write a mapping of keys to values")
    return data


def _written(path: Path) -> str:
    """The text of a file or a pipe, as long as it is one that somebody may have written."""
    with path.open("rb") as file:
        found = file.read(LIMIT + 1)
    if len(found) > LIMIT:
        raise InputError(f"has more than {LIMIT >> 20} MiB, which nobody wrote; name another file")
    return found.decode()


def override(data: dict[str, Any], text: str) -> None:
    """Sets one key in place, from `key.sub=value`."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InputError(f"override {text!r}: write key.sub=value")
    *parents, last = key.split(".")
    at = data
    for parent in parents:
        child = at.setdefault(parent, {})
        if child is None:
            child = at[parent] = {}
        if not isinstance(child, dict):
            raise InputError(f"override {text!r}: {parent} is a value, not a section")
        at = child
    try:
        at[last] = _read_yaml(value)
    except InputError as error:
        raise InputError(f"override {text!r}: {error}") from None


def describe(error: ValidationError, whole: str = "config") -> str:
    """The first fault of a validation, as one line with the key's full name, or the name of the `whole`."""
    first = error.errors()[0]
    where = ".".join(part for part in map(str, first["loc"]) if not part.startswith("(")) or whole  # the tag of a union is no key
    reason = "unknown key" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {reason}{more}"
