"""What made a run: the commit of the code, the command, the machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rolecast import origin
from rolecast.config import RunConfig
from rolecast.errors import ArtifactError
from rolecast.stages import working as working_module
from rolecast.stages.report import origin_of
from rolecast.stages.run import create
from rolecast.stages.working import origins, working


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (origin.COMMIT, origin.COMMAND):
        monkeypatch.delenv(name, raising=False)


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def test_a_commit_is_the_sources_and_tells_what_is_not_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert origin.commit(tmp_path) == "unknown"
    git(tmp_path, "init", "-q")
    assert origin.commit(tmp_path) == "unknown"  # nothing is committed yet
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "a")
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "loose").write_text("no part of it")
    assert origin.commit(tmp_path) == head[:12]
    (tmp_path / "a").write_text("b")
    assert origin.commit(tmp_path) == f"{head[:12]}-changed"
    monkeypatch.setenv(origin.COMMIT, "0123abc")
    assert origin.commit(tmp_path) == "0123abc"


def test_a_command_is_what_a_person_gave_also_in_the_processes_that_it_starts() -> None:
    origin.begin(["compare", "--set", "name=two words"])
    origin.begin(["pipeline", "run"])  # in a process that the first one started
    assert origin.origin()["command"] == "rolecast compare --set 'name=two words'"


def test_a_machine_is_its_cores_and_processor() -> None:
    assert re.match(r"\d+ cores of .+, \d+ threads", origin.machine())


def test_a_run_notes_once_what_made_each_of_its_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create(tmp_path / "run", RunConfig())
    made = [{"commit": commit, "command": command, "machine": "m"} for commit, command in (("a", "x"), ("a", "x"), ("b", "x"), ("b", "y"))]
    for stage, one in zip(("sft", "sft", "sft", "rl"), made, strict=True):
        monkeypatch.setattr(working_module, "origin", lambda one=one: one)
        with working(run, stage):
            pass
    assert origins(run) == {"sft": [made[0], made[2]], "rl": [made[3]]}
    assert origin_of(run) == {"commits": ["a", "b"], "commands": ["x", "y"], "machines": ["m"]}
    (run.path / "origins.json").write_text("{")
    with pytest.raises(ArtifactError, match=r"origins\.json is damaged"):
        origins(run)
