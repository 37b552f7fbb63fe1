"""A run that lives in a bucket: stages on different machines find each other's artifacts, and nothing is trained over."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rolecast.config import RunConfig
from rolecast.errors import FencedError, InputError
from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.ranks import ALONE
from rolecast.learner.settings import OptimizerConfig
from rolecast.stages import checkpoints
from rolecast.stages.run import Run, create, open_run
from rolecast.stages.working import working
from rolecast.store import fencing
from rolecast.store.artifact import writing
from rolecast.store.fencing import take_attempt
from rolecast.types import ImitationTerm, Objective
from tests.tiny import tiny_team
from tests.weed import S3Server

CONFIG = RunConfig(name="here")


@pytest.fixture
def location(weed: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in weed.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ROLECAST_WORKDIR", str(tmp_path / "one"))
    return f"s3://{weed.make_bucket(f'run-{uuid.uuid4().hex[:12]}')}/runs/here"


def on_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, location: str) -> Run:
    monkeypatch.setenv("ROLECAST_WORKDIR", str(tmp_path / "two"))
    return open_run(location)


def make(run: Run, path: Path, text: str = "x") -> Path:
    with writing(path, "model", {}) as partial:
        (partial / "file").write_text(text)
    return path


def test_a_run_is_created_once_and_opened_by_its_address(location: str) -> None:
    create(location, CONFIG)
    create(location, CONFIG)
    assert open_run(location).config == CONFIG
    with pytest.raises(InputError, match=r"holds a run with another config \(differs in seed from 0 to 1\)"):
        create(location, RunConfig(name="here", seed=1))
    with pytest.raises(InputError, match="is not a run"):
        open_run(f"{location}-other")


def test_an_artifact_is_found_on_another_machine(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(location, CONFIG)
    assert not run.has(run.model("sft"))
    run.publish(make(run, run.model("sft")))
    there = on_another_machine(monkeypatch, tmp_path, location)
    assert there.path != run.path
    assert there.has(there.model("sft"))
    assert (there.model("sft") / "file").read_text() == "x"


def test_records_follow_and_the_folders_own_are_kept(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(location, CONFIG)
    metrics = run.stage("rl") / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.write_text("1\n")
    run.record(metrics)
    there = on_another_machine(monkeypatch, tmp_path, location)
    file = there.recall(there.stage("rl") / "metrics.jsonl")
    assert file.read_text() == "1\n"
    file.write_text("1\n2\n")
    assert there.recall(file).read_text() == "1\n2\n"


def test_what_a_killed_upload_left_does_not_block_the_next(location: str, weed: S3Server) -> None:
    run = create(location, CONFIG)
    assert run.store is not None
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    for name, data in ((".claim", b"of a process that is no more"), ("file", b"half")):
        weed.client.put_object(
            bucket_name=bucket, object_name=f"{prefix}/rl/best/step-000010/{name}", data=io.BytesIO(data), length=len(data)
        )
    run.publish(make(run, run.stage("rl") / "best" / "step-000010"))
    assert run.store.committed("rl/best/step-000010")


def test_an_artifact_is_replaced_and_discarded_in_both_places(location: str) -> None:
    run = create(location, CONFIG)
    assert run.store is not None
    path = run.stage("rl") / "trajectories" / "step-000001"
    for text in ("first", "second"):  # the step is done again after a crash
        run.discard(path)
        run.publish(make(run, path, text))
    assert run.store.get("rl/trajectories/step-000001/file") == b"second"
    assert run.artifacts(path.parent) == [path]
    run.discard(path)
    assert (run.artifacts(path.parent), path.exists()) == ([], False)


def test_each_attempt_has_a_number_of_its_own(location: str) -> None:
    run = create(location, CONFIG)
    assert run.store is not None
    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(lambda _: take_attempt(open_run(location).store), range(4)))  # type: ignore[arg-type]
    assert sorted(numbers) == [1, 2, 3, 4]


def test_two_machines_do_not_train_one_run(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "LEASE_SECONDS", 0.9)
    run = create(location, CONFIG)
    with working(run, "sft", training=True):
        assert run.attempt == 1
        there = on_another_machine(monkeypatch, tmp_path, location)
        with pytest.raises(InputError, match=rf"{location} is being trained by"), working(there, "rl", training=True):
            pytest.fail("both train")
        with working(there, "eval_sft"):  # which only reads what training made
            assert there.attempt == 0
    with working(there, "rl", training=True):
        assert there.attempt == 2


def test_a_learner_that_was_replaced_publishes_checkpoints_and_records_nothing(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fencing, "LEASE_SECONDS", 0.3)
    monkeypatch.setattr(fencing, "_keep", lambda *_: None)  # its machine stands still
    run = create(location, CONFIG)
    made = make(run, run.stage("rl") / "best" / "step-000001")
    metrics = run.stage("rl") / "metrics.jsonl"
    metrics.write_text("1\n")
    stage = ExitStack()
    stage.enter_context(working(run, "rl", training=True))
    there = on_another_machine(monkeypatch, tmp_path, location)
    with working(there, "rl", training=True):
        writes: list[Callable[[], Any]] = [
            lambda: run.publish(made),
            lambda: run.record(metrics),
            lambda: run.discard(made),
            lambda: checkpoints.save(run, "rl", 1, learner(), {}, keep=2),
        ]
        for write in writes:
            with pytest.raises(FencedError):
                write()
        assert not list((run.stage("rl") / "checkpoints").glob("*"))  # no node begins to upload its part
        assert there.artifacts(there.stage("rl") / "checkpoints") == []
        with pytest.raises(FencedError):
            stage.close()  # it would note the stage's seconds


def learner() -> Learner:
    objective = Objective("o", "shared", 1e-3, imitation=ImitationTerm())
    return make_learner([objective], tiny_team(), OptimizerConfig(), 10, 0)


def test_the_newest_sound_checkpoint_is_found_and_older_ones_are_pruned(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create(location, CONFIG)
    assert run.store is not None
    assert checkpoints.newest(run, "rl", ALONE) is None
    for step in (1, 2, 3):
        checkpoints.save(run, "rl", step, learner(), {"step": step}, keep=2)
    assert run.store.artifacts("rl/checkpoints") == ["rl/checkpoints/step-000002", "rl/checkpoints/step-000003"]
    there = on_another_machine(monkeypatch, tmp_path, location)
    found = checkpoints.newest(there, "rl", ALONE)
    assert found is not None
    assert (found.step, found.progress) == (3, {"step": 3})


def test_a_damaged_checkpoint_is_passed_over(location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(location, CONFIG)
    assert run.store is not None
    for step in (1, 2):
        checkpoints.save(run, "rl", step, learner(), {}, keep=2)
    run.store.put("rl/checkpoints/step-000002/progress.json", b'{"not": "what was written"}')
    there = on_another_machine(monkeypatch, tmp_path, location)
    found = checkpoints.newest(there, "rl", ALONE)
    assert found is not None
    assert found.step == 1
