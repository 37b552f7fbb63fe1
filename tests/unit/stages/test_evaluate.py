"""How a finished stage is evaluated: greedily, on the test questions, all of them, by the team that it ended with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedJudge, TableRetriever

from rolecast.cli.runs import opened
from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError, RolecastError
from rolecast.evaluation.profiles import Profile
from rolecast.methods.decor import Decor
from rolecast.ports import Sampling
from rolecast.rollout.clock import Clock
from rolecast.rollout.collect import Collector, Episode
from rolecast.stages import evaluate as evaluate_stage
from rolecast.stages.evaluate import evaluate
from rolecast.stages.report import report
from rolecast.stages.run import Run, create
from rolecast.stages.working import seconds
from rolecast.types import Action, Gold, Question, Stage, Thread, Trajectory
from tests.tiny import RENDERER

SPLITS = {
    split: [Question(f"{split}{i}", "Which band is it?", Gold(("The Who",))) for i in range(12)] for split in ("train", "dev", "test")
}


@dataclass
class Played:
    """What `Collector.collect` was asked for; the first `right` answers are right, and `lost` episodes do not come back."""

    right: int = 6
    lost: int = 0
    asked: list[tuple[list[tuple[str, int]], Sampling, str]] = field(default_factory=list)
    speakers: list[Any] = field(default_factory=list)
    methods: list[Any] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)
    closed: int = 0

    def close(self) -> None:
        self.closed += 1

    def collect(
        self, collector: Collector, episodes: Sequence[Episode], sampling: Sampling, phase: str, progress: Callable[[int], None]
    ) -> list[Trajectory]:
        self.asked.append(([(episode.group, episode.member) for episode in episodes], sampling, phase))
        self.speakers.append(collector.engine)
        self.methods.append(collector.method)
        done = []
        for number, episode in enumerate(episodes[self.lost :]):
            id = f"{episode.group}.{episode.member}"
            said = Thread(id, "answerer", "shared", turns=[Action(f"{id}#0", (1,), (0.0,), "v", "", "stop")])
            answer = "The Who" if number < self.right else "no"
            assert collector.clocks is not None
            collector.clocks[id] = Clock()
            collector.clocks[id].seconds.update({"answer": 1.0 + number, "answerer": 0.5})
            done.append(Trajectory(id, episode.question, episode.group, episode.member, "decor", 0, threads=[said], answer=answer))
        return done


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    found = Played()

    def finished_engine(run: Run, method: Any, stage: Any, version: str, **how: Any) -> Any:
        found.opened.append((stage.name, version))
        return found, RENDERER

    monkeypatch.setattr(Collector, "collect", lambda *arguments: found.collect(*arguments))
    monkeypatch.setattr(evaluate_stage, "finished_engine", finished_engine)
    monkeypatch.setattr(evaluate_stage, "require_model", lambda run, stage: None)
    monkeypatch.setattr(evaluate_stage, "prepare_torch", lambda config: None)
    monkeypatch.setattr(evaluate_stage, "open_retriever", lambda run: TableRetriever())
    monkeypatch.setattr(evaluate_stage, "open_judge", lambda run, kinds: ScriptedJudge())
    monkeypatch.setattr(evaluate_stage, "load_questions", lambda run, split: SPLITS[split])
    return found


def run_of(folder: Path, config: RunConfig | None = None) -> Run:
    return create(folder / "run", config or RunConfig())


def test_test_questions_are_played_greedily_and_as_evaluation_by_the_finished_team(tmp_path: Path, played: Played) -> None:
    evaluate(run_of(tmp_path), "rl")
    assert played.asked == [([(f"test:test{i}", 0) for i in range(12)], Sampling(0.0), "eval")]
    assert played.speakers == [played]
    assert played.opened == [("rl", "run/0.0")]
    assert played.closed == 1  # what its engine holds is given back


def test_what_clients_left_running_ends_with_the_evaluation(tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batcher of searches waits for more for ever; Python complains of it when the process ends."""
    left: list[asyncio.Task[bool]] = []

    async def leave() -> None:
        left.append(asyncio.create_task(asyncio.Event().wait()))
        await asyncio.sleep(0)

    def collect(collector: Collector, *asked: Any) -> list[Trajectory]:
        collector._loop.run(leave())
        return played.collect(collector, *asked)

    monkeypatch.setattr(Collector, "collect", collect)
    evaluate(run_of(tmp_path), "rl")
    assert [task.cancelled() for task in left] == [True]


def test_what_was_answered_is_written_and_not_evaluated_again(tmp_path: Path, played: Played) -> None:
    run = run_of(tmp_path, make_config({"eval": {"n": 10, "traces": 8}}, "here"))
    folder = evaluate(run, "rl")
    assert evaluate(run, "rl") == folder == run.evaluation("rl")
    assert [len(episodes) for episodes, _, _ in played.asked] == [10]
    result = json.loads((folder / "result.json").read_text())
    assert (result["em"], result["n"]) == (0.6, 10)
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert rows[5] == {
        "id": "test5", "dataset": "", "original_id": "", "type": "", "hops": 0, "question": "Which band is it?", "answer": "The Who",
        "golds": ["The Who"], "status": "ok", "searches": 0, "queries": [], "retrieved": [], "gold_passages": [], "fault": "",
        "scores": {"em": 1.0, "f1": 1.0, "cem": 1.0},
    }  # fmt: skip
    assert result["cost"] == {
        "sampled": 10, "frozen": 0, "prompt": 0, "searches": 0, "judge_calls": 0, "judge_tokens": 0, "context": {"answerer": 1},
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


def test_a_test_of_which_episodes_are_missing_is_an_error_and_not_a_score(tmp_path: Path, played: Played) -> None:
    played.lost = 2
    run = run_of(tmp_path)
    with pytest.raises(RolecastError, match="evaluation of rl: of 12 episodes 2 are missing"):
        evaluate(run, "rl")
    assert not run.evaluation("rl").exists()


def test_a_profile_says_so_and_is_kept_beside_the_plain_evaluation(tmp_path: Path, played: Played) -> None:
    run = run_of(tmp_path)
    plain = evaluate(run, "rl")
    profile = Profile("faithful", temperature=1.0, top_p=0.95, batch=5, rules="squad")
    folder = evaluate(run, "rl", profile)
    assert (folder, plain) == (run.evaluation("rl", "faithful"), run.evaluation("rl"))
    assert folder.name == "rl.faithful"
    episodes, sampling, phase = played.asked[1]
    assert (len(episodes), sampling, phase) == (10, Sampling(1.0, 0.95), "eval")
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
    collect = Collector.collect
    monkeypatch.setattr(Collector, "collect", lambda collector, *given: (forgets.append(collector.forgets), collect(collector, *given))[1])
    monkeypatch.setattr(Profile, "counted", lambda self, done: done[:3])
    monkeypatch.setattr(Profile, "task", lambda self, task: replace(task, scores=lambda t: {"em": 0.25, "f1": 0.5, "cem": 0.0}))
    folder = evaluate(run_of(tmp_path), "rl", Profile("p", loses_beginning=True))
    result = json.loads((folder / "result.json").read_text())
    assert (result["n"], result["em"], result["f1"], forgets) == (3, 0.25, 0.5, [True])
    assert result["cost"]["sampled"] == 12  # of all that were played
