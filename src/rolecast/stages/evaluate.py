"""Evaluation of one stage's model on the held-out test questions: greedy, every row, once."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rolecast.evaluation import tasks
from rolecast.evaluation.metrics import shortfall, summarize
from rolecast.evaluation.trace import trace
from rolecast.ports import Sampling
from rolecast.rollout.collect import Collector, Episode
from rolecast.rollout.engines.factory import make_engine
from rolecast.rollout.render import Renderer
from rolecast.schedule import find_trained
from rolecast.stages.environment import environment_of
from rolecast.stages.fixed import Found
from rolecast.stages.progress import Progress
from rolecast.stages.run import Run, working
from rolecast.stages.services import open_judge, open_retriever
from rolecast.stages.team import finished_team, load_questions, prepare_torch, require_model
from rolecast.store.artifact import verify, writing
from rolecast.types import Version


def evaluate(run: Run, stage: str, found: Found | None = None) -> Path:
    """Writes `run.evaluation(stage)`: result.json, predictions.jsonl and some traces. Does nothing if it is there.

    The team plays the whole method from a question's text, as it is served, also where its stage had prepared questions. With `found`
    it answers from those documents instead of searching; that evaluation stands beside the other.
    """
    find_trained(run.config.schedule, stage)
    folder = run.evaluation(stage)
    if found is not None:
        found.check(run)
        folder = folder.with_name(f"{stage}-on-{found.digest}")
    if not run.has(folder):
        require_model(run, stage)
        with working(run, f"eval_{folder.name}"):
            _evaluate(run, stage, folder, found)
            run.publish(folder)
    verify(folder, "evaluation")
    return folder


def _evaluate(run: Run, stage: str, folder: Path, found: Found | None) -> None:
    c, about = run.config, environment_of(run)
    prepare_torch(c)
    of = find_trained(c.schedule, stage)
    method = c.method_in(of).whole()
    team, speakers = finished_team(run, method, of)
    renderer = Renderer(team.tokenizer, method.tags)
    engine = make_engine(c.engine, speakers, renderer, c.model.max_context, str(Version(c.name, 0, 0, stage)), c.lockstep)
    collector = Collector(method, engine, open_retriever(run), open_judge(run), renderer, c.seed, c.model.max_context, c.engine.in_flight)
    questions = load_questions(run, "test")[: c.eval.n]
    if found is not None:
        questions = found.given_to(questions)
    bar = Progress(f"eval {stage}", len(questions))
    done = collector.collect([Episode(q, f"test:{q.id}", 0) for q in questions], Sampling(0.0), "eval", bar.update)
    shortfall(len(questions), done, f"evaluation of {stage}")  # those that failed score 0
    task = tasks.together(method.measured or (of.task,))
    result = {**summarize(done, c.seed, c.eval.bootstrap, task), "method": dict(method.diagnostics(done))}
    predictions = [
        {
            "id": t.question.id,
            "answer": t.answer,
            "golds": list(t.question.gold.answers),
            "status": t.status,
            "searches": t.searches,
            "retrieved": list(t.retrieved),
        }
        for t in done
    ]
    made = {"config": run.fingerprint, "stage": stage, "environment": asdict(about)}
    documents = {"documents": {"run": found.run.place, "stage": found.stage}} if found is not None else {}
    with writing(folder, "evaluation", {**made, **documents}) as partial:
        (partial / "result.json").write_text(json.dumps(result, indent=1))
        (partial / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in predictions))
        (partial / "traces.json").write_text(json.dumps([trace(t, task) for t in done[: c.eval.traces]]))
