"""A checkpoint that breaks off anywhere: the next start, here or on another machine, finds a complete one, and never one with NaN."""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from urllib3.exceptions import HTTPError

from rolecast.config import RunConfig
from rolecast.errors import DivergedError, StoreError
from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.ranks import ALONE
from rolecast.learner.settings import OptimizerConfig
from rolecast.ports import Store
from rolecast.stages import checkpoints
from rolecast.stages.run import Run
from rolecast.store import s3
from rolecast.store.artifact import MANIFEST, recover, writing
from rolecast.store.local import LocalStore
from rolecast.store.s3 import S3Store
from rolecast.types import Example, ImitationTerm, Objective
from tests.tiny import tiny_team
from tests.weed import S3Server

KEEP, STAGE, BROKEN = 2, "rl", 23
PORT = ("publish", "fetch", "committed", "artifacts", "put", "get", "keys", "delete")
CONFIG = RunConfig()


def learner_at(step: int) -> Learner:
    """Its weights say which step they are of; it has moments to save."""
    objective = Objective("o", "shared", 1e-3, imitation=ImitationTerm())
    learner = make_learner([objective], tiny_team(), OptimizerConfig(), 9, 0)
    learner.update([learner.cut(objective, [], [], [], {}, [Example((5, 6, 7), (False, True, True))])])
    return mark(learner, float(step))


def mark(learner: Learner, number: float) -> Learner:
    with torch.no_grad():
        for parameter in learner.team.parameters():
            parameter.fill_(number)
    return learner


def save(run: Run, step: int, learner: Learner) -> None:
    checkpoints.save(run, STAGE, step, learner, {"n": step}, KEEP)


def started(run: Run) -> int:
    """The step that a start in this run goes on from, after it was looked at as a resume does."""
    recover(run.path)
    found = checkpoints.newest(run, STAGE, ALONE)
    assert found is not None, "no checkpoint is left"
    assert found.progress == {"n": found.step}
    learner = learner_at(0)
    found.restore(learner)
    read = learner.team.read(found.path, ["shared"])
    assert {float(one) for tensor in read.values() for one in tensor.unique()} == {float(found.step)}
    return found.step


@dataclass
class Place:
    """Two complete checkpoints of a run, and the machine that wrote them."""

    root: Path
    store: Store

    def on(self, machine: str, store: Store | None = None) -> Run:
        path = self.root / machine
        path.mkdir(exist_ok=True)
        return Run(path, CONFIG, store or self.store)

    def check(self) -> set[int]:
        """The steps that a start finds where the writer was, and elsewhere."""
        return {started(self.on("here")), started(self.on(f"elsewhere-{uuid.uuid4().hex[:6]}"))}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template")
    place = Place(root, LocalStore(root / "store"))
    for step in (1, 2):
        save(place.on("here"), step, learner_at(step))
    return root


def copied(template: Path, root: Path) -> Place:
    shutil.copytree(template, root)
    return Place(root, LocalStore(root / "store"))


@dataclass
class Failing:
    """A store whose call number `at` fails, before it is made or after: then its answer is lost."""

    store: Store
    at: int
    after: bool
    calls: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.store, name)
        if name not in PORT:
            return real

        def call(*given: Any, **named: Any) -> Any:
            self.calls.append(name)
            fails = len(self.calls) - 1 == self.at
            if fails and not self.after:
                raise StoreError(f"{name} fails")
            answer = real(*given, **named)
            if fails:
                raise StoreError(f"the answer of {name} is lost")
            return answer

        return call


@pytest.mark.parametrize("after", [False, True])
def test_every_call_of_the_store_may_fail(template: Path, tmp_path: Path, after: bool) -> None:
    third = learner_at(3)
    for at in range(100):
        place = copied(template, tmp_path / str(at))
        failing: Any = Failing(place.store, at, after)
        try:
            save(place.on("here", failing), 3, third)
            break
        except StoreError:
            assert place.check() <= {2, 3}
            save(place.on("here"), 4, mark(learner_at(4), 4.0))  # and the run goes on
            assert place.check() == {4}
    else:
        pytest.fail("it never ended")
    assert at > 3, failing.calls
    assert place.check() == {3}


def dying(boundary: int, within: Path, work: Callable[[], None]) -> bool:
    """Does `work` in a child that is gone, as by SIGKILL, before its file operation number `boundary`; whether it was done before that."""
    child = os.fork()
    if not child:
        count = -1

        def reached() -> None:
            nonlocal count
            count += 1
            if count == boundary:
                os.kill(os.getpid(), signal.SIGKILL)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if (writes or event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link")) and str(within) in str(arguments[0]):
                reached()

        fsync = os.fsync
        os.fsync = lambda descriptor: [reached(), fsync(descriptor)][1]  # type: ignore[func-returns-value]
        sys.addaudithook(hook)
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the child failed otherwise"
    return os.WIFEXITED(status)


@pytest.mark.slow
def test_every_write_fsync_and_rename_may_be_the_last(template: Path, tmp_path: Path) -> None:
    """Of what is written here and of what is copied into the store; also when older checkpoints are deleted."""
    third, found = learner_at(3), []
    for boundary in range(1000):
        place = copied(template, tmp_path / "now")
        over = dying(boundary, tmp_path, lambda: save(place.on("here"), 3, third))  # noqa: B023
        steps = place.check()
        assert steps <= {2, 3}
        found.append(max(steps))
        shutil.rmtree(tmp_path / "now")
        if over:
            break
    print(f"{boundary} boundaries; the new checkpoint counts from number {found.index(3)} on")
    assert boundary > 30
    assert found == sorted(found)  # once it is there it stays
    assert steps == {3}


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_every_request_of_an_upload_may_fail(weed: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    monkeypatch.setattr(s3, "PATIENCE", 0.0)
    bucket, third = weed.make_bucket(f"faults-{uuid.uuid4().hex[:12]}"), learner_at(3)
    for at in range(400):
        place = Place(tmp_path / str(at), S3Store.from_environment(bucket, f"runs/{at}", weed.environ))
        place.root.mkdir()
        for step in (1, 2):
            save(place.on("here"), step, mark(third, step))
        failing = S3Store.from_environment(bucket, f"runs/{at}", weed.environ)
        urlopen, numbers = failing._http.urlopen, itertools.count()

        def request(*given: Any, **named: Any) -> Any:
            fails = next(numbers) == at  # noqa: B023
            if fails and not after:
                raise HTTPError("no connection")
            answer = urlopen(*given, **named)  # noqa: B023
            if fails:
                raise HTTPError("the answer is lost")
            return answer

        failing._http.urlopen = request  # type: ignore[method-assign]
        try:
            save(place.on("here", failing), 3, mark(third, 3))
            break
        except StoreError:
            assert place.check() <= {2, 3}
        shutil.rmtree(place.root)
    else:
        pytest.fail("it never ended")
    print(f"{at} requests")
    assert at > 10
    assert place.check() == {3}


@pytest.mark.slow
def test_five_that_are_killed_at_any_moment(template: Path, tmp_path: Path) -> None:
    """Of a process that saves one checkpoint after the other."""
    rng = random.Random(BROKEN)
    for number in range(5):
        place = copied(template, tmp_path / str(number))
        learner = learner_at(3)
        child = os.fork()
        if not child:
            for step in range(3, 10**6):
                save(place.on("here"), step, mark(learner, float(step)))
        time.sleep(rng.uniform(0.2, 1.2))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status)
        assert min(place.check()) >= 2


@pytest.mark.parametrize("number", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["weights", "moments", "progress"])
def test_what_is_not_finite_is_no_checkpoint(template: Path, tmp_path: Path, where: str, number: float) -> None:
    place, learner = copied(template, tmp_path / "now"), learner_at(3)
    if where == "weights":
        with torch.no_grad():
            learner.team.trained("shared")[-1][1].view(-1)[-1] = number
    if where == "moments":
        [part] = learner.backend.optimizers["shared"].parts  # type: ignore[attr-defined]
        list(part.state.values())[-1]["exp_avg_sq"].view(-1)[0] = number
    with pytest.raises((DivergedError, ValueError)):
        checkpoints.save(place.on("here"), STAGE, 3, learner, {"n": number if where == "progress" else 3}, KEEP)
    assert place.check() == {2}
    assert place.store.artifacts(f"{STAGE}/checkpoints") == [f"{STAGE}/checkpoints/step-{step:06d}" for step in (1, 2)]


def test_files_are_on_the_disk_before_the_manifest_and_that_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power cut leaves is what was synced: a manifest that is there names only what is there too."""
    order: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noting(descriptor: int) -> None:
        order.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def renaming(self: Path, target: Path) -> Path:
        order.append(f"rename to {target.name}")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", noting)
    monkeypatch.setattr(Path, "rename", renaming)
    with writing(tmp_path / "a", "thing", {}) as partial:
        (partial / "below").mkdir()
        for name in ("one", "below/two"):
            (partial / name).write_text(name)
    assert order == ["two", "one", f".{MANIFEST}.tmp", ".a.partial", "below", "rename to a", tmp_path.name]
