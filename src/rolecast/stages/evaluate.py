"""Evaluation of one stage's model on the held-out test questions: greedy, every row, once, unless a profile says otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rolecast.config import RunConfig
from rolecast.evaluation import latency, tasks
from rolecast.evaluation.attribution import Texts, first_fault
from rolecast.evaluation.cost import cost_of
from rolecast.evaluation.metrics import shortfall, summarize
from rolecast.evaluation.profiles import OURS, Profile
from rolecast.evaluation.reports import KINDS, SCORES, judged, report_rewards, rightness, with_reports
from rolecast.evaluation.tasks import QA, Task
from rolecast.evaluation.trace import trace
from rolecast.ports import Retriever
from rolecast.retriever.live.search import LiveRetriever
from rolecast.rollout.collect import Collector, Episode
from rolecast.rollout.remote import limits_of
from rolecast.rollout.render import Renderer
from rolecast.schedule import find_trained
from rolecast.stages import supporting
from rolecast.stages.belonging import require_own
from rolecast.stages.budget import BudgetedJudge, ever_trained, judge_left, judge_spent, note_judged
from rolecast.stages.environment import environment_of
from rolecast.stages.fixed import Found
from rolecast.stages.playing import finished_engine
from rolecast.stages.progress import Progress
from rolecast.stages.run import Run
from rolecast.stages.services import open_judge, open_retriever
from rolecast.stages.team import load_questions, prepare_torch, require_model
from rolecast.stages.working import working
from rolecast.store.artifact import verify, writing
from rolecast.types import Trajectory, Version

Around = Callable[[Retriever, Renderer], Retriever]  # what a study puts around a run's retriever


def evaluate(run: Run, stage: str, profile: Profile = OURS, found: Found | None = None) -> Path:
    """Writes `run.evaluation(stage, profile.name)`: result.json, predictions.jsonl, latency.json and some traces. Does nothing if it is there.

    The team plays the whole method from a question's text, as it is served, also where its stage had prepared questions. With `found`
    it answers from those documents instead of searching; that evaluation stands beside the other.
    """
    about = {"profile": profile.name, "switches": profile.switches} if profile.name else {}
    folder = run.evaluation(stage, profile.name)
    if found is not None:
        found.check(run)
        folder = folder.with_name(f"{folder.name}-on-{found.digest}")
    return _committed(run, run, stage, profile, folder, about, lambda retriever, renderer: retriever, found)


def evaluate_as(run: Run, stage: str, name: str, config: RunConfig, switches: Mapping[str, Any], around: Around) -> Path:
    """As `evaluate`, with another config of the same method and what is put `around` the retriever: kept under `name`, which says so with
    its `switches`, beside the plain evaluation."""
    about = {"profile": name, "switches": dict(switches)}
    return _committed(run, replace(run, config=config), stage, OURS, run.evaluation(stage, name), about, around)


def _committed(
    run: Run, as_run: Run, stage: str, profile: Profile, folder: Path, about: Mapping[str, Any], around: Around, found: Found | None = None
) -> Path:
    find_trained(run.config.schedule, stage)
    require_own(run)
    if not run.has(folder):
        require_model(run, stage)
        with working(run, f"eval_{folder.name}"):
            _evaluate(as_run, stage, profile, folder, about, around, found)
            run.publish(folder)
    verify(folder, "evaluation")
    return folder


def _evaluate(run: Run, stage: str, profile: Profile, folder: Path, said: Mapping[str, Any], around: Around, found: Found | None) -> None:
    c, about = run.config, environment_of(run)
    prepare_torch(c)
    of = find_trained(c.schedule, stage)
    method = c.method_in(of).whole()
    version = str(Version(c.name, 0, 0, stage))
    engine, renderer = finished_engine(run, method, of, version, lockstep=c.lockstep, externals=c.externals_of(method))
    searched = open_retriever(run)
    questions = profile.asked(load_questions(run, "test")[: c.eval.n])
    left, budget = judge_left(run), c.judge.budget or 0
    judge = BudgetedJudge(
        open_judge(run, KINDS if any(map(judged, questions)) else ()), left,
        lambda: judge_spent(budget, f"{folder.name} is not evaluated; verdicts that its cache holds cost nothing again"),
    )  # fmt: skip
    collector = Collector(
        method, engine, around(searched, renderer), judge, renderer, c.seed, c.model.max_context, c.engine.in_flight,
        profile.loses_beginning,
        limits=limits_of(c, method), lockstep=c.lockstep, clocks={}, asks=report_rewards,
    )  # fmt: skip
    if found is not None:
        questions = found.given_to(questions)
    bar = Progress(f"eval {stage}", len(questions))
    try:
        done = collector.collect([Episode(q, f"test:{q.id}", 0) for q in questions], profile.sampling, "eval", bar.update)
        task = with_reports(profile.task(tasks.together(method.measured or (of.task,))), questions)
        silent = supporting.wanted(done, task)
        texts = collector.run(supporting.texts_of(silent, collector.retriever)) if silent else {}
    finally:
        note_judged(run, folder.name, judge.spent)
        collector.close()
        engine.close()
    shortfall(len(questions), done, f"evaluation of {stage}")  # those that failed score 0
    cost = cost_of(done, ever_trained(c, of))
    done = profile.counted(done)
    result = {
        **said,
        **summarize(done, c.seed, c.eval.bootstrap, task, texts), "cost": asdict(cost), "method": dict(method.diagnostics(done)),
    }  # fmt: skip
    predictions = [prediction(t, task, texts) for t in done]
    spent = latency.latency([clock.seconds for clock in (collector.clocks or {}).values()], c.engine.in_flight)
    made: dict[str, Any] = {**run.made, "stage": stage, "profile": said.get("profile", ""), "environment": asdict(about)}
    if isinstance(searched, LiveRetriever):
        made["live"] = searched.told()
    documents = {"documents": {"run": found.run.place, "stage": found.stage}} if found is not None else {}
    with writing(folder, "evaluation", {**made, **documents}) as partial:
        (partial / "result.json").write_text(json.dumps(result, indent=1))
        (partial / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in predictions))
        (partial / "traces.json").write_text(json.dumps([trace(t, task) for t in done[: c.eval.traces]]))
        (partial / latency.FILE).write_text(json.dumps(spent))


def prediction(t: Trajectory, task: Task, texts: Texts = MappingProxyType({})) -> dict[str, Any]:
    """A row of predictions.jsonl. Its scores are those of answers, where there are gold answers, and the task's own. `fault`: what went
    wrong first (`attribution.FAULTS`)."""
    short = bool(t.question.gold.answers) and task.headline not in SCORES
    answers = QA.scores(t) if short and task.name != QA.name else {}
    scores = task.scores(t)
    return {
        "id": t.question.id, "dataset": t.question.dataset, "original_id": t.question.original_id, "type": t.question.type,
        "hops": t.question.hops, "question": t.question.text, "answer": t.answer, "golds": list(t.question.gold.answers), "status": t.status,
        "searches": t.searches, "queries": list(t.queries), "retrieved": list(t.retrieved),
        "gold_passages": list(t.question.gold.passages), "fault": first_fault(t, rightness(task, scores), texts),
        "scores": {**answers, **scores},
    }  # fmt: skip
