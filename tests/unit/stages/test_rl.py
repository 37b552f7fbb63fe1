"""What RL reports, how it guards what it has, and how it ends where nothing is left to learn."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripted import TWO_HOPS

from rolecast.config import RunConfig, make_config
from rolecast.errors import CollapseError, RolecastError
from rolecast.evaluation.cost import Cost
from rolecast.evaluation.metrics import shortfall, summarize
from rolecast.learner.backends import PlainBackend, Training
from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.look import TokenNumbers
from rolecast.learner.ranks import ALONE
from rolecast.learner.settings import OptimizerConfig
from rolecast.methods.decor import Decor
from rolecast.ports import Sampling
from rolecast.rollout.collect import Episode
from rolecast.rollout.waits import Waits
from rolecast.stages import rl as rl_stage
from rolecast.stages.looked import read_looked
from rolecast.stages.metrics import read_metrics
from rolecast.stages.rl import Trainer, TrainerState
from rolecast.stages.run import Run
from rolecast.stages.sampling import Batch, Credited, NothingLearnedError, describe
from rolecast.stages.stopping import Stopping
from rolecast.types import Action, Example, Gold, Question, Reward, Thread, Trajectory, Unit, ValueTerm
from rolecast.weights.models import CPU, read_model
from rolecast.weights.team import Casting
from tests.tiny import tiny_team

SHOWN = Example((1, 2), (False, True))
THE_THE = Question("q", "Which band is it?", Gold(("The The",)))


def act(id: str, tokens: int) -> Action:
    return Action(id, (1,) * tokens, (0.0,) * tokens, "v", "", "stop")


def finished(question: Question = TWO_HOPS, answer: str | None = None) -> Trajectory:
    return Trajectory("t", question, "g", 0, "decor", 0, threads=[Thread("t0", "planner", "shared", turns=[act("a", 3)])], answer=answer)


@pytest.mark.parametrize(
    ("answer", "scores"), [(None, [0.0, 0.0, 0.0]), ("The The", [1.0, 0.0, 1.0])]
)  # its words are articles: F1 has none
def test_no_answer_scores_zero_in_every_report(answer: str | None, scores: list[float]) -> None:
    done = [finished(THE_THE, answer)]
    assert describe(done, [])["train/em"] == scores[0]
    assert [summarize(done, 0, 100)[name] for name in ("em", "f1", "cem")] == scores


def ended(status: Any, answer: str | None = None) -> Trajectory:
    t = finished(THE_THE, answer)
    t.status, t.fault = status, "OSError: the index is on fire" if status == "error" else ""
    return t


def test_what_ended_without_fault_of_a_role_is_counted() -> None:
    numbers = describe([ended("error"), ended("length"), ended("length"), ended("format"), ended("ok")], [])
    assert (numbers["episodes/error"], numbers["episodes/length"]) == (1.0, 2.0)


def test_an_episode_that_failed_scores_zero_in_the_evaluation_of_a_test_set() -> None:
    numbers = summarize([ended("error"), *[ended("ok", "The The")] * 9], 0, 100)
    assert (numbers["em"], numbers["n"], numbers["status"]) == (0.9, 10, {"error": 1, "ok": 9})


@pytest.mark.parametrize(
    ("asked", "missing", "failed", "tolerated"),
    [
        (20, 1, 1, True), (20, 1, 2, False), (20, 3, 0, False), (9, 0, 1, True), (9, 1, 0, True), (9, 1, 1, False), (2, 1, 0, True),
        (2, 1, 1, False), (1, 0, 0, True), (1, 0, 1, False), (1, 1, 0, False), (0, 0, 0, True),
    ],
)  # fmt: skip
def test_one_episode_that_is_lost_ends_nothing_unless_it_is_all_there_is(asked: int, missing: int, failed: int, tolerated: bool) -> None:
    done = [ended("error")] * failed + [ended("ok")] * (asked - missing - failed)
    if tolerated:
        assert shortfall(asked, done, "dev") == {"missing": missing, "errors": failed}
    else:
        with pytest.raises(
            RolecastError, match=f"dev: of {asked} episodes {missing} are missing and {failed} failed; at most 10% may, or one"
        ):
            shortfall(asked, done, "dev")


class Dev:
    """A trainer of a tiny model whose dev score is told."""

    def __init__(self, folder: Path, config: RunConfig | None = None) -> None:
        config = config or RunConfig()
        self.stage = config.schedule[1]
        self.run = Run(folder, config)
        self.team = tiny_team()
        self.resets = 0
        self.published: list[tuple[int, int]] = []
        self.answering: list[torch.Tensor] = []  # the weights that were published
        backend = PlainBackend(self.team, {"shared": Training(OptimizerConfig(), 1e-3, 10)}, ALONE)
        backend.optimizers["shared"].reset = self._reset  # type: ignore[method-assign]
        learner = Learner(self.stage.objectives, self.team, backend, seed=0)
        self.answers = ["The The"]
        self.begun: list[int] = []
        self.settled: list[float] = []
        rollouts = SimpleNamespace(
            collect=lambda episodes, sampling, phase: [finished(THE_THE, a) for a in self.answers],
            version="v",
            forget=self.begun.clear,
            waits=Waits(),
        )
        sampler: Any = SimpleNamespace(
            rollouts=rollouts,
            sample=self.sample,
            begin=self.begin,
            cost=Cost(),
            dropped=0,
            told=lambda: {"tokens/sampled": 0.0},
            settle=self.settled.append,
        )
        publisher: Any = SimpleNamespace(publish=self._publish)
        self.trainer = Trainer(self.run, self.stage, learner, sampler, publisher, [THE_THE], 0, TrainerState())

    def _reset(self) -> None:
        self.resets += 1

    def _publish(self, step: int, weights: Any, rollback: int) -> None:
        self.published.append((step, rollback))
        self.answering.append(self.weights())

    def sample(self, step: int) -> tuple[Batch, dict[str, float]]:
        raise NotImplementedError

    def begin(self, step: int) -> None:
        self.begun.append(step)

    def move(self) -> None:
        """Makes every weight worse by one."""
        with torch.no_grad():
            for weights in self.team.model("shared").parameters():
                weights += 1

    def weights(self) -> torch.Tensor:
        return self.team.model("shared").get_input_embeddings().weight.detach().clone()


class Collapsing(Dev):
    step = 0

    def train(self, em: float) -> None:
        """One interval between evaluations, after which `em` of ten questions are answered right."""
        self.move()
        self.answers = ["The The" if i < 10 * em else "no" for i in range(10)]
        self.step += 10
        self.trainer.evaluate(self.step, self.trainer.learner.weights())
        self.trainer._guard(self.step)


def test_a_collapse_brings_back_the_best_weights_and_a_new_optimizer(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    run.train(0.8)
    best = run.weights()
    run.train(0.3)
    assert run.resets == 0  # once may be chance
    run.train(0.3)
    assert torch.equal(run.weights(), best)
    assert (run.resets, run.trainer.progress.rollbacks, run.trainer.progress.low) == (1, 1, 0)


def test_a_collapse_brings_back_the_critic_too(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    [objective] = run.stage.objectives
    valued = replace(run.stage, objectives=(replace(objective, estimator="gae", kl=None, critic=ValueTerm("critic", 1e-3)),))
    run.team = tiny_team(Casting(frozenset({"shared"}), ("shared",), ("critic",)))
    run.trainer.stage, run.trainer.learner = valued, make_learner(valued.objectives, run.team, OptimizerConfig(), 10, 0)
    run.train(0.8)
    best = {name: tensor.clone() for name, tensor in run.trainer.learner.weights().items()}
    assert {name.partition(".")[0] for name in best} == {"base", "whole", "heads"}
    with torch.no_grad():
        for parameter in run.team.parameters():
            parameter += 1
    run.train(0.3)
    run.train(0.3)
    after = run.trainer.learner.weights()
    assert [name for name, tensor in best.items() if not torch.equal(tensor, after[name])] == []


def test_scores_that_are_low_but_not_in_a_row_are_no_collapse(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    for em in (0.8, 0.3, 0.5, 0.3, 0.7, 0.3):
        run.train(em)
    assert (run.resets, run.trainer.progress.rollbacks) == (0, 0)


def test_a_second_collapse_ends_the_run_and_keeps_the_best_model(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    for em in (0.8, 0.3, 0.3, 0.3):
        run.train(em)
    with pytest.raises(CollapseError, match="step 50: dev em stayed under 50% of its best"):
        run.train(0.3)
    assert run.trainer.progress.best == {"step": 10, "score": 0.8}


class Idling(Dev):
    """Its steps teach something (t), nothing because the questions are solved (s), or nothing for another reason (n)."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, steps: str, idle_steps: int | None = 3, **model: str) -> None:
        rl = {"steps": len(steps), "idle_steps": idle_steps, "eval_every": 100, "checkpoint_every": 100}
        super().__init__(folder, make_config({"stages": {"rl": rl}, "model": model}, "here"))
        self.steps = steps
        self.gates: list[float] = []
        self.stale: list[tuple[list[str], list[int]]] = []  # with the steps that were begun by then
        monkeypatch.setattr(rl_stage, "reinforce", self.reinforce)

    def sample(self, step: int) -> tuple[Batch, dict[str, float]]:
        if self.steps[step] != "t":
            raise NothingLearnedError(f"step {step} teaches nothing", solved=self.steps[step] == "s")
        t = finished(THE_THE)
        return Batch([Credited([t], [Unit("u", ("a",), 1.0, "decor", tag="planner")], [SHOWN])]), {"groups": 1.0}

    def reinforce(
        self, learner: Learner, threads: Sequence[Thread], units: Sequence[Unit], examples: Sequence[Any], *, gate: float,
        stale: frozenset[str],
    ) -> dict[str, float]:  # fmt: skip
        assert ([thread.id for thread in threads], [unit.id for unit in units], list(examples)) == (["t0"], ["u"], [SHOWN])
        self.gates.append(gate)
        self.stale.append((sorted(stale), list(self.begun)))
        self.move()
        return {"loss": 0.5}

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_metrics(self.run.stage("rl"))


def test_a_step_that_teaches_nothing_is_left_out_and_the_next_one_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Idling(tmp_path, monkeypatch, "nstnnt")
    run.trainer.train(Stopping(ALONE))
    assert len(run.gates) == 2  # updates
    assert [row["step"] for row in run.rows] == list(range(7))
    assert [(row.get("idle"), row.get("loss")) for row in run.rows] == [
        (None, None), (1.0, None), (1.0, None), (None, 0.5), (1.0, None), (1.0, None), (None, 0.5),
    ]  # fmt: skip
    assert run.trainer.progress.idle == 0
    assert run.published == [(step, 0) for step in range(7)]


def test_a_dev_evaluation_has_the_interval_of_each_score(tmp_path: Path) -> None:
    run = Dev(tmp_path)
    run.answers = ["no"] * 10
    run.trainer.dev = [THE_THE] * 10
    numbers = run.trainer.evaluate(0, run.trainer.learner.weights())
    assert numbers["dev/em"] == numbers["dev/em/low"] == 0.0
    assert numbers["dev/em/high"] == pytest.approx(0.308497)  # 1 - .025 ** (1 / 10), since none is right
    assert {name for name in numbers if name.startswith("dev/cem")} == {"dev/cem", "dev/cem/low", "dev/cem/high"}


def test_the_tokens_of_an_update_are_kept_where_a_step_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Idling(tmp_path, monkeypatch, "tttt")
    run.run.config.stages["rl"] = run.trainer.config.model_copy(update={"eval_every": 3})
    looks: list[list[str]] = []

    def reinforce(learner: Learner, *given: Any, **more: Any) -> dict[str, float]:
        looks.append(sorted(learner.look))
        learner.looked = {"a": TokenNumbers((0.5,) * 3, (1.0,) * 3, (0.1,) * 3)} if learner.look else {}
        return {}

    def sample(step: int) -> tuple[Batch, dict[str, float]]:
        t = finished(THE_THE)
        units = [Unit(name, actions, reward, "decor", "g") for name, actions, reward in (("u", ("a",), 1.0), ("v", ("z",), 0.0))]
        return Batch([Credited([t], units, [])]), {}

    monkeypatch.setattr(rl_stage, "reinforce", reinforce)
    monkeypatch.setattr(run.trainer.sampler, "sample", sample)
    run.trainer.train(Stopping(ALONE))
    assert looks == [["a"], [], ["a"], []]
    assert [trace["step"] for trace in read_looked(run.run.stage("rl"))] == [1, 3]


def test_what_a_method_finds_wrong_is_said_once_and_marked_in_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shares = iter((0.1, 0.6, 0.7, 0.2, 0.8))
    monkeypatch.setattr(Decor, "diagnostics", lambda self, done: {"share": next(shares), "episodes": float(len(done))})
    monkeypatch.setattr(Decor, "alarms", lambda self, rows: {"half": "it is a half"} if rows[-1].get("method/share", 0) > 0.5 else {})
    run = Idling(tmp_path, monkeypatch, "ttttt")
    run.trainer.train(Stopping(ALONE))
    assert [row.get("method/share") for row in run.rows] == [None, 0.1, 0.6, 0.7, 0.2, 0.8]
    assert {row.get("method/episodes") for row in run.rows[1:]} == {1.0}
    assert [row["step"] for row in run.rows if "alarm/half" in row] == [2, 3, 5]
    assert [r.message for r in caplog.records if "half" in r.message] == ["step 2: it is a half", "step 5: it is a half"]


def test_every_step_is_played_by_the_weights_of_the_update_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Idling(tmp_path, monkeypatch, "tt")
    start = run.weights()
    run.trainer.train(Stopping(ALONE))
    assert run.published == [(0, 0), (1, 0), (2, 0)]
    for updates, weights in enumerate(run.answering):
        assert torch.allclose(weights, start + updates)


def test_one_step_off_begins_the_next_step_before_the_update_and_tells_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Idling(tmp_path, monkeypatch, "ttt")
    run.run.config.stages["rl"] = run.trainer.config.model_copy(update={"staleness": 1})
    versions = iter(("v", "w", "w"))
    monkeypatch.setattr(run, "_publish", lambda *given: None)
    sample = run.trainer.sampler.sample  # type: ignore[union-attr]

    def sampled(step: int) -> Any:
        run.trainer.sampler.rollouts.version = next(versions)  # type: ignore[union-attr]
        return sample(step)

    run.trainer.sampler.sample = sampled  # type: ignore[union-attr,method-assign]
    run.trainer.train(Stopping(ALONE))
    assert run.stale == [([], [1]), (["a"], [1, 2]), (["a"], [1, 2])]  # the action is of version v; nothing follows the last step


def test_a_collapse_forgets_what_was_sampled_ahead(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    run.trainer.sampler.begin(3)  # type: ignore[union-attr]
    for em in (0.8, 0.3):
        run.train(em)
        assert run.begun == [3]
    run.train(0.3)
    assert run.begun == []


@pytest.mark.parametrize("start", [0, 2])
def test_rows_of_steps_that_are_taken_again_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    run = Idling(tmp_path, monkeypatch, "tttt")
    run.trainer.train(Stopping(ALONE))
    run.trainer.start, run.steps = start, "nntn"
    run.trainer.train(Stopping(ALONE))
    taken_again = {1: None, 2: None, 3: None, 4: 1.0} if start else {1: 1.0, 2: 1.0, 3: None, 4: 1.0}
    assert [(row["step"], row.get("idle")) for row in run.rows] == [(0, None), *taken_again.items()]


def test_checkpoints_are_kept_in_their_interval_and_not_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Idling(tmp_path, monkeypatch, "ttttt")
    run.run.config.stages["rl"] = run.trainer.config.model_copy(update={"checkpoint_every": 2})
    saved: list[int] = []
    monkeypatch.setattr(rl_stage.checkpoints, "save", lambda run, stage, done, *given: saved.append(done))
    run.trainer.train(Stopping(ALONE))
    assert saved == [2, 4]


class Falling(Idling):
    """Never right again after the evaluation before its first step."""

    def sample(self, step: int) -> tuple[Batch, dict[str, float]]:
        self.answers = ["no"]
        return super().sample(step)


def test_weights_that_were_put_back_play_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Falling(tmp_path, monkeypatch, "ttt")
    run.run.config.stages["rl"] = run.trainer.config.model_copy(update={"eval_every": 1})
    start = run.weights()
    run.trainer.train(Stopping(ALONE))
    assert run.published == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 1)]
    assert [float((weights - start).mean().round()) for weights in run.answering] == [0.0, 1.0, 2.0, 0.0, 1.0]


def test_weights_are_gathered_once_for_all_that_a_step_does_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks take part in it. Step 0 is the best, every step ends in a checkpoint, and after the second the best comes back."""
    run = Falling(tmp_path, monkeypatch, "ttt")
    run.run.config.stages["rl"] = run.trainer.config.model_copy(update={"eval_every": 1, "checkpoint_every": 1})
    gathered: list[int] = []
    gather = PlainBackend.weights
    monkeypatch.setattr(PlainBackend, "weights", lambda self: [gathered.append(1), gather(self)][1])
    run.trainer.train(Stopping(ALONE))
    assert len(run.run.artifacts(run.trainer.folder / "checkpoints")) == 2  # the last step is a model, no checkpoint
    assert len(gathered) == len(run.published) == 5


@pytest.mark.parametrize("asked", [True, False])
def test_rewards_are_shuffled_for_the_control_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    run = Idling(tmp_path, monkeypatch, "t")
    run.run.config.stages["rl"] = run.trainer.config.model_copy(update={"shuffle_rewards": asked})
    monkeypatch.setattr(rl_stage, "shuffled", lambda groups, rng: [replace(unit, reward=9.0) for group in groups for unit in group.units])
    sampled, numbers = run.trainer._sampled(0)
    assert sampled is not None
    assert [unit.reward for unit in sampled.units] == [9.0 if asked else 1.0]
    assert numbers["reward"] == (9.0 if asked else 1.0)


def test_a_later_stage_shuffles_as_the_schedules_next_step_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(
        rl_stage, "shuffled", lambda groups, rng: (asked.append(rng.random()), [unit for group in groups for unit in group.units])[1]
    )
    for before in (0, 4):
        monkeypatch.setattr(RunConfig, "steps_before", lambda self, stage, n=before: n)
        run = Idling(tmp_path / str(before), monkeypatch, "tttttt")
        run.run.config.stages["rl"] = run.trainer.config.model_copy(update={"shuffle_rewards": True})
        for step in range(5 - before):
            run.trainer._sampled(step)
    assert len(set(asked[:5])) == 5
    assert asked[5] == asked[4]


def test_idle_steps_in_a_row_end_a_stage_that_is_solved_with_its_best_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Idling(tmp_path, monkeypatch, "stsssttt")
    monkeypatch.setattr(Trainer, "open", lambda *arguments: run.trainer)
    before = run.weights()
    rl_stage.rl(run.run, run.stage, ALONE)
    assert [row["step"] for row in run.rows] == list(range(6))  # not the last three
    assert len(run.gates) == 1
    assert "dev/em" in run.rows[-1]  # the last weights were scored too
    # No dev score was better than the first one, so the model is that of step 0, not the last.
    assert run.trainer.progress.best == {"step": 0, "score": 1.0}
    model = read_model(run.run.model("rl"), torch.float32, CPU)
    assert torch.equal(model.get_input_embeddings().weight, before)
    assert not torch.equal(run.weights(), before)
    assert json.loads((run.run.model("rl") / "manifest.json").read_text())["kind"] == "model"


def test_idle_steps_in_a_row_for_another_reason_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Idling(tmp_path, monkeypatch, "nntnsnttt")
    monkeypatch.setattr(Trainer, "open", lambda *arguments: run.trainer)
    with pytest.raises(NothingLearnedError, match="step 5 teaches nothing"):
        rl_stage.rl(run.run, run.stage, ALONE)
    assert [row["step"] for row in run.rows] == list(range(6))
    assert not run.run.model("rl").exists()


@pytest.mark.parametrize(("idle_steps", "steps"), [(1, 1), (2, 2), (5, 5)])
def test_how_many_idle_steps_end_a_stage_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_steps: int, steps: int
) -> None:
    run = Idling(tmp_path, monkeypatch, "s" * 9, idle_steps)
    run.trainer.train(Stopping(ALONE))
    assert run.rows[-1]["step"] == steps
    run = Idling(tmp_path / "failing", monkeypatch, "n" * 9, idle_steps)
    with pytest.raises(NothingLearnedError, match=f"step {steps - 1} "):
        run.trainer.train(Stopping(ALONE))


@pytest.mark.parametrize(("kinds", "fails"), [("nn", True), ("n", True), ("ss", False), ("tn", False), ("nt", False)])
def test_a_stage_shorter_than_that_ends_so_if_none_of_its_steps_taught_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: str, fails: bool
) -> None:
    run = Idling(tmp_path, monkeypatch, kinds)
    if fails:
        with pytest.raises(NothingLearnedError, match=f"step {len(kinds) - 1} "):
            run.trainer.train(Stopping(ALONE))
    else:
        run.trainer.train(Stopping(ALONE))
        assert run.trainer.ended == "steps"


@pytest.mark.parametrize("kinds", ["nnnnn", "sssss", "n"])
def test_without_a_bound_no_idle_step_ends_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: str) -> None:
    """A study of stability counts what a policy does that never earns anything, as one without SFT may."""
    run = Idling(tmp_path, monkeypatch, kinds, None)
    run.trainer.train(Stopping(ALONE))
    assert (run.trainer.ended, run.rows[-1]["step"]) == ("steps", len(kinds))


def test_idle_steps_before_a_checkpoint_count_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Idling(tmp_path, monkeypatch, "nsnttt")
    run.trainer.progress = TrainerState(idle=2)
    with pytest.raises(NothingLearnedError, match="step 0 "):
        run.trainer.train(Stopping(ALONE))


@pytest.mark.parametrize(
    ("dtype", "given", "gate"), [("float32", None, 1e-4), ("bfloat16", None, 5e-2), ("float32", 0.3, 0.3), ("bfloat16", 0.3, 0.3)]
)
def test_the_gate_is_what_the_dtype_explains_unless_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, given: float | None, gate: float
) -> None:
    run = Idling(tmp_path, monkeypatch, "t", dtype=dtype)
    changed = run.trainer.config.model_copy(update={"ratio_gate": given})
    run.run.config.stages["rl"] = changed
    run.trainer.train(Stopping(ALONE))
    assert run.gates == [gate]


def test_dev_scores_tell_what_they_are_not_taken_over(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    run.trainer.dev = [THE_THE] * 20
    done = [ended("error"), *[ended("ok", "The The")] * 9, *[ended("ok", "no")] * 9]  # and one is missing
    run.trainer.sampler.rollouts = SimpleNamespace(collect=lambda episodes, sampling, phase: done)  # type: ignore[union-attr]
    numbers = run.trainer._evaluated(10)
    assert (numbers["dev/em"], numbers["dev/missing"], numbers["dev/errors"]) == (0.5, 1.0, 1.0)
    del done[-1]
    with pytest.raises(RolecastError, match=r"step 20, dev: of 20 episodes 2 are missing and 1 failed.*OSError: the index is on fire"):
        run.trainer._evaluated(20)


def test_the_best_model_is_the_one_whose_stages_own_task_it_does_best(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    run.trainer.stage = replace(run.trainer.stage, task="reward:plan")
    scores = iter([0.2, 0.9, 0.4])

    def collect(episodes: Any, sampling: Sampling, phase: str) -> list[Trajectory]:
        t = finished(THE_THE, "no answer is right")
        t.rewards = [Reward("plan", t.id, next(scores))]
        return [t]

    run.trainer.sampler.rollouts = SimpleNamespace(collect=collect)  # type: ignore[union-attr]
    told = [run.trainer.evaluate(step, run.trainer.learner.weights()) for step in (0, 10, 20)]
    assert [numbers["dev/plan"] for numbers in told] == [0.2, 0.9, 0.4]
    assert "dev/em" not in told[0]
    assert run.trainer.progress.best == {"step": 10, "score": 0.9}


def test_dev_episodes_without_the_score_that_models_are_selected_on_are_an_error(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    run.trainer.stage = replace(run.trainer.stage, task="reward:plan")
    with pytest.raises(RolecastError, match="no dev episode has the score 'plan'"):
        run.trainer.evaluate(0, run.trainer.learner.weights())


def test_dev_questions_are_played_greedily_and_as_evaluation(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    asked: list[tuple[list[str], Sampling, str]] = []

    def collect(episodes: Sequence[Episode], sampling: Sampling, phase: str) -> list[Trajectory]:
        asked.append(([f"{episode.group}/{episode.question.id}/{episode.member}" for episode in episodes], sampling, phase))
        return [finished(THE_THE, "The The")]

    run.trainer.sampler.rollouts = SimpleNamespace(collect=collect)  # type: ignore[union-attr]
    run.trainer._evaluated(10)
    assert asked == [(["dev:q/q/0"], Sampling(0.0), "eval")]


def test_only_best_models_that_may_be_needed_again_are_kept(tmp_path: Path) -> None:
    run = Collapsing(tmp_path)
    for em in (0.2, 0.4, 0.6, 0.5):
        run.train(em)
    assert run.trainer.best.name == "step-000030"
    checkpoint = run.trainer.folder / "checkpoints" / "step-000021"  # its best was that of step 20
    checkpoint.mkdir(parents=True)
    (checkpoint / "progress.json").write_text(json.dumps({"best": {"step": 20, "score": 0.4}}))
    run.trainer._prune_best()
    assert sorted(path.name for path in (run.trainer.folder / "best").iterdir()) == ["step-000020", "step-000030"]
