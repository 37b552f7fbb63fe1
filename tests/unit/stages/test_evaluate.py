"""How a finished stage is evaluated: greedily, on the test questions, all of them, by the team that it ended with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from scripted import TableRetriever

from rolecast.cli.runs import opened
from rolecast.config import RunConfig, make_config
from rolecast.errors import EngineError, InputError, NamedStop, RolecastError
from rolecast.evaluation.profiles import Profile
from rolecast.leasing import Group
from rolecast.methods.decor import Decor
from rolecast.ports import JudgeInfo, Sampling, Verdict
from rolecast.rollout.clock import Clock
from rolecast.rollout.collect import Collector, Tell
from rolecast.stages import evaluate as evaluate_stage
from rolecast.stages.budget import judged_in_evaluations, note_judged
from rolecast.stages.evaluate import evaluate, kept_in
from rolecast.stages.report import report
from rolecast.stages.run import Run, create
from rolecast.stages.working import seconds
from rolecast.store.artifact import writing
from rolecast.store.local import LocalStore
from rolecast.types import Action, Gold, Question, Stage, Thread, Trajectory
from tests.tiny import RENDERER

SPLITS = {
    split: [Question(f"{split}{i}", "Which band is it?", Gold(("The Who",))) for i in range(12)] for split in ("train", "dev", "test")
}


@dataclass
class Played:
    """What `Collector.play_group` was asked for; the first `right` answers are right, and `failing` questions fail. An engine too."""

    right: int = 6
    failing: set[str] = field(default_factory=set)
    asked: list[tuple[str, tuple[int, ...], Sampling, str]] = field(default_factory=list)
    speakers: list[Any] = field(default_factory=list)
    methods: list[Any] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)
    closed: int = 0
    branches: int = 0

    def close(self) -> None:
        self.closed += 1

    async def __aenter__(self) -> Played:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def play_group(self, collector: Collector, group: Group, ended: Tell) -> list[Trajectory]:
        self.asked.append((group.id, group.members, group.sampling, group.phase))
        self.speakers.append(collector.engine)
        self.methods.append(collector.method)
        number = int(group.question.id.removeprefix("test"))
        id = f"{group.id}.0"
        said = Thread(id, "answerer", "shared", turns=[Action(f"{id}#0", (1,), (0.0,), "v", "", "stop")])
        answer = "The Who" if number < self.right else "no"
        assert collector.clocks is not None
        collector.clocks[id] = Clock()
        collector.clocks[id].seconds.update({"answer": 1.0 + number, "answerer": 0.5})
        t = Trajectory(id, group.question, group.id, 0, "decor", 0, threads=[said], answer=answer)
        if group.question.id in self.failing:
            t.status, t.fault = "error", "RetrieverError: away"
        verdict = await collector.judge.judge("answer", {"question": group.question.text})
        t.judge_calls, t.judge_tokens = 1, verdict.tokens
        return [t]


@dataclass
class Priced:
    """A judge whose verdicts cost ten tokens each; the engine fails at verdict number `killed`."""

    tokens: int = 0
    killed: int = 0
    asked: int = 0

    async def info(self) -> JudgeInfo:
        return JudgeInfo("priced")

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        self.asked += 1
        if self.asked == self.killed:
            raise EngineError("the GPU is gone")
        return Verdict(1.0, tokens=self.tokens)


@pytest.fixture
def judge() -> Priced:
    return Priced()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, judge: Priced) -> Played:
    found = Played()

    def finished_engine(run: Run, method: Any, stage: Any, version: str, **how: Any) -> Any:
        found.opened.append((stage.name, version))
        return found, RENDERER

    monkeypatch.setattr(Collector, "play_group", lambda *arguments: found.play_group(*arguments))
    monkeypatch.setattr(evaluate_stage, "finished_engine", finished_engine)
    monkeypatch.setattr(evaluate_stage, "require_model", lambda run, stage: None)
    monkeypatch.setattr(evaluate_stage, "prepare_torch", lambda config: None)
    monkeypatch.setattr(evaluate_stage, "open_retriever", lambda run: TableRetriever())
    monkeypatch.setattr(evaluate_stage, "open_judge", lambda run, kinds: judge)
    monkeypatch.setattr(evaluate_stage, "load_questions", lambda run, split: SPLITS[split])
    return found


def run_of(folder: Path, config: RunConfig | None = None) -> Run:
    return create(folder / "run", config or RunConfig())


def test_test_questions_are_played_greedily_and_as_evaluation_by_the_finished_team(tmp_path: Path, played: Played) -> None:
    evaluate(run_of(tmp_path), "rl")
    assert played.asked == [(f"test:test{i}", (0,), Sampling(0.0), "eval") for i in range(12)]
    assert played.speakers == 12 * [played]
    assert played.opened == [("rl", "run/0.0")]
    assert played.closed == 1  # what its engine holds is given back


def test_what_clients_left_running_ends_with_the_evaluation(tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batcher of searches waits for more for ever; Python complains of it when the process ends."""
    left: list[asyncio.Task[bool]] = []

    async def leave() -> None:
        left.append(asyncio.create_task(asyncio.Event().wait()))
        await asyncio.sleep(0)

    async def play_group(collector: Collector, group: Group, ended: Tell) -> list[Trajectory]:
        await leave()
        return await played.play_group(collector, group, ended)

    monkeypatch.setattr(Collector, "play_group", play_group)
    evaluate(run_of(tmp_path), "rl")
    assert [task.cancelled() for task in left] == 12 * [True]


def test_what_was_answered_is_written_and_not_evaluated_again(tmp_path: Path, played: Played) -> None:
    run = run_of(tmp_path, make_config({"eval": {"n": 10, "traces": 8}}, "here"))
    folder = evaluate(run, "rl")
    assert evaluate(run, "rl") == folder == run.evaluation("rl")
    assert len(played.asked) == 10
    assert [path.name for path in folder.parent.iterdir()] == ["rl"]  # what was kept on the way is not needed any more
    result = json.loads((folder / "result.json").read_text())
    assert (result["em"], result["n"]) == (0.6, 10)
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert rows[5] == {
        "id": "test5", "dataset": "", "original_id": "", "type": "", "hops": 0, "question": "Which band is it?", "answer": "The Who",
        "golds": ["The Who"], "status": "ok", "searches": 0, "queries": [], "retrieved": [], "gold_passages": [], "fault": "",
        "scores": {"em": 1.0, "f1": 1.0, "cem": 1.0},
    }  # fmt: skip
    assert result["cost"] == {
        "sampled": 10, "frozen": 0, "prompt": 0, "searches": 0, "judge_calls": 10, "judge_tokens": 0, "context": {"answerer": 1},
    }  # fmt: skip
    assert len(rows) == 10
    times = json.loads((folder / "latency.json").read_text())
    assert times["answer"] == {"n": 10, "p50": 5.5, "p95": 9.55}  # of 1 to 10 s: 9 + .55 of the last step
    assert times["roles"] == {"answerer": {"n": 10, "p50": 0.5, "p95": 0.5}}
    traces = json.loads((folder / "traces.json").read_text())
    assert {t["measure"] for t in traces} == {"em"}
    assert [t["score"] for t in traces] == 6 * [1.0] + 2 * [0.0]
    provenance = json.loads((folder / "manifest.json").read_text())["provenance"]
    assert provenance["config"] == run.fingerprint
    assert (provenance["environment"]["index"], provenance["environment"]["judged_by"]) == ("bm25", "lexical")


def test_an_evaluation_holds_what_its_method_tells_of_the_episodes(tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decor, "diagnostics", lambda self, done: {"right": sum(t.answer == "The Who" for t in done) / len(done)})
    folder = evaluate(run_of(tmp_path, make_config({"eval": {"n": 10}}, "here")), "rl")
    assert json.loads((folder / "result.json").read_text())["method"] == {"right": 0.6}


def test_what_a_method_is_measured_by_goes_before_its_stages_task(tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    sft, rl = Decor(RunConfig().method).schedule()  # type: ignore[arg-type]
    monkeypatch.setattr(Decor, "schedule", lambda self: (sft, replace(rl, task="reward:role")))
    assert json.loads((evaluate(run_of(tmp_path / "a"), "rl") / "result.json").read_text())["headline"] == "role"
    monkeypatch.setattr(Decor, "measured", ("qa", "reward:role"))
    result = json.loads((evaluate(run_of(tmp_path / "b"), "rl") / "result.json").read_text())
    assert (result["headline"], result["em"], list(result["others"])) == ("em", 0.5, ["role"])


def test_a_stage_that_plays_a_part_of_the_method_is_evaluated_on_the_whole(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    sft, rl = Decor(RunConfig().method).schedule()  # type: ignore[arg-type]
    monkeypatch.setattr(Decor, "schedule", lambda self: (sft, replace(rl, silent=("answerer",))))
    run = run_of(tmp_path)
    assert run.config.method_in(run.config.schedule[1]).silent == {"answerer"}
    evaluate(run, "rl")
    assert played.methods[0].silent == frozenset()


def test_a_stage_without_a_model_is_not_evaluated(tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path)
    schedule = (*run.config.schedule, Stage("plans", "rollout", "rl"))
    monkeypatch.setattr(RunConfig, "schedule", property(lambda self: schedule))
    monkeypatch.setattr(evaluate_stage, "require_model", lambda run, stage: pytest.fail("there is none to be asked for"))
    with pytest.raises(InputError, match="stage plans prepares questions and has no model; stages with one: sft, rl"):
        evaluate(run, "plans")
    assert played.asked == []
    (tmp_path / "c.yaml").write_text("name: new\n")
    with pytest.raises(InputError, match="stage plans prepares questions"):  # before anything is made for it
        opened(str(tmp_path / "new"), tmp_path / "c.yaml", None, "plans", model=True)
    assert not (tmp_path / "new").exists()


def test_a_test_of_which_episodes_failed_is_an_error_and_not_a_score_and_they_are_played_again(tmp_path: Path, played: Played) -> None:
    played.failing = {"test3", "test7"}
    run = run_of(tmp_path)
    with pytest.raises(RolecastError, match="evaluation of rl: of 12 episodes 0 are missing and 2 failed"):
        evaluate(run, "rl")
    assert not run.evaluation("rl").exists()
    played.failing = set()
    assert json.loads((evaluate(run, "rl") / "result.json").read_text())["n"] == 12
    assert [group for group, *_ in played.asked[12:]] == ["test:test3", "test:test7"]
    assert [row["id"] for row in told(run)[1]] == [f"test{i}" for i in range(12)]  # in the questions' order, not as they ended


def test_an_episode_is_scored_once(tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[str] = []

    def scores(t: Trajectory) -> dict[str, float | None]:
        scored.append(t.question.id)
        return {"em": 1.0, "f1": 1.0, "cem": 1.0}

    monkeypatch.setattr(Profile, "task", lambda self, task: replace(task, scores=scores))
    evaluate(run_of(tmp_path, make_config({"eval": {"traces": 2}}, "here")), "rl")
    assert sorted(scored) == sorted([*(f"test{i}" for i in range(12)), "test0", "test1"])  # a trace tells its own


def budgeted(folder: Path, budget: int, **eval: Any) -> Run:
    """The same run whenever it is called, with its judge's budget as given."""
    settings = {"judge": {"budget": budget}, "engine": {"in_flight": 1}, "eval": eval}
    return create(folder / "run", make_config(settings, "here"))


def told(run: Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    folder = run.evaluation("rl")
    return json.loads((folder / "result.json").read_text()), [json.loads(row) for row in (folder / "predictions.jsonl").open()]


def test_an_evaluation_whose_judges_budget_is_spent_goes_on_where_it_was(tmp_path: Path, played: Played, judge: Priced) -> None:
    """Verdicts cost 10 of 45 tokens: the fifth passes them. With one lane another episode waits, which then is the last."""
    judge.tokens = 10
    run = budgeted(tmp_path, 45)
    with pytest.raises(
        NamedStop,
        match=r"the judge's budget of 45 tokens is spent: ([56]) of 12 questions of rl are kept; give the same command with --set",
    ) as stop:
        evaluate(run, "rl")
    kept = int(str(stop.value).split("spent: ")[1][0])
    assert (judge.asked, judged_in_evaluations(run)) == (kept, {"rl": 10 * kept})
    with pytest.raises(NamedStop, match="the judge's budget of 45 tokens is spent: rl is not evaluated"):  # and nothing is asked
        evaluate(run, "rl")
    assert judge.asked == kept
    run = budgeted(tmp_path, 1000)
    evaluate(run, "rl")
    assert (judge.asked, judged_in_evaluations(run), played.closed) == (12, {"rl": 120}, 3)
    whole = budgeted(tmp_path / "other", 1000)
    evaluate(whole, "rl")
    assert told(run) == told(whole)
    assert told(run)[0]["cost"]["judge_tokens"] == 120
    assert [path.name for path in run.evaluation("rl").parent.iterdir()] == ["rl"]


def test_what_asks_no_judge_is_evaluated_though_nothing_is_left_of_its_budget(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play_group(collector: Collector, group: Group, ended: Tell) -> list[Trajectory]:
        return await played.play_group(replace(collector, judge=Priced()), group, ended)

    monkeypatch.setattr(Collector, "play_group", play_group)
    run = budgeted(tmp_path, 45)
    note_judged(run, "sft", 45)
    evaluate(run, "rl")
    assert told(run)[0]["n"] == 12


def test_a_killed_evaluation_goes_on_and_what_its_judge_took_is_counted(
    tmp_path: Path, played: Played, judge: Priced, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge.tokens, judge.killed = 10, 5
    run = budgeted(tmp_path, 1000)
    with monkeypatch.context() as killed:
        killed.setattr(evaluate_stage, "note_judged", lambda run, name, tokens: None)
        with pytest.raises(EngineError):
            evaluate(run, "rl")
    [file] = run.evaluation("rl").parent.iterdir()
    kept = {json.loads(line)["at"] for line in file.open()}
    assert {0, 1, 2, 3} <= kept <= {0, 1, 2, 3, 5}  # 4 failed, and 5 was next
    with file.open("ab") as lines:
        lines.write(b'{"at": 4, "fau')  # cut off
    assert judged_in_evaluations(run) == {}
    evaluate(run, "rl")
    again = [group for group, *_ in played.asked[-(12 - len(kept)) :]]
    assert again == [f"test:test{i}" for i in range(12) if i not in kept]
    assert judged_in_evaluations(run) == {"rl": 120}
    assert told(run)[0]["n"] == 12


def test_damaged_lines_of_what_was_kept_are_told_and_played_again(
    tmp_path: Path, played: Played, judge: Priced, caplog: pytest.LogCaptureFixture
) -> None:
    judge.tokens = 10
    run = budgeted(tmp_path, 45)
    with pytest.raises(NamedStop):
        evaluate(run, "rl")
    [file] = (path for path in run.evaluation("rl").parent.iterdir() if path.is_file())
    first, second, third, *rest = file.read_bytes().splitlines(keepends=True)
    cut = json.loads(third)
    cut["episode"] = cut["episode"][:40]
    file.write_bytes(b"".join([b"\xaa\xbb no JSON\n", b'{"fault": ""}\n', json.dumps(cut).encode() + b"\n", *rest]))
    run = budgeted(tmp_path, 1000)
    evaluate(run, "rl")
    again = {json.loads(line)["at"] for line in (first, second, third)}
    assert [group for group, *_ in played.asked[-(12 - len(rest)) :]][: len(again)] == [f"test:test{i}" for i in sorted(again)]
    assert "3 damaged lines are left out; their episodes are played again" in caplog.text
    assert told(run)[0]["n"] == 12


def test_kept_episodes_are_of_one_evaluation_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = budgeted(tmp_path, 45)
    file = kept_in(run, "rl", run.evaluation("rl"), {})
    assert file.name.startswith("rl.played-")
    assert kept_in(budgeted(tmp_path, 1000), "rl", run.evaluation("rl"), {}) == file
    other = kept_in(run, "rl", run.evaluation("rl"), {"profile": "", "switches": {"k": 5}})
    asked = replace(run, config=run.config.model_copy(update={"eval": run.config.eval.model_copy(update={"n": 3})}))
    with writing(run.model("rl"), "model", {}):
        pass
    retrained = kept_in(run, "rl", run.evaluation("rl"), {})
    assert len({file, other, kept_in(asked, "rl", run.evaluation("rl"), {}), retrained}) == 4
    with writing(run.index, "index", {}):
        pass
    reindexed = kept_in(run, "rl", run.evaluation("rl"), {})
    about = evaluate_stage.environment_of(run)
    monkeypatch.setattr(evaluate_stage, "environment_of", lambda run: replace(about, judged_by="another"))
    assert len({retrained, reindexed, kept_in(run, "rl", run.evaluation("rl"), {})}) == 3


def test_a_stopped_evaluation_of_a_run_in_a_store_goes_on_elsewhere(
    tmp_path: Path, played: Played, judge: Priced, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge.tokens = 10
    store = LocalStore(tmp_path / "store")
    with pytest.raises(NamedStop):
        evaluate(replace(budgeted(tmp_path / "a", 45), store=store, location="s3://here/run"), "rl")
    before = judge.asked
    evaluate(elsewhere := replace(budgeted(tmp_path / "b", 1000), store=store, location="s3://here/run"), "rl")
    assert (judge.asked, before < 12) == (12, True)
    assert [key for key in store.keys("eval") if key.endswith(".jsonl")] == ["eval/rl/predictions.jsonl"]
    assert judged_in_evaluations(elsewhere) == {"rl": 120}


def test_a_profile_says_so_and_is_kept_beside_the_plain_evaluation(tmp_path: Path, played: Played) -> None:
    run = run_of(tmp_path)
    plain = evaluate(run, "rl")
    profile = Profile("faithful", temperature=1.0, top_p=0.95, batch=5, rules="squad")
    folder = evaluate(run, "rl", profile)
    assert (folder, plain) == (run.evaluation("rl", "faithful"), run.evaluation("rl"))
    assert folder.name == "rl.faithful"
    assert [(sampling, phase) for _, _, sampling, phase in played.asked[12:]] == 10 * [(Sampling(1.0, 0.95), "eval")]
    results = [json.loads((path / "result.json").read_text()) for path in (plain, folder)]
    assert ("profile" in results[0], results[0]["n"]) == (False, 12)
    assert (results[1]["profile"], results[1]["n"]) == ("faithful", 10)
    assert results[1]["switches"] == {"temperature": 1.0, "top_p": 0.95, "batch": 5, "rules": "squad"}
    assert json.loads((folder / "manifest.json").read_text())["provenance"]["profile"] == "faithful"
    summary = json.loads(report(run).read_text())
    assert list(summary["stages"]) == ["rl"]
    assert list(summary["profiles"]) == ["rl.faithful"]
    assert set(seconds(run)) == {"eval_rl", "eval_rl.faithful"}


def test_a_profile_decides_what_counts_and_how_contexts_end(tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    forgets: list[bool] = []
    play = Collector.play_group

    def watched(collector: Collector, group: Group, ended: Tell) -> Any:
        forgets.append(collector.forgets)
        return play(collector, group, ended)

    monkeypatch.setattr(Collector, "play_group", watched)
    monkeypatch.setattr(Profile, "counted", lambda self, done: done[:3])
    monkeypatch.setattr(Profile, "task", lambda self, task: replace(task, scores=lambda t: {"em": 0.25, "f1": 0.5, "cem": 0.0}))
    folder = evaluate(run_of(tmp_path), "rl", Profile("p", loses_beginning=True))
    result = json.loads((folder / "result.json").read_text())
    assert (result["n"], result["em"], result["f1"], forgets) == (3, 0.25, 0.5, 12 * [True])
    assert result["cost"]["sampled"] == 12  # of all that were played
