"""The number of threads is in a checkpoint: a lockstep run goes on with it, or says that it cannot be bitwise."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rolecast.config import make_config
from rolecast.learner.learner import make_learner
from rolecast.learner.ranks import ALONE
from rolecast.learner.settings import OptimizerConfig
from rolecast.stages import checkpoints
from rolecast.stages.run import Run
from rolecast.threads import CHOSEN, COUNT
from rolecast.types import ImitationTerm, Objective
from tests.tiny import tiny_team


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two of them here, chosen by ourselves, on four cores."""
    before = torch.get_num_threads()
    monkeypatch.setenv(COUNT, "2")
    monkeypatch.setenv(CHOSEN, "2")
    monkeypatch.setattr(checkpoints, "cores", lambda: 4)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def saved(folder: Path, count: int | None, lockstep: bool = True) -> Run:
    """A run whose checkpoint was written with so many threads, or by a version that does not say."""
    run = Run(folder / "run", make_config({"lockstep": lockstep}, "here"))
    here = torch.get_num_threads()
    torch.set_num_threads(count or here)
    learner = make_learner([Objective("sft", "shared", 1e-3, imitation=ImitationTerm())], tiny_team(), OptimizerConfig(), 5, 0)
    checkpoints.save(run, "sft", 3, learner, {}, 2)
    torch.set_num_threads(here)
    manifest = run.path / "sft" / "checkpoints" / "step-000003" / "manifest.json"
    said = json.loads(manifest.read_text())
    assert said["provenance"].pop("threads") == (count or here)
    if count is None:
        manifest.write_text(json.dumps(said))
    return run


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("count", "lockstep", "after", "said"),
    [
        (2, True, 2, ""),
        (3, True, 3, ""),
        (3, False, 2, ""),
        (9, True, 2, "it was written with 9 threads, and there are 4 cores here; set OMP_NUM_THREADS to 9 if it must be"),
        (None, True, 2, "it does not say with how many threads it was written"),
    ],
)
def test_a_lockstep_run_goes_on_with_its_threads_or_says_that_it_cannot(
    tmp_path: Path, count: int | None, lockstep: bool, after: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = saved(tmp_path, count, lockstep)
    with caplog.at_level(logging.WARNING):
        found = checkpoints.newest(run, "sft", ALONE)
    assert found is not None
    assert (found.threads, torch.get_num_threads()) == (count, after)
    assert [record.getMessage().partition(" cannot go on bitwise: ")[2] for record in caplog.records] == ([said] if said else [])


@pytest.mark.usefixtures("threads")
def test_a_users_own_number_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv(CHOSEN)
    run = saved(tmp_path, 3)
    with caplog.at_level(logging.WARNING):
        checkpoints.newest(run, "sft", ALONE)
    assert torch.get_num_threads() == 2
    assert "written with 3 threads, and OMP_NUM_THREADS says 2; unset it" in caplog.text
