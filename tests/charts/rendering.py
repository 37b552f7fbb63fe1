"""Runs helm and reads what it renders: objects, and the pods in them, wherever they are."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "rolecast"
EXAMPLES = ROOT / "manifests" / "examples"
RELEASE = "team"  # not the chart's name, so that a name written out where the release's belongs is seen
NAMESPACE = "research"

# Every way in which the chart is installed: which files of values, the later ones over the earlier.
INSTALLS = {
    "ci": (CHART / "values-ci.yaml",),
    "dev": (CHART / "values-dev.yaml",),
    "prod": (CHART / "values-prod.yaml",),
    "dev-minio": (CHART / "values-dev.yaml", EXAMPLES / "values-minio.yaml"),
    "dev-openshift": (CHART / "values-dev.yaml", EXAMPLES / "values-openshift.yaml"),
    "prod-identity": (CHART / "values-prod.yaml", EXAMPLES / "values-identity.yaml"),
    "prod-gpu-cluster": (CHART / "values-prod.yaml", EXAMPLES / "values-gpu-cluster.yaml"),
    "prod-second-pool": (CHART / "values-prod.yaml", EXAMPLES / "values-second-pool.yaml"),
}

Object = dict[str, Any]


@dataclass(frozen=True)
class Helm:
    binary: Path
    chart: Path = CHART

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.binary, command, *arguments], capture_output=True, text=True, timeout=60, check=False)

    def lint(self, *values: Path, sets: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return self.run("lint", "--strict", str(self.chart), *_flags(values, sets))

    def template(self, *values: Path, sets: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return self.run("template", RELEASE, str(self.chart), "-n", NAMESPACE, *_flags(values, sets))

    @functools.cache  # noqa: B019 (two instances, as long as the session)
    def rendered(self, install: str, *sets: str) -> list[Object]:
        result = self.template(*INSTALLS[install], sets=sets)
        assert result.returncode == 0, result.stderr
        return [document for document in yaml.safe_load_all(result.stdout) if document]


def _flags(values: tuple[Path, ...], sets: tuple[str, ...]) -> list[str]:
    return [flag for path in values for flag in ("-f", str(path))] + [flag for change in sets for flag in ("--set", change)]


@dataclass(frozen=True)
class Pod:
    """A pod or a pod template in `owner`, an object's kind and name."""

    owner: str
    metadata: Object
    spec: Object

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.metadata.get("labels", {}))

    @property
    def containers(self) -> list[Object]:
        return [container for kind in ("initContainers", "containers", "ephemeralContainers") for container in self.spec.get(kind, [])]


def title(item: Object) -> str:
    return f"{item['kind']} {item['metadata']['name']}"


def pods(objects: list[Object]) -> list[Pod]:
    """Found by their shape, so that a kind that no test knows yet is looked at too."""
    return [Pod(title(item), found.get("metadata", {}), found["spec"]) for item in objects for found in _with_containers(item)]


def _with_containers(node: Any) -> Iterator[Object]:
    if isinstance(node, dict):
        if isinstance(node.get("spec"), dict) and "containers" in node["spec"]:
            yield node
        for value in node.values():
            yield from _with_containers(value)
    elif isinstance(node, list):
        for value in node:
            yield from _with_containers(value)


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [item for item in objects if item["kind"] == kind]
