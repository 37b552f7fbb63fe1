"""What SFT trains on: the rate of its settings, blocks in their order also after a resume, each slot on its roles' turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.learner.learner import make_learner
from rolecast.learner.ranks import ALONE
from rolecast.methods.decor import Decor
from rolecast.methods.registry import make_method
from rolecast.rollout.render import Renderer
from rolecast.stages import sft as sft_stage
from rolecast.stages.metrics import read_metrics
from rolecast.stages.run import Run
from rolecast.stages.sft import _update, draw_block, sft
from rolecast.teachers.base import TeacherErrors
from rolecast.types import Example, ImitationTerm, Objective, Role, Stage
from tests.tiny import tiny_team

SCRATCH = {"hidden": 16, "layers": 1, "heads": 2, "head_dim": 8, "feed_forward": 16}


def config_of(**settings: Any) -> RunConfig:
    return make_config({"model": {"scratch": SCRATCH}, "stages": {"sft": {"steps": 3, "batch": 2, **settings}}}, "here")


def test_the_rate_optimizers_and_limits_are_those_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def spied(objectives: Any, *rest: Any, **named: Any) -> Any:
        made.append((objectives, rest, named))
        return make_learner(objectives, *rest, **named)

    monkeypatch.setattr(sft_stage, "make_learner", spied)
    config = config_of(
        lr=0.125, max_tokens=4096, packing="prefixes", optimizer={"name": "sgd"}, optimizers={"shared": {"name": "sgd", "momentum": 0.5}}
    )
    run = Run(tmp_path, config)
    sft(run, config.schedule[0], ALONE)
    [(objectives, rest, named)] = made
    assert [objective.lr for objective in objectives] == [0.125]
    assert (rest[1].name, rest[2]) == ("sgd", 3)
    assert (named["max_tokens"], named["packing"], named["optimizers"]["shared"].momentum) == (4096, "prefixes", 0.5)
    [row] = read_metrics(run.stage("sft"))
    assert (row["step"], row["lr"]) == (0, 0.125)
    assert run.has(run.model("sft"))
    assert not (run.stage("sft") / "trained").exists()


class Blocks:
    """SFT whose blocks are two batches, named by block and place, and whose updates are noted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, resumed: int | None = None) -> None:
        config = config_of(steps=5, checkpoint_every=2)
        self.trained: list[Any] = []
        self.saved: list[int] = []
        self.restored: list[Any] = []
        self.started: list[Path | None] = []
        self.shown: list[int] = []
        learner = SimpleNamespace(ranks=ALONE)
        kept = SimpleNamespace(path=folder / "kept", step=resumed, restore=self.restored.append)

        def team(run: Run, method: Any, stage: Stage, saved: Path | None) -> Any:
            self.started.append(saved)
            return tiny_team()

        def update(learner: Any, method: Any, rows: Any) -> dict[str, float]:
            self.trained.append(rows)
            return {}

        monkeypatch.setattr(sft_stage, "BLOCK", 2)
        monkeypatch.setattr(sft_stage, "LOG_EVERY", 1)
        bar = SimpleNamespace(update=lambda done, numbers: self.shown.append(done))
        monkeypatch.setattr(sft_stage, "Progress", lambda *given, **named: bar)
        monkeypatch.setattr(sft_stage, "training_team", team)
        monkeypatch.setattr(sft_stage, "make_learner", lambda *given, **named: learner)
        monkeypatch.setattr(sft_stage.checkpoints, "newest", lambda *given: None if resumed is None else kept)
        monkeypatch.setattr(sft_stage.checkpoints, "save", lambda run, stage, done, *given: self.saved.append(done))
        monkeypatch.setattr(sft_stage, "draw_block", lambda config, stage, method, renderer, number, kept: [(number, 0), (number, 1)])
        monkeypatch.setattr(sft_stage, "_update", update)
        monkeypatch.setattr(sft_stage, "_finish", lambda *given: None)
        sft(Run(folder, config), config.schedule[0], ALONE)
        self.learner, self.kept = learner, kept


def test_batches_come_in_the_order_of_their_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Blocks(tmp_path, monkeypatch)
    assert stage.trained == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert (stage.saved, stage.shown) == ([2, 4], [1, 2, 3, 4, 5])
    assert (stage.restored, stage.started) == ([], [None])


def test_after_a_resume_training_goes_on_in_the_middle_of_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Blocks(tmp_path, monkeypatch, resumed=3)
    assert stage.trained == [(1, 1), (2, 0)]
    assert stage.saved == [4]
    assert (stage.restored, stage.started) == ([stage.learner], [stage.kept.path])


def test_rows_of_updates_that_are_made_again_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for resumed in (None, 3, None):
        Blocks(tmp_path, monkeypatch, resumed)
        assert [row["step"] for row in read_metrics(tmp_path / "sft")] == [0, 1, 2, 3, 4]


def test_each_slot_learns_its_roles_turns_and_every_slot_the_drills() -> None:
    roles = {name: Role(name, frozenset(), (), 8, slot) for name, slot in (("planner", "a"), ("answerer", "b"), ("filter", "a"))}
    objectives = [Objective(slot, slot, 1e-3, imitation=ImitationTerm()) for slot in ("a", "b", "c")]
    rows = [Example((1, 2), (False, True), tag=tag) for tag in ("planner", "answerer", "filter", "drill")]
    cuts: dict[str, list[str]] = {}

    def cut(objective: Objective, threads: Any, useful: Any, units: Any, lengths: Any, shown: list[Example]) -> str:
        cuts[objective.name] = [row.tag for row in shown]
        return objective.name

    learner: Any = SimpleNamespace(objectives=objectives, cut=cut, update=lambda found: {"cuts": found})
    method: Any = SimpleNamespace(roles=roles)
    assert _update(learner, method, rows)["cuts"] == ["a", "b", "c"]
    assert cuts == {"a": ["planner", "filter", "drill"], "b": ["answerer", "drill"], "c": ["drill"]}
    assert _update(learner, method, rows[:1])["cuts"] == ["a"]  # b and c have nothing to learn from


def test_blocks_are_drills_first_and_then_turns_and_each_is_another(renderer: Renderer) -> None:
    config = config_of(drills=33, batch=2)
    method, stage = make_method(config.method), config.schedule[0]
    drawn = [draw_block(config, stage, method, renderer, number) for number in (0, 1, 2, 3)]
    tags = [{row.tag for batch in block for row in batch} for block in drawn]
    assert tags[:2] == [{"drill"}] * 2  # step 32 is one
    assert all(tag <= set(method.roles) for tag in tags[2:])
    assert [(len(block), {len(batch) for batch in block}) for block in drawn] == [(sft_stage.BLOCK, {2})] * 4
    assert drawn[0] != drawn[1]
    assert drawn[2] != drawn[3]
    assert drawn == [draw_block(config, stage, method, renderer, number) for number in (0, 1, 2, 3)]  # every rank's


@pytest.mark.parametrize("steps", [33, 64])  # two blocks, the second one begun or whole
def test_a_later_stage_goes_on_with_the_next_block(renderer: Renderer, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    first, rl = RunConfig().schedule
    second = replace(first, name="second", start="sft")
    alone = config_of(steps=steps, drills=33)
    monkeypatch.setattr(Decor, "schedule", lambda self: (first, rl, second))
    again = {"steps": 9, "batch": 2, "drills": 1}
    both = make_config(
        {"model": {"scratch": SCRATCH}, "stages": {"sft": {"steps": steps, "batch": 2, "drills": 33}, "second": again}}, "here"
    )
    method = make_method(both.method)
    assert draw_block(both, first, method, renderer, 1) == draw_block(alone, first, method, renderer, 1)
    longer = config_of(steps=200, drills=200)
    assert draw_block(both, second, method, renderer, 0) == draw_block(longer, first, method, renderer, 2)  # its own first block is drills
    shown = config_of(steps=200)
    assert draw_block(both, second, method, renderer, 1) == draw_block(shown, first, method, renderer, 3)


def test_teachers_play_on_worlds_like_the_runs_own(renderer: Renderer) -> None:
    for drills in (0, 32):
        told = {}
        for kind in ("counterfactual", "facts", "crowded"):
            config = make_config({"data": {"world": {"kind": kind}}, "stages": {"sft": {"batch": 2, "drills": drills}}}, "here")
            block = draw_block(config, config.schedule[0], make_method(config.method), renderer, 0)
            told[kind] = "".join(renderer.decode(row.ids) for batch in block for row in batch)
        assert told["counterfactual"] == told["facts"]  # what is real cannot be thrown away
        assert [kind for kind, text in told.items() if " was " in text] == ["crowded"]


def test_the_teacher_errs_as_the_settings_say(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(TeacherErrors.model_fields))
    config = config_of(errors={name: 0.375, "faultless": 0.25})
    asked: list[Any] = []
    method: Any = SimpleNamespace(teacher=asked.append)

    def draw(*given: Any, **named: Any) -> list[Example]:
        asked.append(named)
        return [Example((1,), (True,))] * given[5]

    monkeypatch.setattr(sft_stage, "draw_turns", draw)
    draw_block(config, config.schedule[0], method, renderer, 0)
    assert asked == [TeacherErrors(**{name: 0.375, "faultless": 0.25}), {"faultless": 0.25}]
