"""SFT: supervised turns of a scripted teacher, on throw-away worlds."""

from __future__ import annotations

from pathlib import Path

from rolecast.learner import checkpoint
from rolecast.learner.batch import sft_batch
from rolecast.learner.learner import make_learner
from rolecast.learner.model import Policy
from rolecast.methods.registry import make_method
from rolecast.rollout.render import Renderer
from rolecast.seeding import stream
from rolecast.stages.metrics import MetricsLog
from rolecast.stages.progress import Progress
from rolecast.stages.run import Run, working
from rolecast.stages.team import load_model, prepare_torch, start_model
from rolecast.store.artifact import committed, writing
from rolecast.teachers.drills import draw_drill
from rolecast.teachers.examples import deal, draw_turns, teacher_of
from rolecast.types import Example, Objective

BLOCK = 32  # batches drawn at a time
LOG_EVERY = 10


def sft(run: Run) -> Path:
    """Trains, or goes on from the newest checkpoint; returns the model's folder. Does nothing if it is there."""
    if committed(run.model("sft")):
        return run.model("sft")
    with working(run, "sft"):
        _train(run)
    return run.model("sft")


def _train(run: Run) -> None:
    c = run.config
    prepare_torch(c)
    folder = run.stage("sft")
    resumed = checkpoint.newest(folder / "checkpoints")
    model, tokenizer = load_model(resumed.model, c.model) if resumed else start_model(c)
    objective = Objective("sft", "shared", "nll", "none", "token", c.sft.lr, minibatches=1)
    learner = make_learner(objective, Policy(model), c.sft.optimizer, c.sft.steps, c.seed)
    if resumed:
        resumed.restore(learner)
    start = resumed.step if resumed else 0
    method, renderer = make_method(c.method), Renderer(tokenizer)
    teacher = teacher_of(method, c.sft.errors)
    metrics = MetricsLog(folder, start - 1 if resumed else -1)
    progress = Progress("sft", c.sft.steps, start)
    block: list[list[Example]] = []
    for step in range(start, c.sft.steps):
        if step % BLOCK == 0 or not block:
            number = step // BLOCK
            if step < c.sft.drills:
                rng = stream(c.seed, "drills", number)
                rows = [draw_drill(renderer, rng) for _ in range(BLOCK * c.sft.batch)]
            else:
                rows = draw_turns(method, teacher, renderer, c.seed, number, BLOCK * c.sft.batch, c.sft.mix, c.model.max_context)
            block = deal(rows, c.sft.batch, stream(c.seed, "deal", number))
        numbers = learner.update(sft_batch("shared", block[step % BLOCK]))
        if step % LOG_EVERY == 0:
            metrics.write(step, numbers)
        progress.update(step + 1, {"nll": numbers["nll"]})
        if (step + 1) % c.sft.checkpoint_every == 0 and step + 1 < c.sft.steps:
            checkpoint.save(folder / "checkpoints", step + 1, learner, tokenizer, {}, c.sft.keep)
    metrics.close()
    with writing(run.model("sft"), "model", {"config": c.fingerprint, "steps": c.sft.steps}) as partial:
        checkpoint.save_model(model, tokenizer, partial)
