"""Evaluation of one stage's model on the held-out test questions: greedy, every row, once, unless a profile says otherwise."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rolecast.config import RunConfig
from rolecast.evaluation import latency, tasks
from rolecast.evaluation.attribution import Texts, first_fault
from rolecast.evaluation.cost import cost_of
from rolecast.evaluation.metrics import row_of, shortfall, summarize_rows
from rolecast.evaluation.profiles import OURS, Profile
from rolecast.evaluation.reports import KINDS, SCORES, judged, report_rewards, rightness, with_reports
from rolecast.evaluation.tasks import QA, Scores, Task
from rolecast.evaluation.trace import trace
from rolecast.leasing import Group
from rolecast.ports import Retriever
from rolecast.retriever.live.search import LiveRetriever
from rolecast.rollout.collect import Collector, Tell
from rolecast.rollout.remote import limits_of
from rolecast.rollout.render import Renderer
from rolecast.schedule import find_trained
from rolecast.stages import supporting
from rolecast.stages.belonging import require_own
from rolecast.stages.budget import SpentJudge, ever_trained, judge_left, judge_spent, judged_in_evaluations, note_judged
from rolecast.stages.environment import environment_of
from rolecast.stages.fixed import Found
from rolecast.stages.keeping import Keeper, each, mended, whole_lines
from rolecast.stages.playing import finished_engine
from rolecast.stages.progress import Progress
from rolecast.stages.run import Run
from rolecast.stages.services import open_judge, open_retriever
from rolecast.stages.team import load_questions, prepare_torch, require_model
from rolecast.stages.working import working
from rolecast.store.artifact import digest_of, verify, writing
from rolecast.types import Question, Trajectory, Version
from rolecast.wire.coordinator import pack, unpack

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
            kept = _evaluate(as_run, stage, profile, folder, about, around, found)
            run.publish(folder)
            run.forget(kept)  # where publishing fails, another machine still has what an earlier stop recorded
    verify(folder, "evaluation")
    return folder


def _evaluate(run: Run, stage: str, profile: Profile, folder: Path, said: Mapping[str, Any], around: Around, found: Found | None) -> Path:
    """Writes the folder. Returns the file that keeps its episodes, which has done its work once the folder is published."""
    c, about = run.config, environment_of(run)
    prepare_torch(c)
    of = find_trained(c.schedule, stage)
    method = c.method_in(of).whole()
    version = str(Version(c.name, 0, 0, stage))
    engine, renderer = finished_engine(run, method, of, version, lockstep=c.lockstep, externals=c.externals_of(method))
    searched = open_retriever(run)
    questions = profile.asked(load_questions(run, "test")[: c.eval.n])
    file = kept_in(run, stage, folder, said)
    note_killed(run, folder.name, file)
    judge, left = open_judge(run, KINDS if any(map(judged, questions)) else ()), judge_left(run)
    collector = Collector(
        method, engine, around(searched, renderer), judge if left != 0 else SpentJudge(c.judge.budget or 0, folder.name), renderer, c.seed,
        c.model.max_context, c.engine.in_flight, profile.loses_beginning,
        limits=limits_of(c, method), lockstep=c.lockstep, clocks={}, asks=report_rewards,
    )  # fmt: skip
    if found is not None:
        questions = found.given_to(questions)
    task = with_reports(profile.task(tasks.together(method.measured or (of.task,))), questions)
    try:
        done, seconds = _played(run, folder.name, file, collector, questions, profile, left or None)
        shortfall(len(questions), done, f"evaluation of {stage}")  # those that failed score 0
        cost = cost_of(done, ever_trained(c, of))
        done = profile.counted(done)
        scored = [task.scores(t) for t in done]
        silent = supporting.wanted(done, scored, task)
        texts = collector.run(supporting.texts_of(silent, collector.retriever)) if silent else {}
    finally:
        collector.close()
        engine.close()
    rows = [row_of(t, task, scores, texts) for t, scores in zip(done, scored, strict=True)]
    result = {
        **said,
        **summarize_rows(rows, c.seed, c.eval.bootstrap, task), "cost": asdict(cost), "method": dict(method.diagnostics(done)),
    }  # fmt: skip
    predictions = [prediction(t, task, scores, texts) for t, scores in zip(done, scored, strict=True)]
    made: dict[str, Any] = {**run.made, "stage": stage, "profile": said.get("profile", ""), "environment": asdict(about)}
    if isinstance(searched, LiveRetriever):
        made["live"] = searched.told()
    documents = {"documents": {"run": found.run.place, "stage": found.stage}} if found is not None else {}
    with writing(folder, "evaluation", {**made, **documents}) as partial:
        (partial / "result.json").write_text(json.dumps(result, indent=1))
        (partial / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in predictions))
        (partial / "traces.json").write_text(json.dumps([trace(t, task) for t in done[: c.eval.traces]]))
        (partial / latency.FILE).write_text(json.dumps(latency.latency(seconds, c.engine.in_flight)))
    return file


def kept_in(run: Run, stage: str, folder: Path, said: Mapping[str, Any]) -> Path:
    """Where an evaluation that has not come to its end keeps its episodes: another file for whatever an episode depends on."""
    model = digest_of(run.manifest(run.model(stage)) or b"")
    about = environment_of(run)
    asked = json.dumps([run.made, dict(said), model, about.index, about.judged_by], sort_keys=True)
    return folder.with_name(f"{folder.name}.played-{digest_of(asked.encode())[:12]}.jsonl")


def note_killed(run: Run, name: str, file: Path) -> None:
    """Counts what the judge took for kept episodes of an evaluation that was killed before it could note it."""
    kept = sum(map(_judged, whole_lines(run.recall(file))))
    note_judged(run, name, max(0, kept - judged_in_evaluations(run).get(name, 0)))


def _judged(line: bytes) -> int:
    try:
        return int(json.loads(line)["judged"])
    except (ValueError, KeyError, TypeError):  # damaged: `mended` says so
        return 0


def _position(row: Mapping[str, Any]) -> int:
    """Of its question, once the whole row can be read."""
    unpack(b64decode(row["episode"]))
    dict(row["seconds"])
    return int(row["at"])


def _played(
    run: Run, name: str, file: Path, collector: Collector, questions: Sequence[Question], profile: Profile, left: int | None
) -> tuple[list[Trajectory], list[Mapping[str, float]]]:  # fmt: skip
    """An episode of each question in their order, with the seconds that it took. Those that were kept before are not played again, but for
    those in which something failed. In lockstep other batches then meet, whose last bits may differ from those of one that was not stopped.
    `left`: tokens of the judge.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    known = mended(file, _position)
    bar = Progress(f"eval {name}", len(questions), len(known))
    with file.open("ab") as lines:
        keeper = Keeper(lines, len(known), allowed=left)

        async def play(waits: tuple[int, Question], ended: Tell) -> None:
            at, question = waits
            [t] = await collector.play_group(Group(f"test:{question.id}", question, (0,), "eval", profile.sampling), ended)
            seconds = collector.clocks.pop(t.id).seconds if collector.clocks is not None else {}
            packed, fault = b64encode(pack([t])).decode(), t.fault if t.status == "error" else ""
            keeper.keep({"at": at, "fault": fault, "judged": t.judge_tokens, "seconds": dict(seconds), "episode": packed}, t.judge_tokens)
            bar.update(keeper.done)

        waiting = ((at, question) for at, question in enumerate(questions) if at not in known)
        try:
            collector.run(each(waiting, play, 2 * collector.in_flight, lambda: keeper.spent))
            if keeper.done < len(questions):
                raise judge_spent(run.config.judge.budget or 0, f"{keeper.done} of {len(questions)} questions of {name} are kept")
        except BaseException:
            run.record(file)  # of a pod nothing else stays
            raise
        finally:
            note_judged(run, name, keeper.judged)
    rows = map(json.loads, whole_lines(file))  # one at a time: beside the episodes their packed texts would take memory too
    kept = sorted(((row["at"], unpack(b64decode(row["episode"])), row["seconds"]) for row in rows), key=lambda row: row[0])
    return [t for _, episodes, _ in kept for t in episodes], [seconds for _, _, seconds in kept]


def prediction(t: Trajectory, task: Task, scores: Scores, texts: Texts = MappingProxyType({})) -> dict[str, Any]:
    """A row of predictions.jsonl. `scores`: the task's, of this episode. The row's scores are those of answers, where there are gold answers,
    and the task's own. `fault`: what went wrong first (`attribution.FAULTS`)."""
    short = bool(t.question.gold.answers) and task.headline not in SCORES
    answers = QA.scores(t) if short and task.name != QA.name else {}
    return {
        "id": t.question.id, "dataset": t.question.dataset, "original_id": t.question.original_id, "type": t.question.type,
        "hops": t.question.hops, "question": t.question.text, "answer": t.answer, "golds": list(t.question.gold.answers), "status": t.status,
        "searches": t.searches, "queries": list(t.queries), "retrieved": list(t.retrieved),
        "gold_passages": list(t.question.gold.passages), "fault": first_fault(t, rightness(task, scores), texts),
        "scores": {**answers, **scores},
    }  # fmt: skip
