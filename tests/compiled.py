"""A compiled pipeline as tests look at it: its parts as mappings, and its tasks wherever they stand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rolecast.launching.local_pipeline import write_pipeline

Mapping = dict[str, Any]


@dataclass(frozen=True)
class Compiled:
    """`spec`: the pipeline; `platform`: what Kubernetes is told of each executor."""

    text: str
    spec: Mapping
    platform: Mapping

    @classmethod
    def of(cls, pipeline: Any, folder: Path) -> Compiled:
        write_pipeline(folder / "pipeline.yaml", pipeline)
        return cls.read((folder / "pipeline.yaml").read_text())

    @classmethod
    def read(cls, text: str) -> Compiled:
        spec, platform = yaml.safe_load_all(text)
        return cls(text, spec, platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"])

    @property
    def root(self) -> Mapping:
        tasks: Mapping = self.spec["root"]["dag"]["tasks"]
        return tasks

    @property
    def tasks(self) -> Mapping:
        """All that run something, by name: of the root and of what is nested in it."""
        return {name: task for name, task, _ in self.places() if not self.nested(task)}

    def nested(self, task: Mapping) -> Mapping | None:
        """The tasks of a task that is a part of the pipeline."""
        dag: Mapping | None = self.spec["components"][task["componentRef"]["name"]].get("dag")
        return dag

    def executor(self, task: Mapping) -> str:
        return str(self.spec["components"][task["componentRef"]["name"]]["executorLabel"])

    def places(self) -> Iterator[tuple[str, Mapping, Mapping]]:
        """Name, task, and the inputs of the part of the pipeline that it stands in."""
        yield from self._in(self.spec["root"]["dag"], self.spec["root"]["inputDefinitions"]["parameters"])

    def _in(self, dag: Mapping, inputs: Mapping) -> Iterator[tuple[str, Mapping, Mapping]]:
        for name, task in dag["tasks"].items():
            yield name, task, inputs
            if (inner := self.nested(task)) is not None:
                part = self.spec["components"][task["componentRef"]["name"]]
                yield from self._in(inner, part["inputDefinitions"]["parameters"])
