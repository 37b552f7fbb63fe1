"""From a spec to manifests in YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

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
