"""From a spec in YAML to manifests in YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rolecast.errors import InputError
from rolecast.launching import inferenceservice
from rolecast.launching.cluster import KINDS
from rolecast.launching.learner_pod import Manifest
from rolecast.launching.spec import read_spec, validated


class _Plain(yaml.SafeDumper):
    """Every object written out: people read manifests, and anchors hide what they repeat."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def to_yaml(manifests: Sequence[Manifest]) -> str:
    return yaml.dump_all(manifests, Dumper=_Plain, sort_keys=False, width=1000)


def render_job(kind: str, values: Mapping[str, Any], source: str) -> list[Manifest]:
    spec = read_spec(dict(values), source)
    runtime = KINDS[kind].runtime(spec)
    return ([runtime] if runtime else []) + KINDS[kind].render(spec)


def render_inference_service(values: Mapping[str, Any], source: str) -> Manifest:
    return inferenceservice.render(validated(inferenceservice.ServingSpec, dict(values), source))


def read_values(file: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    """A YAML mapping with `key.sub=value` overrides, values in YAML."""
    values = _read(file) if file else {}
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path:
            raise InputError(f"--set {override}: expected KEY=VALUE")
        *parents, last = path.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise InputError(f"--set {override}: {parent} is no mapping")
        try:
            place[last] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise InputError(f"--set {override}: the value is not YAML; quote it") from None
    return values


def _read(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read ({error.__class__.__name__})") from None
    except yaml.YAMLError as error:
        raise InputError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise InputError(f"{file}: nested too deeply") from None
    if not isinstance(values, dict):
        raise InputError(f"{file}: a spec is a mapping of keys to values")
    return values
