"""M-ASK through its stages in this process, on a tiny model: SFT, RL with its critic and probes, evaluation."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rolecast.config import load_config
from rolecast.learner.batch import TokenBatch
from rolecast.learner.cut import Cut
from rolecast.learner.learner import Learner
from rolecast.learner.tally import Metrics
from rolecast.methods.mask import Mask
from rolecast.stages.evaluate import evaluate
from rolecast.stages.inputs import inputs
from rolecast.stages.metrics import read_metrics
from rolecast.stages.run import Run, create
from rolecast.stages.train import train
from rolecast.types import Trajectory
from rolecast.weights.team import slots_in
from rolecast.wire.coordinator import unpack

TINY = [
    "threads=1",
    "model.scratch={hidden: 32, layers: 1, heads: 2, head_dim: 16, feed_forward: 32}",
    "data.world={entities: {train: 60, dev: 30, test: 30}, questions: {train: 12, dev: 4, test: 4}}",
    "method.max_turns=2",
    "method.max_tokens=24",
    "method.minibatches=2",
    "stages.sft={steps: 30, batch: 8, lr: 1.0e-2, drills: 0}",
    "stages.rl={steps: 2, questions: 3, group: 2, dev: 4, eval_every: 2, record: true}",
    "eval={n: 4, bootstrap: 100}",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[TokenBatch]]:
    """A run of all stages, and what the learner was given in RL."""
    batches: list[TokenBatch] = []

    update = Learner.update

    def noted(learner: Learner, cuts: Sequence[Cut], check: Callable[[Cut], None] | None = None) -> Metrics:
        batches.extend(cut.batch for cut in cuts if cut.objective.policy)
        return update(learner, cuts, check)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", noted)
        run = create(tmp_path_factory.mktemp("mask") / "run", load_config(Path(str(Mask.preset())), TINY))
        inputs(run)
        for stage in ("sft", "rl"):
            train(run, stage)
        evaluate(run, "rl")
    return run, batches


def shards(run: Run) -> list[list[Trajectory]]:
    return [unpack(path.read_bytes()) for path in sorted((run.stage("rl") / "trajectories").glob("*/trajectories.json.gz"))]


def test_replies_of_probes_are_trained_and_count_in_the_budget(trained: tuple[Run, list[TokenBatch]]) -> None:
    run, batches = trained
    steps = shards(run)
    assert len(steps) == len(batches) == 2
    budget = 0
    for played, batch, row in zip(steps, batches, [row for row in read_metrics(run.stage("rl")) if row["step"] > 0], strict=True):
        counted = [t for t in played if t.counts]
        assert set(batch.actions) == {action.id for t in counted for action in t.actions}
        probed = [action for t in counted for thread in t.threads if thread.probe for action in thread.actions]
        assert probed
        for action in probed:
            assert (batch.by_action("policy_weight")[action.id] > 0).all()
            assert (batch.by_action("value_weight")[action.id] > 0).all()
        budget += sum(len(action.ids) for t in played for action in t.actions)
        assert row["tokens/sampled"] == budget


def test_one_critic_values_all_five_roles(trained: tuple[Run, list[TokenBatch]]) -> None:
    run, batches = trained
    assert {tag for batch in batches for tag in batch.tags} == {"planning", "search", "summary", "update", "answer"}
    assert {batch.slot for batch in batches} == {"shared"}
    [checkpoint, *_] = sorted((run.stage("rl") / "best").iterdir())
    assert slots_in(checkpoint) == ["critic", "shared"]


def test_figures_of_the_method_stand_with_a_steps_metrics_and_an_evaluations_result(trained: tuple[Run, list[TokenBatch]]) -> None:
    run, _ = trained
    names = {"planning_f1", "turns", "ended", "added"}
    assert {f"method/{name}" for name in names} <= read_metrics(run.stage("rl"))[-1].keys()
    result = json.loads((run.evaluation("rl") / "result.json").read_text())
    assert set(result["method"]) <= names
    assert {"planning_f1", "turns", "ended"} <= set(result["method"])
    assert (result["n"], result["headline"]) == (4, "em")
