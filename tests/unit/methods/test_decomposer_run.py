"""A whole run of DecomposeR's preset, as small as one can be, in this process: SFT, planner RL, plans, answerer RL, evaluation, report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from decomposer_episodes import direction

from rolecast.config import RunConfig, load_config
from rolecast.data.records import read_questions
from rolecast.evaluation.table import results_table
from rolecast.methods.registry import find
from rolecast.retriever import encoder
from rolecast.stages.evaluate import evaluate
from rolecast.stages.inputs import inputs
from rolecast.stages.metrics import read_metrics
from rolecast.stages.report import report
from rolecast.stages.run import Run, prepare
from rolecast.stages.train import train
from rolecast.wire.coordinator import unpack

SMALL = [
    "lockstep=false",
    "data.world={kind: reports, entities: {train: 90, dev: 60, test: 60}, questions: {train: 40, dev: 12, test: 12}}",
    "model.scratch={hidden: 64, layers: 2, heads: 2, head_dim: 32, feed_forward: 96}",
    "stages.sft={steps: 110, batch: 12, lr: 0.01, optimizer: {name: muon, warmup: 10}, errors: {drop_node: 0.3}}",
    "stages.planner={steps: 2, questions: 4, group: 4, dev: 4, record: true}",
    "stages.plans={questions: 8, dev: 6}",
    "stages.answerer={steps: 2, questions: 4, group: 4, dev: 4, record: true}",
    "eval.n=8",
]


class Words:
    """An encoder by words: a real one takes seconds to load."""

    def __init__(self, name: str) -> None:
        assert name == "minilm"

    def encode(self, texts: Sequence[str], side: Literal["query", "passage"]) -> npt.NDArray[np.float32]:
        return np.array([direction(text) for text in texts], dtype=np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "Encoder", Words)
        config = load_config(Path(str(find("decomposer").preset())), SMALL)
        made = prepare(str(tmp_path_factory.mktemp("decomposer") / "run"), config, inputs)
        for stage in config.schedule:
            train(made, stage.name)
        for stage in config.schedule:
            if stage.trains:
                evaluate(made, stage.name)
        report(made)
        yield made


def trajectories(run: Run, stage: str) -> list[Any]:
    shards = sorted((run.stage(stage) / "trajectories").glob("*/trajectories.json.gz"))
    return [t for shard in shards for t in unpack(shard.read_bytes())]


def test_the_planners_stage_plays_no_answerer_and_learns_from_graphs(run: Run) -> None:
    played = trajectories(run, "planner")
    assert {thread.role for t in played for thread in t.threads} == {"planner", "reviser"}
    rows = read_metrics(run.stage("planner"))
    assert any(row.get("grad_norm", 0) > 0 for row in rows)
    assert all("dev/planner" in row and "dev/em" not in row for row in rows if row["step"] in (0, 2))
    assert any(row.get("method/graph.nodes", 0) >= 2 for row in rows)


def test_plans_are_prepared_and_those_that_are_none_counted(run: Run) -> None:
    prepared = {split: read_questions(run.questions("plans") / f"{split}.jsonl") for split in ("train", "dev")}
    assert all(set(q.given) == {"plan", "sources", "found", "seed", "sample"} for questions in prepared.values() for q in questions)
    manifest = json.loads((run.questions("plans") / "manifest.json").read_text())
    for split, asked in (("train", 8), ("dev", 6)):
        counts = manifest["provenance"]["counts"][split]
        assert counts["prepared"] == len(prepared[split]) > 0
        assert counts["prepared"] + counts["left_out"] == asked


def test_the_answerers_stage_searches_nothing(run: Run) -> None:
    played = trajectories(run, "answerer")
    assert {thread.role for t in played for thread in t.threads} <= {"answerer", "writer"}
    assert {t.searches for t in played} == {0}
    assert not any(t.retrieved for t in played)
    rows = read_metrics(run.stage("answerer"))
    assert all("dev/answerer" in row for row in rows if row["step"] in (0, 2))


def test_every_model_is_evaluated_end_to_end_by_answers_and_reports(run: Run) -> None:
    summary = json.loads((run.path / "summary.json").read_text())
    assert list(summary["stages"]) == ["sft", "planner", "answerer"]
    for result in summary["stages"].values():
        assert (result["headline"], result["n"]) == ("em", 8)
        assert result["others"]["report"]["n"] == 8  # also of plans that were none
        assert result["searches_per_question"] > 0  # live plans
        assert "graph.invalid" in result["method"]
    assert results_table(summary["stages"]).split()[:7] == ["stage", "EM", "95", "%", "interval", "report", "95"]


def test_the_planner_is_merged_and_the_answerer_stays_beside_it(run: Run) -> None:
    assert not (run.model("planner") / "slots").exists()
    assert [place.name for place in (run.model("answerer") / "slots").iterdir()] == ["answerer"]
    config: RunConfig = run.config
    assert config.schedule[3].merges == ()
