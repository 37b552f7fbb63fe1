"""A rollout stage: what it plays and how, what it keeps, and how it goes on after it was ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rolecast.config import RunConfig, make_config
from rolecast.data.records import read_questions
from rolecast.errors import ArtifactError, InputError, Interrupted, RolecastError
from rolecast.learner.ranks import ALONE
from rolecast.methods.decor import Decor
from rolecast.ports import Sampling
from rolecast.rollout.collect import Episode
from rolecast.schedule import find
from rolecast.stages import rollout as rollout_stage
from rolecast.stages.metrics import read_metrics
from rolecast.stages.rollout import rollout
from rolecast.stages.run import Run
from rolecast.stages.segments import segments_of
from rolecast.stages.stopping import Stopping
from rolecast.stages.team import load_questions, require_questions
from rolecast.stages.train import train
from rolecast.store.artifact import verify, writing
from rolecast.store.local import LocalStore
from rolecast.types import Action, Gold, Question, Stage, Thread, Trajectory
from tests.tiny import tiny_team

OWN = {
    split: [Question(f"{split[0]}{i}", f"{split} {i}?", Gold(("The The",))) for i in range(count)]
    for split, count in (("train", 5), ("dev", 3))
}
EARLIER = {"style": "short"}


@dataclass
class Played:
    """What was asked for. `loses` says what becomes of an episode; `breaks` ends the process, so to speak, at a number of calls."""

    asked: list[tuple[list[tuple[str, int]], float, str]] = field(default_factory=list)
    prepare: Callable[[Episode], dict[str, Any] | None] = lambda episode: {"plan": f"of {episode.question.id}.{episode.member}"}
    fault: Callable[[Episode], bool] = lambda episode: False
    breaks: int = 99
    published: list[tuple[Any, ...]] = field(default_factory=list)

    def collect(self, episodes: Sequence[Episode], sampling: Sampling, phase: str, progress: Callable[[int], None]) -> list[Trajectory]:
        if len(self.asked) == self.breaks:
            raise KeyboardInterrupt
        self.asked.append(([(episode.group, episode.member) for episode in episodes], sampling.temperature, phase))
        progress(len(episodes))
        return [self._one(episode) for episode in episodes]

    def _one(self, episode: Episode) -> Trajectory:
        id = f"{episode.group}.{episode.member}"
        threads = [
            Thread(f"{id}/{slot}", role, slot, turns=[Action(f"{id}/{slot}#0", (1, 2), (0.0, 0.0), "v", "", "stop")])
            for role, slot in (("planner", "shared"), ("condenser", "frozen"))
        ]
        t = Trajectory(id, episode.question, episode.group, episode.member, "decor", 0, threads=threads, prepared=self.prepare(episode))
        if self.fault(episode):
            t.status, t.fault, t.prepared = "error", "OSError: the index is on fire", None
        return t

    @property
    def groups(self) -> list[str]:
        return [group for episodes, _, _ in self.asked for group, _ in episodes]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    found = Played()
    stages = (*Decor(RunConfig().method).schedule(), Stage("plans", "rollout", "rl"))  # type: ignore[arg-type]
    monkeypatch.setattr(Decor, "schedule", lambda self: stages)
    monkeypatch.setattr(Decor, "prepare", lambda self, trajectory: None)

    @contextmanager
    def publisher(run: Run, method: Any, stage: Stage, team: Any) -> Iterator[Any]:
        yield SimpleNamespace(
            rollouts=SimpleNamespace(collect=found.collect, method=method), publish=lambda *version: found.published.append(version)
        )

    monkeypatch.setattr(rollout_stage, "training_team", lambda run, method, stage, saved: tiny_team())
    monkeypatch.setattr(rollout_stage, "open_publisher", publisher)
    monkeypatch.setattr(rollout_stage, "load_questions", lambda run, split, data: OWN[split])
    return found


def run_of(folder: Path, store: LocalStore | None = None, **settings: Any) -> Run:
    return Run(folder, make_config({"stages": {"plans": {"samples": 2, "temperature": 0.5, "shard": 2, **settings}}}, "here"), store)


def go(run: Run) -> None:
    rollout(run, find(run.config.schedule, "plans"), ALONE)


def kept(run: Run) -> dict[str, list[Question]]:
    return {split: read_questions(run.questions("plans") / f"{split}.jsonl") for split in ("train", "dev")}


def test_train_questions_are_sampled_and_dev_ones_played_once_and_greedily(tmp_path: Path, played: Played) -> None:
    go(run_of(tmp_path))
    train = [[(f"plans:train:t{i}", member) for i in part for member in (0, 1)] for part in ((0, 1), (2, 3), (4,))]
    dev = [[(f"plans:dev:d{i}", 0) for i in part] for part in ((0, 1), (2,))]
    assert played.asked == [*((part, 0.5, "prepare") for part in train), *((part, 0.0, "prepare") for part in dev)]
    assert played.published == [(0, {})]  # before the first episode: what the start has


def test_progress_counts_episodes_over_all_shards_and_attempts(tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[tuple[int, int]] = []  # episodes in all, and done before this attempt
    told: list[int] = []

    class Bar:
        def __init__(self, label: str, total: int, start: int, every: float) -> None:
            bars.append((total, start))

        def update(self, done: int) -> None:
            told.append(done)

    monkeypatch.setattr(rollout_stage, "Progress", Bar)
    played.breaks = 2
    with pytest.raises(KeyboardInterrupt):
        go(run_of(tmp_path))
    played.breaks = 99
    go(run_of(tmp_path))
    assert bars == [(13, 0), (13, 8)]  # 5 questions twice and 3 once
    assert told == [4, 8, 10, 12, 13]


def test_each_sample_is_a_question_of_its_own_with_what_was_given_before(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {split: [replace(question, given=EARLIER) for question in questions] for split, questions in OWN.items()}
    monkeypatch.setattr(rollout_stage, "load_questions", lambda run, split, data: given[split])
    run = run_of(tmp_path)
    go(run)
    found = kept(run)
    assert found["train"][:2] == [replace(OWN["train"][0], id=f"t0.{m}", given={**EARLIER, "plan": f"of t0.{m}"}) for m in (0, 1)]
    assert [question.id for question in found["dev"]] == ["d0.0", "d1.0", "d2.0"]
    assert len(found["train"]) == 10
    require_questions(run, "plans")
    assert load_questions(run, "dev", "plans") == found["dev"]
    assert not (run.stage("plans") / "shards").exists()


def test_the_artifact_counts_what_became_of_the_episodes(tmp_path: Path, played: Played) -> None:
    played.prepare = lambda episode: {"plan": "a"} if episode.member == 0 else None
    played.fault = lambda episode: (episode.question.id, episode.member) == ("t2", 0)
    run = run_of(tmp_path)
    go(run)
    told = verify(run.questions("plans"), "questions")["provenance"]
    assert told == {
        **run.made, "stage": "plans", "start": "rl",
        "counts": {
            "train": {"asked": 10, "prepared": 4, "left_out": 5, "failed": 1, "missing": 0},
            "dev": {"asked": 3, "prepared": 3, "left_out": 0, "failed": 0, "missing": 0},
        },
        # of trained roles: the budget of the run; dev is no part of it
        "cost": {"sampled": 20, "frozen": 20, "prompt": 0, "searches": 0, "judge_calls": 0, "judge_tokens": 0, "context": {"planner": 2, "condenser": 2}},
    }  # fmt: skip
    [segment] = segments_of(run, "plans")
    assert (segment["step"], segment["environment"]["retriever"]) == (0, "here")
    rows = read_metrics(run.stage("plans"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row.get("train/prepared") for row in rows] == [0.5, 0.25, 0.5, None, None]
    assert [row["errors"] for row in rows] == [0, 1, 0, 0, 0]
    assert [row["tokens/sampled"] for row in rows] == [8, 16, 20, 20, 20]  # of the policy's slots: the budget of the run
    assert (rows[0]["train/em"], rows[3]["dev/em"]) == (0.0, 0.0)


def test_so_many_questions_of_each_split_are_drawn_by_the_seed(tmp_path: Path, played: Played) -> None:
    run = run_of(tmp_path, questions=3, dev=2)
    go(run)
    assert len(kept(run)["train"]) == 6
    assert len(kept(run)["dev"]) == 2
    before = played.groups
    played.asked = []
    go(run_of(tmp_path / "again", questions=3, dev=2))
    assert played.groups == before


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_stage_that_was_killed_goes_on_after_its_last_shard(tmp_path: Path, played: Played, elsewhere: bool) -> None:
    undisturbed = run_of(tmp_path / "undisturbed")
    go(undisturbed)
    played.asked, played.breaks = [], 2
    store = LocalStore(tmp_path / "store") if elsewhere else None
    with pytest.raises(KeyboardInterrupt):
        go(run_of(tmp_path / "killed", store))
    played.asked, played.breaks = [], 99
    run = run_of(tmp_path / ("another" if elsewhere else "killed"), store)
    go(run)
    assert sorted(set(played.groups)) == ["plans:dev:d0", "plans:dev:d1", "plans:dev:d2", "plans:train:t4"]
    assert kept(run) == kept(undisturbed)
    assert read_metrics(run.stage("plans")) == read_metrics(undisturbed.stage("plans"))
    if store is not None:
        assert store.artifacts("plans") == ["plans/questions"]


@pytest.mark.parametrize("before", [True, False])
def test_no_row_of_metrics_is_lost_or_told_twice_around_a_shards_commit(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    undisturbed = run_of(tmp_path / "undisturbed")
    go(undisturbed)
    commit = rollout_stage.Roller._commit

    def killed(self: rollout_stage.Roller, number: int, questions: Sequence[Question]) -> None:
        if not before or number != 1:
            commit(self, number, questions)
        if number == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rollout_stage.Roller, "_commit", killed)
        with pytest.raises(KeyboardInterrupt):
            go(run_of(tmp_path / "killed"))
    run = run_of(tmp_path / "killed")
    go(run)
    assert kept(run) == kept(undisturbed)
    assert read_metrics(run.stage("plans")) == read_metrics(undisturbed.stage("plans"))


def test_a_damaged_shard_is_played_again(tmp_path: Path, played: Played, caplog: pytest.LogCaptureFixture) -> None:
    played.breaks = 3
    run = run_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        go(run)
    with (run.stage("plans") / "shards" / "00001" / "questions.jsonl").open("a") as file:
        file.write("x")
    played.asked, played.breaks = [], 99
    with caplog.at_level(logging.WARNING):
        go(run)
    assert "going on after 1 shards" in caplog.text
    assert played.groups[0] == "plans:train:t2"
    assert len(kept(run)["train"]) == 10


def test_sigterm_is_heard_after_a_shard(tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stopping, "asked", lambda self: len(played.asked) >= 2)
    run = run_of(tmp_path)
    with pytest.raises(Interrupted, match="told to end: plans has saved 2 of 5 shards"):
        go(run)
    assert len(played.asked) == 2
    monkeypatch.setattr(Stopping, "asked", lambda self: len(played.asked) == 5)
    with pytest.raises(Interrupted, match="told to end: plans is done"):
        go(run)
    assert len(kept(run)["train"]) == 10


def test_a_shard_of_which_too_much_failed_is_not_kept(tmp_path: Path, played: Played) -> None:
    played.fault = lambda episode: episode.question.id == "t3"
    run = run_of(tmp_path)
    with pytest.raises(RolecastError, match="stage plans, train: of 4 episodes 0 are missing and 2 failed"):
        go(run)
    played.asked, played.fault = [], lambda episode: False
    go(run)
    assert played.groups[0] == "plans:train:t2"


@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_stage_that_prepares_nothing_of_a_split_is_an_error(tmp_path: Path, played: Played, split: str) -> None:
    played.prepare = lambda episode: None if f":{split}:" in episode.group else {"plan": "a"}
    run = run_of(tmp_path)
    with pytest.raises(
        RolecastError, match=f"prepared no {split} question: of .* episodes Decor.prepare left out .*, 0 failed and 0 are missing"
    ):
        go(run)
    assert not run.questions("plans").exists()


def test_a_worker_cannot_prepare_of_an_episode_that_failed(tmp_path: Path, played: Played) -> None:
    one = played._one

    def both(episode: Episode) -> Trajectory:
        t = one(episode)
        if (episode.question.id, episode.member) == ("t0", 0):
            t.status = "error"
        return t

    played._one = both  # type: ignore[method-assign]
    run = run_of(tmp_path)
    go(run)
    assert "t0.0" not in [question.id for question in kept(run)["train"]]


def test_training_plays_it_and_finds_it_done(tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path)
    with pytest.raises(InputError, match=r"has no rl model yet; run `rolecast train .* rl` first"):
        train(run, "plans")
    with writing(run.model("rl"), "model", {}) as partial:
        (partial / "config.json").write_text("{}")
    assert train(run, "plans") == run.questions("plans")
    count = len(played.asked)
    assert train(run, "plans") == run.questions("plans")
    assert len(played.asked) == count
    assert "plans" in json.loads((run.path / "seconds.json").read_text())


def test_a_stage_whose_questions_are_not_there_or_damaged_says_so(tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = (*RunConfig().schedule, Stage("late", "rl", "rl", RunConfig().schedule[1].objectives, ("shared",), data="plans"))
    monkeypatch.setattr(Decor, "schedule", lambda self: stages)
    run = run_of(tmp_path)
    with writing(run.model("rl"), "model", {}) as partial:
        (partial / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"has no questions of plans yet; run `rolecast train .* plans` first"):
        train(run, "late")
    go(run)
    (run.questions("plans") / "dev.jsonl").write_text("")
    with pytest.raises(ArtifactError, match=r"dev.jsonl is missing or does not match the manifest"):
        train(run, "late")
