"""SFT: supervised turns of a scripted teacher on throw-away worlds, turns that a rollout stage kept, or demonstrations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from rolecast.config import RunConfig
from rolecast.errors import InputError, Interrupted
from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.ranks import Ranks
from rolecast.methods.base import Method
from rolecast.rollout.render import Renderer
from rolecast.seeding import stream
from rolecast.stage_settings import SftConfig
from rolecast.stages import checkpoints
from rolecast.stages.metrics import MetricsLog
from rolecast.stages.progress import Progress
from rolecast.stages.refusals import keeping
from rolecast.stages.run import Run
from rolecast.stages.segments import begin_segment
from rolecast.stages.stopping import stopping
from rolecast.stages.team import load_questions, training_team, write_model
from rolecast.stages.trackers import open_trackers
from rolecast.store.artifact import write_text, writing
from rolecast.teachers.demonstrations import digest_of_file, read_demonstrations
from rolecast.teachers.drills import draw_drill
from rolecast.teachers.examples import deal, draw_turns
from rolecast.teachers.kept import draw_kept, read_turns
from rolecast.types import TRAIN, Example, Stage

BLOCK = 32  # batches drawn at a time
LOG_EVERY = 10


def sft(run: Run, stage: Stage, ranks: Ranks) -> None:
    c = run.config.sft(stage.name)
    folder = run.stage(stage.name)
    method = run.config.method_in(stage)
    resumed = checkpoints.newest(run, stage.name, ranks)
    team = training_team(run, method, stage, resumed.path if resumed else None)
    objectives = [replace(objective, lr=c.lr) for objective in stage.objectives]
    learner = make_learner(
        objectives, team, c.optimizer, c.steps, run.config.seed, ranks=ranks, backend=run.config.learner, max_tokens=c.max_tokens, packing=c.packing,
        optimizers=c.optimizers,
    )  # fmt: skip
    if resumed:
        resumed.restore(learner)
    learner.keep = keeping(run, stage.name)
    start = resumed.step if resumed else 0
    if ranks.first:
        begin_segment(run, stage.name, start)
    renderer = Renderer(team.tokenizer, method.tags)
    trackers = open_trackers(run.config.name, stage.name, run.place) if ranks.first else ()
    metrics = MetricsLog(folder, start - 1 if resumed else -1, ranks.first, trackers)
    progress = Progress(stage.name, c.steps, start, shown=ranks.first)
    kept = _kept(run, stage, method, renderer, ranks)
    block: list[list[Example]] = []
    with stopping(ranks) as stop:
        for step in range(start, c.steps):
            if step % BLOCK == 0 or not block:
                block = draw_block(run.config, stage, method, renderer, step // BLOCK, kept)
            numbers = _update(learner, method, block[step % BLOCK])
            if step % LOG_EVERY == 0:
                metrics.write(step, numbers)
            progress.update(step + 1, {name: value for name, value in numbers.items() if name.split("/")[-1] == "nll"})
            done, told = step + 1, stop.asked()
            if done < c.steps and (told or done % c.checkpoint_every == 0):
                checkpoints.save(run, stage.name, done, learner, {}, c.keep)
                if told:
                    raise Interrupted(f"told to end: {stage.name} is saved at step {done} of {c.steps}", told)
        metrics.close()
        _finish(run, stage, learner, folder)
        stop.leave(f"told to end: {stage.name} is done")


def _kept(run: Run, stage: Stage, method: Method, renderer: Renderer, ranks: Ranks) -> Sequence[Example]:
    """Turns that are learned instead of a teacher's: of a rollout stage, or demonstrations, which stay the ones that the stage began with."""
    c = run.config.sft(stage.name)
    if c.demonstrations is None:
        return read_turns(load_questions(run, "train", stage.data), stage.data) if stage.data != TRAIN else ()
    found, file = digest_of_file(c.demonstrations), run.recall(run.stage(stage.name) / "demonstrations.json")
    if file.exists() and json.loads(file.read_text())["sha256"] != found:
        raise InputError(f"{run.place}: {c.demonstrations} holds other demonstrations than when stage {stage.name} began; put them back")
    if ranks.first and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps({"file": c.demonstrations, "sha256": found}))
        run.record(file)
    rows = read_demonstrations(c.demonstrations, renderer, method.roles, run.config.model.max_context)
    slots = {role.name: role.slot for role in method.roles.values()}
    own = [row for row in rows if slots[row.tag] in stage.trained]
    if not own:
        raise InputError(
            f"{c.demonstrations}: no turn of a role that stage {stage.name} trains; name others, or leave the stage out by null"
        )
    return own


def _update(learner: Learner, method: Method, rows: list[Example]) -> dict[str, float]:
    """Every slot learns from the turns of the roles that speak with it; a drill, which no role said, is every slot's."""
    cuts = []
    for objective in learner.objectives:
        own = [row for row in rows if row.tag not in method.roles or method.roles[row.tag].slot == objective.slot]
        if own:
            cuts.append(learner.cut(objective, [], [], [], {}, own))
    return learner.update(cuts)


def _finish(run: Run, stage: Stage, learner: Learner, folder: Path) -> None:
    weights = learner.weights()
    if learner.ranks.first:
        trained = folder / "trained"
        learner.team.save(learner.slots, trained, weights)
        made = {**run.made, "stage": stage.name, "threads": torch.get_num_threads()}
        with writing(run.model(stage.name), "model", made) as partial:
            write_model(run, stage, trained, partial)
        shutil.rmtree(trained)
        run.record(folder / "metrics.jsonl")
        run.publish(run.model(stage.name))
    learner.ranks.barrier()


def draw_block(
    config: RunConfig, stage: Stage, method: Method, renderer: Renderer, number: int, kept: Sequence[Example] = ()
) -> list[list[Example]]:
    """`BLOCK` batches: drills first, then the teacher's turns, or those that were `kept`. A function of these arguments alone, so every
    rank draws the same."""
    c: SftConfig = config.sft(stage.name)
    world, count, drills = config.data.thrown_away, BLOCK * c.batch, number * BLOCK < c.drills
    number += config.steps_before(stage, BLOCK) // BLOCK  # of the whole schedule: a later stage draws what none drew before
    if drills:
        rng = stream(config.seed, "drills", number)
        rows = [draw_drill(renderer, rng, world) for _ in range(count)]
    elif kept:
        rows = draw_kept(kept, config.seed, stage.name, number, count)
    else:
        teacher = method.teacher(c.errors)
        rows = draw_turns(
            method, teacher, renderer, config.seed, number, count, c.mix, config.model.max_context, world, stage.trained,
            faultless=c.errors.faultless,
        )  # fmt: skip
    return deal(rows, c.batch, stream(config.seed, "deal", number))
