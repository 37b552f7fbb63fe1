"""Fixed retrieval: what a team answers from the documents that another run's team found for the same questions (DAC, C.3).

An evaluation keeps the ids of what was retrieved for each question; here they become `given` of the questions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.methods.base import DOCUMENTS
from rolecast.methods.registry import find, known
from rolecast.stages.run import Run
from rolecast.store.artifact import MANIFEST, digest_of, verify
from rolecast.types import Question


@dataclass(frozen=True, slots=True)
class Found:
    """What the team of a stage of `run` found in its evaluation."""

    run: Run
    stage: str

    @property
    def digest(self) -> str:
        return digest_of((self._evaluation / MANIFEST).read_bytes())[:12]

    @property
    def _evaluation(self) -> Path:
        folder = self.run.evaluation(self.stage)
        if not self.run.has(folder):
            raise InputError(
                f"{self.run.place} has no evaluation of {self.stage}; run `rolecast eval {self.run.place} --stage {self.stage}`"
            )
        verify(folder, "evaluation")
        return folder

    def given_to(self, questions: Sequence[Question]) -> list[Question]:
        """The questions with the ids of what was found for them. InputError for one that was not asked there, or had other answers."""
        rows = {row["id"]: row for row in map(json.loads, (self._evaluation / "predictions.jsonl").read_text().splitlines())}
        return [replace(question, given={**question.given, DOCUMENTS: self._retrieved(rows, question)}) for question in questions]

    def _retrieved(self, rows: Mapping[str, Any], question: Question) -> list[str]:
        row = rows.get(question.id)
        if row is None:
            raise InputError(
                f"{self.run.place}: question {question.id} is not in its evaluation of {self.stage}; give both runs one eval.n"
            )
        if row["golds"] != list(question.gold.answers):
            raise InputError(f"{self.run.place}: question {question.id} has other answers there; take a run on the same data")
        if "retrieved" not in row:
            raise InputError(f"{self.run.place}: its evaluation of {self.stage} kept no documents; evaluate it anew with this version")
        return list(dict.fromkeys(row["retrieved"]))

    def check(self, run: Run) -> None:
        """Raises InputError if `run` cannot answer from these documents."""
        require_fixed(run.config)
        corpora = {corpus for one in (run, self.run) if (corpus := _corpus(one))}
        if len(corpora) > 1:
            raise InputError(f"{self.run.place} searched another corpus than {run.place}; take a run on the same data")


def require_fixed(config: RunConfig) -> None:
    """Raises InputError for a method that would search all the same."""
    if not find(config.method.name).fixed:
        able = ", ".join(name for name in known() if find(name).fixed)
        raise InputError(f"method {config.method.name} does not answer from given documents; these do: {able}")


def _corpus(run: Run) -> str | None:
    """The hash of the corpus under the run's own index; None where the index is elsewhere, or not there."""
    manifest = run.manifest(run.index)
    return json.loads(manifest)["files"]["corpus.jsonl"]["sha256"] if manifest is not None else None
