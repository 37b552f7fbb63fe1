"""Evaluation without a run: any model with any method on any converted set, for which nothing is trained.

What is done is kept question by question, so a killed evaluation goes on, and memory holds a few numbers of each question and no contexts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rolecast.config import RunConfig
from rolecast.data.records import iter_questions, read_corpus
from rolecast.errors import InputError
from rolecast.evaluation import latency, tasks
from rolecast.evaluation.attribution import Texts
from rolecast.evaluation.cost import Cost, cost_of, read_cost
from rolecast.evaluation.lenient import with_lenient
from rolecast.evaluation.metrics import Row, row_of, shortfall_of, summarize_rows
from rolecast.evaluation.profiles import OURS, Profile
from rolecast.evaluation.reports import KINDS, SCORES, report_rewards, with_reports
from rolecast.evaluation.tasks import Scores, Task
from rolecast.evaluation.trace import trace
from rolecast.leasing import Group
from rolecast.methods.base import Method
from rolecast.ports import Retriever
from rolecast.retriever.index import build_index
from rolecast.retriever.silent import NoRetriever
from rolecast.rewards.text import RULES
from rolecast.rollout.collect import Collector, Tell
from rolecast.stages import supporting
from rolecast.stages.budget import judge_spent
from rolecast.stages.environment import RETRIEVER_URL, address
from rolecast.stages.evaluate import prediction
from rolecast.stages.keeping import Keeper, each, mended, whole_lines
from rolecast.stages.models import Speaker, played_method, speaking_engine
from rolecast.stages.progress import Progress
from rolecast.stages.run import Run
from rolecast.stages.services import open_judge, open_retriever
from rolecast.stages.team import prepare_torch
from rolecast.stages.working import working
from rolecast.store.artifact import digest_of, verify, write_text, writing
from rolecast.store.uri import manifest_at
from rolecast.types import Question, Trajectory

ASKED, KEPT, RESULT = "asked.json", "played.jsonl", "evaluation"
CORPUS = "corpus.jsonl"


@dataclass(frozen=True, slots=True)
class Trial:
    """`questions`: a file of them; `corpus`: what is searched, unless the config names an index or a service. `profile`: whose script compares
    answers."""

    config: RunConfig
    speaker: Speaker
    questions: Path
    corpus: Path | None
    out: Path
    profile: Profile = OURS

    def asked(self) -> dict[str, Any]:
        """What the result depends on. An evaluation goes on if all of it is as it was."""
        c = self.config
        return {
            "model": dict(self.speaker.identity()),
            "config": {
                "seed": c.seed, "method": c.method.model_dump(mode="json"), "dtype": c.model.dtype, "max_context": c.model.max_context,
                "retriever": c.retriever.model_dump(mode="json", include={"kind", "encoder", "index"}), "judge": c.judge.model,
                "cast": c.cast, "n": c.eval.n,
            },
            "questions": _digest(self.questions),
            "corpus": _digest(self.corpus) if self.corpus is not None else None,
            "profile": self.profile.name,
        }  # fmt: skip


def trial_of(config: RunConfig, speaker: Speaker, data: Path, out: Path, profile: Profile = OURS) -> Trial:
    """`data`: a folder that `rolecast data` wrote, or a file of questions beside a corpus. InputError for what cannot be evaluated on, and for
    a profile that plays otherwise: it is of a run."""
    if played := sorted(set(profile.switches) - {"rules", "without_yes_no"}):
        raise InputError(f"profile {profile.name} plays otherwise ({', '.join(played)}), which only a run's evaluation can; evaluate a RUN")
    file = _questions_at(data)
    corpus = next((path for name in (CORPUS, f"{CORPUS}.gz") if (path := file.parent / name).is_file()), None)
    return Trial(config, speaker, file, searched(config, speaker, corpus, file), out, profile)


def _questions_at(data: Path) -> Path:
    file = data
    if data.is_dir():
        found = sorted(path for path in data.glob("*.jsonl") if path.name != CORPUS)
        if len(found) != 1:
            there = f"holds {', '.join(path.name for path in found)}; name one of these files" if found else "holds no questions"
            raise InputError(f"--data {data}: {there}")
        file = found[0]
    if not file.is_file():
        raise InputError(f"--data {data}: no such file or folder; name one that `rolecast data convert` wrote")
    return file


def searched(config: RunConfig, speaker: Speaker, corpus: Path | None, beside: Path) -> Path | None:
    """The corpus that has to be indexed: none for a method that does not search, or where the config names an index or a service."""
    r = config.retriever
    if played_method(config, speaker).k == 0 or r.index or not r.indexed or address(RETRIEVER_URL, r.url):
        return None
    if corpus is None:
        raise InputError(
            f"{config.method.name} searches, and there is no {CORPUS} beside {beside}; put one there, or name an index by --set "
            "retriever.index=PLACE or a service by --set retriever.url=ADDRESS"
        )
    return corpus


def evaluate_alone(trial: Trial) -> Path:
    """Writes the artifact `OUT/evaluation`: result.json, predictions.jsonl, some traces. Does nothing if it is there."""
    trial.speaker.check()
    trial.out.mkdir(parents=True, exist_ok=True)
    run = as_run(trial)
    with working(run, "eval"):
        claim(trial.out, trial.asked())
        if not run.has(trial.out / RESULT):
            _finish(trial, _played(trial, run))
    verify(trial.out / RESULT, "evaluation")
    return trial.out / RESULT


def as_run(trial: Trial) -> Run:
    """What opens a run's retriever and judge, over the folder of the evaluation."""
    index = trial.config.retriever.index
    return Run(trial.out, trial.config, shared={"retriever.index": digest_of(manifest_at(index))} if index else {})


def claim(out: Path, identity: Mapping[str, Any]) -> None:
    """The folder is this work's from now on; that of another one is refused."""
    file, asked = out / ASKED, json.loads(json.dumps(identity))
    if not file.exists():
        if other := sorted(path.name for path in out.iterdir() if path.name not in (".lock", "origins.json", "seconds.json")):
            raise InputError(f"{out} holds {other[0]} and is no evaluation; name another folder by --out")
        write_text(file, json.dumps(asked, indent=1))
        return
    known = json.loads(file.read_text())
    if differs := next((key for key in asked if known.get(key, "") != asked[key]), None):
        raise InputError(f"{out} was begun with another {differs}; name another folder by --out, or delete it")


def retriever_of(run: Run, method: Method, corpus: Path | None) -> Retriever:
    """What the config names, else an index of the corpus, which is built once; none for a method that does not search."""
    if not method.k:
        return NoRetriever(method.name)
    if corpus is not None and not run.has(run.index):
        passages = read_corpus(corpus)
        if method.k > len(passages):
            raise InputError(f"{corpus}: method.k = {method.k} is larger than the corpus ({len(passages)} passages); lower method.k")
        build_index(passages, run.index, run.config.retriever.kind, run.config.retriever.encoder)  # type: ignore[arg-type]
    return open_retriever(run)


@dataclass(frozen=True, slots=True)
class _Played:
    task: Task
    rows: list[tuple[int, int, Row]]  # the question's number, where its line begins, what totals need
    cost: Cost
    errors: list[str]
    spent: list[Mapping[str, float]]


def _played(trial: Trial, run: Run) -> _Played:
    """Every question once; those that were kept before are not asked again, but for those in which something failed."""
    c = trial.config
    prepare_torch(c)
    method = played_method(c, trial.speaker)
    task = trial.profile.task(with_lenient(tasks.together(method.measured or ("qa",)), method, RULES[trial.profile.rules]))
    task, total = _counted(task, islice(iter_questions(trial.questions), c.eval.n))
    file = trial.out / KEPT
    known = mended(file, lambda row: row["at"])
    if len(known) < total:
        allowed = c.judge.budget
        judged = sum(read_cost(json.loads(line)["cost"]).judge_tokens for line in whole_lines(file)) if allowed is not None else 0
        if allowed is not None and judged >= allowed:
            raise judge_spent(allowed, f"{len(known)} of {total} questions are kept in {trial.out}")
        retriever = retriever_of(run, method, trial.corpus)
        engine, renderer = speaking_engine(c, method, trial.speaker, f"eval/{trial.speaker.name or Path(trial.speaker.place).name}")
        judge = open_judge(run, KINDS if {*SCORES} & {task.headline, *task.others} else ())
        collector = Collector(
            method, engine, retriever, judge, renderer, c.seed, c.model.max_context, c.engine.in_flight, clocks={}, asks=report_rewards
        )  # fmt: skip
        bar = Progress(f"eval {c.method.name}", total, len(known))
        waiting = ((at, q) for at, q in enumerate(islice(iter_questions(trial.questions), total)) if at not in known)
        try:
            with file.open("ab") as lines:
                keeper = Keeper(lines, len(known), judged, allowed)

                async def play(waits: tuple[int, Question], _: Tell) -> None:
                    at, question = waits
                    [t] = await collector.play_group(Group(f"test:{question.id}", question, (0,), "eval", OURS.sampling))
                    scores = task.scores(t)
                    texts = await supporting.texts_of(supporting.wanted([t], [scores], task), collector.retriever)
                    seconds = collector.clocks.pop(t.id).seconds if collector.clocks is not None else {}
                    keeper.keep(_kept(at, t, task, texts, scores, at < c.eval.traces, seconds), t.judge_tokens)
                    bar.update(keeper.done)

                collector.run(each(waiting, play, 2 * c.engine.in_flight, lambda: keeper.spent))
            if allowed is not None and keeper.spent and keeper.done < total:
                raise judge_spent(allowed, f"{keeper.done} of {total} questions are kept in {trial.out}")
        finally:
            engine.close()
    return _totals(file, task)


def _counted(task: Task, questions: Iterator[Question]) -> tuple[Task, int]:
    """The task as these questions have it, and how many they are: the file is read once for both."""
    total = 0

    def each() -> Iterator[Question]:
        nonlocal total
        for question in questions:
            total += 1
            yield question

    task = with_reports(task, each())
    return task, total


def _kept(at: int, t: Trajectory, task: Task, texts: Texts, scores: Scores, traced: bool, seconds: Mapping[str, float]) -> dict[str, Any]:
    """An episode's line. Nothing of its contexts is in it, unless it is `traced`."""
    return {
        "at": at, "fault": t.fault if t.status == "error" else "", "prediction": prediction(t, task, scores, texts),
        "row": asdict(row_of(t, task, scores, texts)), "cost": asdict(cost_of([t], ())), "trace": trace(t, task) if traced else None,
        "seconds": dict(seconds),
    }  # fmt: skip


def _totals(file: Path, task: Task) -> _Played:
    rows: list[tuple[int, int, Row]] = []
    cost, errors, spent, begins = Cost(), list[str](), list[Mapping[str, float]](), 0
    for line in whole_lines(file):
        kept = json.loads(line)
        rows.append((kept["at"], begins, Row(**kept["row"])))
        cost = cost + read_cost(kept["cost"])
        errors += [kept["fault"]] if kept["fault"] else []
        spent += [kept["seconds"]] if kept.get("seconds") else []
        begins += len(line)
    return _Played(task, sorted(rows, key=lambda row: row[0]), cost, errors, spent)


def _finish(trial: Trial, played: _Played) -> None:
    """Predictions and traces in the order of the questions, read again one at a time."""
    c = trial.config
    shortfall_of(len(played.rows), len(played.rows), played.errors, f"evaluation of {trial.speaker.place}")
    rows = [row for _, _, row in played.rows]
    result = {
        "method_name": c.method.name, "model": trial.speaker.name or trial.speaker.place, "data": str(trial.questions),
        **({"profile": trial.profile.name, "switches": trial.profile.switches} if trial.profile.name else {}),
        **summarize_rows(rows, c.seed, c.eval.bootstrap, played.task), "cost": asdict(played.cost),
    }  # fmt: skip
    with writing(trial.out / RESULT, "evaluation", {"config": c.fingerprint, **trial.asked()["config"]}) as partial:
        (partial / "result.json").write_text(json.dumps(result, indent=1))
        with (trial.out / KEPT).open("rb") as kept, (partial / "predictions.jsonl").open("w") as predictions:
            traces = []
            for at, begins, _ in played.rows:
                kept.seek(begins)
                line = json.loads(kept.readline())
                predictions.write(json.dumps(line["prediction"]) + "\n")
                traces += [line["trace"]] if at < c.eval.traces and line["trace"] is not None else []
        (partial / "traces.json").write_text(json.dumps(traces))
        (partial / latency.FILE).write_text(json.dumps(latency.latency(played.spent, c.engine.in_flight)))


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]
