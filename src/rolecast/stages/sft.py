"""SFT: supervised turns of a scripted teacher, on throw-away worlds."""

from __future__ import annotations

import functools
from pathlib import Path

from rolecast.config import RunConfig
from rolecast.errors import Interrupted
from rolecast.learner import checkpoint
from rolecast.learner.adapters import is_adapter, merge_adapter
from rolecast.learner.batch import sft_batch
from rolecast.learner.learner import make_learner
from rolecast.learner.model import Policy
from rolecast.learner.ranks import ALONE, Ranks
from rolecast.methods.base import Method
from rolecast.methods.registry import make_method
from rolecast.rollout.render import Renderer
from rolecast.seeding import stream
from rolecast.stages import checkpoints
from rolecast.stages.metrics import MetricsLog
from rolecast.stages.progress import Progress
from rolecast.stages.run import Run, working
from rolecast.stages.stopping import stopping
from rolecast.stages.team import CPU, prepare_torch, start_model, trained_model
from rolecast.store.artifact import writing
from rolecast.teachers.drills import draw_drill
from rolecast.teachers.examples import deal, draw_turns, teacher_of
from rolecast.types import Example, Objective

BLOCK = 32  # batches drawn at a time
LOG_EVERY = 10


def sft(run: Run, ranks: Ranks = ALONE) -> Path:
    """Trains, or goes on from the newest checkpoint; returns the model's folder. Does nothing if it is there."""
    if not checkpoints.ready(run, run.model("sft"), ranks):
        with working(run, "sft", ranks.first):
            _train(run, ranks)
    return run.model("sft")


def _train(run: Run, ranks: Ranks) -> None:
    c = run.config
    prepare_torch(c)
    folder = run.stage("sft")
    resumed = checkpoints.newest(run, "sft", ranks)
    model, tokenizer = trained_model(c, functools.partial(start_model, c), resumed.model if resumed else None)
    objective = Objective("sft", "shared", "nll", "none", "token", c.sft.lr, minibatches=1)
    learner = make_learner(objective, Policy(model), c.sft.optimizer, c.sft.steps, c.seed, ranks=ranks, backend=c.learner)
    if resumed:
        resumed.restore(learner)
    start = resumed.step if resumed else 0
    method = make_method(c.method)
    renderer = Renderer(tokenizer, method.tags)
    metrics = MetricsLog(folder, start - 1 if resumed else -1, ranks.first)
    progress = Progress("sft", c.sft.steps, start, shown=ranks.first)
    block: list[list[Example]] = []
    with stopping(ranks) as stop:
        for step in range(start, c.sft.steps):
            if step % BLOCK == 0 or not block:
                block = draw_block(c, method, renderer, step // BLOCK)
            numbers = learner.update(sft_batch("shared", block[step % BLOCK]))
            if step % LOG_EVERY == 0:
                metrics.write(step, numbers)
            progress.update(step + 1, {"nll": numbers["nll"]})
            done, told = step + 1, stop.asked()
            if done < c.sft.steps and (told or done % c.sft.checkpoint_every == 0):
                checkpoints.save(run, "sft", done, learner, tokenizer, {}, c.sft.keep)
                if told:
                    raise Interrupted(f"sft was told to end; it is saved at step {done}, the same command goes on from there")
    metrics.close()
    weights = learner.model_weights()
    if ranks.first:
        with writing(run.model("sft"), "model", {"config": c.fingerprint, "steps": c.sft.steps}) as partial:
            checkpoint.save_model(model, tokenizer, partial, weights)
            if is_adapter(partial):
                merge_adapter(partial, start_model(c, CPU)[0], tokenizer)
        run.record(folder / "metrics.jsonl")
        run.publish(run.model("sft"))
    ranks.barrier()


def draw_block(c: RunConfig, method: Method, renderer: Renderer, number: int) -> list[list[Example]]:
    """`BLOCK` batches: drills first, then the teacher's turns. A function of config and number alone, so every rank draws the same."""
    count = BLOCK * c.sft.batch
    if number * BLOCK < c.sft.drills:
        rng = stream(c.seed, "drills", number)
        rows = [draw_drill(renderer, rng) for _ in range(count)]
    else:
        rows = draw_turns(method, teacher_of(method, c.sft.errors), renderer, c.seed, number, count, c.sft.mix, c.model.max_context)
    return deal(rows, c.sft.batch, stream(c.seed, "deal", number))
