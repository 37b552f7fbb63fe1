"""What counts of a run's budget, how stages share it, and that RL ends where it is spent."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from test_rl import THE_THE, Idling

from rolecast.config import JudgeConfig, RunConfig, make_config
from rolecast.errors import NamedStop
from rolecast.evaluation.cost import Cost, cost_of, read_cost
from rolecast.learner.ranks import ALONE
from rolecast.methods.decor import Decor
from rolecast.schedule import find
from rolecast.stages import rl as rl_stage
from rolecast.stages.budget import (
    ON_DEV,
    accounts,
    allowance,
    ever_trained,
    judge_allowance,
    judge_left,
    judged_in_evaluations,
    note_judged,
    trained_roles,
)
from rolecast.stages.metrics import read_metrics
from rolecast.stages.report import _budget
from rolecast.stages.rl import Trainer
from rolecast.stages.run import Run
from rolecast.stages.stopping import Stopping
from rolecast.store.artifact import writing
from rolecast.types import Action, Objective, Observation, PolicyTerm, Role, Stage, Thread, Trajectory

FROM_SFT = Decor(RunConfig().method).schedule()[0]  # type: ignore[arg-type]
ROUNDS = (
    FROM_SFT,
    Stage("first", "rl", "sft", (Objective("a", "planner", 1e-3, "group", PolicyTerm()),), merges=("planner",), slots={"planner": "planner"}),
    Stage("plans", "rollout", "first", slots={"planner": "frozen"}),
    Stage("second", "rl", "first", (Objective("b", "answerer", 1e-3, "group", PolicyTerm()),), slots={"answerer": "answerer"}, data="plans"),
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Of a method whose planner learns first, then is frozen and plays, and whose answerer learns on that."""
    monkeypatch.setattr(Decor, "schedule", lambda self: ROUNDS)
    monkeypatch.setattr(Decor, "prepare", lambda self, trajectory: None)
    return Run(tmp_path, make_config({"budget": 1000}, "here"))


def ended(run: Run, stage: str, sampled: int, why: str = "budget") -> None:
    of = find(run.config.schedule, stage)
    with writing(run.result(of), "model" if of.trains else "questions", {"cost": asdict(Cost(sampled)), "ended": why}):
        pass


def roles_of(run: Run, stage: str) -> tuple[frozenset[str], frozenset[str]]:
    of = find(run.config.schedule, stage)
    return trained_roles(run.config, of), ever_trained(run.config, of)


def test_whose_tokens_count(run: Run) -> None:
    planner, everyone = frozenset({"planner"}), frozenset({"planner", "filter", "answerer"})
    assert roles_of(run, "first") == (planner, everyone)
    assert roles_of(run, "plans") == (everyone, everyone)  # also the planner, which is frozen by now: SFT and RL have trained it
    assert roles_of(run, "second") == (frozenset({"answerer"}), everyone)


def test_rl_stages_share_what_earlier_ones_left(run: Run) -> None:
    first, second = (find(run.config.schedule, name) for name in ("first", "second"))
    assert allowance(run, first) == 500
    ended(run, "first", 510)
    assert allowance(run, first) == 500  # as before: a stage's own tokens are not taken from it
    ended(run, "plans", 90)
    assert allowance(run, second) == 1000 - 510 - 90
    assert accounts(run, ROUNDS)["first"] == {**asdict(Cost(510)), "ended": "budget"}
    found = _budget(run)
    assert (found["tokens"], found["sampled"], list(found["stages"])) == (1000, 600, ["first", "plans"])


def test_nothing_is_left_where_earlier_stages_spent_more(run: Run) -> None:
    ended(run, "first", 2000)
    assert allowance(run, find(run.config.schedule, "second")) == 0


def test_without_a_budget_nothing_is_limited(run: Run) -> None:
    assert allowance(Run(run.path, RunConfig()), ROUNDS[1]) is None


def test_costs_tell_who_spoke_what_was_read_and_the_longest_context() -> None:
    def said(role: str, read: int, spoken: int, probe: bool = False) -> Thread:
        return Thread(
            role, role, "", probe=probe, turns=[Observation((1,) * read, ""), Action("a", (1,) * spoken, (0.0,) * spoken, "v", "", "stop")]
        )

    first = Trajectory(
        "t", THE_THE, "g", 0, "decor", 0, threads=[said("planner", 5, 2), said("judge", 1, 4)], searches=2, judge_calls=3, judge_tokens=70
    )
    outside = Trajectory("v", THE_THE, "g", 2, "decor", 0, threads=[replace(said("planner", 0, 3), slot="external:endpoint")])
    assert cost_of([outside], {"planner"}) == Cost(0, 3, context={"planner": 3})
    second = Trajectory("u", THE_THE, "g", 1, "decor", 0, threads=[said("planner", 3, 9, probe=True)], searches=1)
    cost = cost_of([first, second], {"planner"})
    assert cost == Cost(11, 4, 9, 3, 3, 70, {"planner": 12, "judge": 5})
    assert cost + Cost(1, context={"planner": 20, "filter": 1}) == Cost(12, 4, 9, 3, 3, 70, {"planner": 20, "judge": 5, "filter": 1})
    assert read_cost(json.loads(json.dumps(asdict(cost)))) == cost


class Spending(Idling):
    """Each step samples ten tokens."""

    def sample(self, step: int) -> tuple[Any, dict[str, float]]:
        self.trainer.sampler.cost += Cost(10)  # type: ignore[union-attr]
        return super().sample(step)


@pytest.mark.parametrize(("allowed", "steps", "why"), [(None, 5, "steps"), (25, 3, "budget"), (30, 3, "budget"), (31, 4, "budget"), (99, 5, "steps"), (0, 0, "budget")])  # fmt: skip
def test_a_stage_ends_at_the_step_that_passes_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int | None, steps: int, why: str
) -> None:
    run = Spending(tmp_path, monkeypatch, "ttttt")
    run.trainer.allowed = allowed
    monkeypatch.setattr(Trainer, "open", lambda *arguments: run.trainer)
    rl_stage.rl(run.run, run.stage, ALONE)
    rows = read_metrics(run.run.stage("rl"))
    assert [row["step"] for row in rows] == list(range(steps + 1))
    assert "dev/em" in rows[-1]  # what it ends with is evaluated
    made = json.loads((run.run.model("rl") / "manifest.json").read_text())["provenance"]
    assert (made["ended"], made["cost"]["sampled"]) == (why, 10 * steps)


def test_what_was_sampled_before_a_checkpoint_counts_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Spending(tmp_path, monkeypatch, "ttttt")
    run.trainer.allowed, run.trainer.start = 25, 1
    run.trainer.progress.cost = asdict(Cost(10))
    run.trainer.sampler.cost = Cost(10)  # type: ignore[union-attr]
    run.trainer.train(Stopping(ALONE))
    assert read_metrics(run.run.stage("rl"))[-1]["step"] == 3


def allowing(run: Run, budget: int | None) -> Run:
    """The run, with a budget for its judge."""
    return replace(run, config=run.config.model_copy(update={"judge": JudgeConfig(budget=budget)}))


class Judged(Spending):
    """Each step asks the judge for ten tokens more, and dev for as many as `on_dev`."""

    takes = Cost(judge_tokens=10)

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, steps: str, budget: int | None, on_dev: int = 0) -> None:
        super().__init__(folder, monkeypatch, steps)
        self.run = self.trainer.run = allowing(self.run, budget)
        self.trainer.judged = judge_allowance(self.run, self.stage)
        self.saved: list[int] = []
        monkeypatch.setattr(rl_stage.checkpoints, "save", lambda run, name, step, *_: self.saved.append(step))
        monkeypatch.setattr(rl_stage, "means_of", lambda scores: {"em": 0.5})
        plain = Trainer._evaluated

        def evaluated(trainer: Trainer, step: int) -> dict[str, float]:
            return {**plain(trainer, step), **({"dev/judge_tokens": float(on_dev)} if on_dev else {})}

        monkeypatch.setattr(Trainer, "_evaluated", evaluated)

    def sample(self, step: int) -> tuple[Any, dict[str, float]]:
        self.trainer.sampler.cost += self.takes  # type: ignore[union-attr]
        return super().sample(step)


@pytest.mark.parametrize(("budget", "on_dev", "step"), [(25, 0, 3), (30, 0, 3), (31, 0, 4), (1, 0, 1), (25, 15, 1), (15, 15, 0)])
def test_a_judges_budget_stops_the_run_saved_at_the_step_that_passes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int, on_dev: int, step: int
) -> None:
    run = Judged(tmp_path, monkeypatch, "ttttt", budget, on_dev)
    with pytest.raises(
        NamedStop,
        match=rf"judge's budget of {budget} tokens is spent: rl is saved at step {step} of 5; give the same command with --set judge.budget=MORE",
    ):
        run.trainer.train(Stopping(ALONE))
    assert run.saved == ([step] if step else [])
    assert read_metrics(run.run.stage("rl"))[-1]["step"] == step


def test_a_judges_budget_that_lasts_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for budget in (None, 51):
        run = Judged(tmp_path / str(budget), monkeypatch, "ttttt", budget)
        run.trainer.train(Stopping(ALONE))
        assert run.trainer.ended == "steps"


@pytest.mark.parametrize(("budget", "calls", "warned"), [(5, 3, True), (5, 0, False), (None, 3, False)])
def test_a_budget_that_cannot_be_counted_is_warned_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, budget: int | None, calls: int, warned: bool
) -> None:
    run = Judged(tmp_path, monkeypatch, "ttt", budget)
    run.takes = Cost(judge_calls=calls)
    run.trainer.train(Stopping(ALONE))
    assert caplog.text.count("the judge tells no tokens") == warned


def test_the_last_step_ends_the_stage_whatever_the_judge_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Judged(tmp_path, monkeypatch, "ttt", 30)
    run.trainer.train(Stopping(ALONE))
    assert run.trainer.ended == "steps"


def test_what_the_judge_took_before_a_checkpoint_counts_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Judged(tmp_path, monkeypatch, "ttttt", 45)
    run.trainer.start = 1
    run.trainer.progress.cost = asdict(Cost(judge_tokens=10))
    run.trainer.progress.judged_on_dev = 20
    run.trainer.sampler.cost = Cost(judge_tokens=10)  # type: ignore[union-attr]
    with pytest.raises(NamedStop, match="saved at step 3 of 5"):
        run.trainer.train(Stopping(ALONE))


def test_earlier_stages_judging_is_taken_from_the_budget(run: Run) -> None:
    second = find(run.config.schedule, "second")
    assert judge_allowance(run, second) is None
    run = allowing(run, 1000)
    of = find(run.config.schedule, "first")
    with writing(run.result(of), "model", {"cost": asdict(Cost(judge_tokens=300)), "ended": "steps", ON_DEV: 50}):
        pass
    assert judge_allowance(run, of) == 1000
    assert judge_allowance(run, second) == 650


def test_roles_with_a_slot_of_another_stage_do_not_count(run: Run) -> None:
    spoken = replace(ROUNDS[3], slots={"answerer": "answerer", "filter": "answerer"})
    assert trained_roles(run.config, spoken) == {"answerer", "filter"}
    assert isinstance(run.config.method_in(spoken).roles["filter"], Role)


def test_evaluations_take_of_the_judges_budget_and_leave_the_rest(run: Run) -> None:
    assert judge_left(run) is None
    config = run.config.model_copy(update={"judge": JudgeConfig(budget=1000)})
    run = replace(run, config=config)
    with writing(run.model("first"), "model", {"cost": asdict(Cost(1, judge_tokens=300)), ON_DEV: 100}):
        pass
    note_judged(run, "first", 50)
    note_judged(run, "first", 25)  # once more, after it was stopped
    note_judged(run, "sft", 0)
    assert judged_in_evaluations(run) == {"first": 75}
    assert judge_left(run) == 1000 - 300 - 100 - 75
    assert judge_allowance(run, find(run.config.schedule, "second")) == 525
    assert judge_allowance(run, find(run.config.schedule, "first")) == 925  # its own tokens are not taken from it
    note_judged(run, "plans", 9999)
    assert judge_left(run) == 0
