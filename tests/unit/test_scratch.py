"""Temporary folders: gone with the process that made them, however it ends, and with the next one where it was killed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rolecast
from rolecast import scratch as module
from rolecast.data.jsonl import JsonlWriter
from rolecast.processes import PARENT, child_of_this
from rolecast.scratch import PLACE, PREFIX, clear, clear_own, kept, own, scratch, scratch_in

ROOT = Path(rolecast.__file__).parent
MADE = """
import os, signal, sys
from rolecast.scratch import kept, leave, own, scratch
from rolecast.signals import signals_raise
file = kept("thing") / "file"
file.write_text("x")
print(own(), flush=True)
"""
ENDS = {  # code and what it ends with
    "at its end": ("", 0),
    "by an error": ("raise ValueError", 1),
    "by sys.exit": ("sys.exit(3)", 3),
    "at once": ("leave(4)", 4),
    "told to end": ("with signals_raise(): os.kill(os.getpid(), signal.SIGTERM)", 143),
    "by a second Ctrl-C": (
        "with signals_raise():\n try: os.kill(os.getpid(), signal.SIGINT)\n finally: os.kill(os.getpid(), signal.SIGINT)",
        130,
    ),
}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory of this process, which has made nothing yet, and of those that it starts."""
    monkeypatch.setattr(module, "_OWN", [])
    monkeypatch.delenv(PLACE, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def started(code: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MADE + code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **variables}
    )


def folder_of(process: subprocess.Popen[str]) -> Path:
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


@pytest.mark.parametrize("end", ENDS)
def test_a_process_leaves_nothing_behind_however_it_ends(temporary: Path, end: str) -> None:
    code, status = ENDS[end]
    process = started(code)
    assert folder_of(process).parent == temporary
    assert process.wait(60) == status
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_the_next_one_clears_and_what_a_living_one_has_stays(temporary: Path) -> None:
    killed, living = started("signal.pause()"), started("signal.pause()")
    left, held = folder_of(killed), folder_of(living)
    try:
        killed.kill()
        killed.wait(60)
        (temporary / "of-others").mkdir()
        (temporary / f"{PREFIX}file").write_text("x")
        assert left.exists()
        with scratch("next") as folder:
            assert folder.parent == own()
            assert {path.name for path in temporary.iterdir()} == {held.name, own().name, "of-others", f"{PREFIX}file"}
            assert len(list(held.glob("*/file"))) == 1
        assert not folder.exists()
    finally:
        living.kill()
        living.wait(60)


def test_what_is_anothers_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (temporary / f"{PREFIX}left").mkdir()
    (temporary / f"{PREFIX}link").symlink_to(temporary / "target", target_is_directory=True)
    (temporary / "target").mkdir()
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    clear(temporary)
    assert (temporary / f"{PREFIX}left").exists()
    monkeypatch.undo()
    clear(temporary)
    assert {path.name for path in temporary.iterdir()} == {f"{PREFIX}link", "target"}


def test_a_childs_folder_goes_with_its_parents(temporary: Path) -> None:
    variables = child_of_this()
    assert variables == {PARENT: str(os.getpid()), PLACE: str(own())}
    child = started("signal.pause()", **variables)
    assert folder_of(child).parent == own()
    child.kill()
    child.wait(60)
    clear_own()
    assert list(temporary.iterdir()) == []
    orphan = started("", **variables)  # whose parent has ended
    assert folder_of(orphan).parent == temporary
    orphan.wait(60)
    assert list(temporary.iterdir()) == []


def test_a_folder_that_was_cleared_while_it_was_made_is_made_anew(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, seen = module.fcntl.flock, list[int]()

    def late(lock: int, how: int) -> None:
        seen.append(lock)
        if len(seen) == 1:
            clear(temporary)  # calls it for the second time
        flock(lock, how)

    monkeypatch.setattr(module.fcntl, "flock", late)
    assert own().is_dir()
    assert list(temporary.iterdir()) == [own()]


def test_a_folder_within_another_place_goes_too(temporary: Path) -> None:
    run = temporary / "run"
    (run / f".{PREFIX}left").mkdir(parents=True)

    def fails() -> None:
        with scratch_in(run) as folder:
            assert list(run.iterdir()) == [folder]
            assert folder.name.startswith(".")
            assert own().parent == temporary
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fails()
    assert list(run.iterdir()) == []
    with scratch_in(run):
        clear_own()
        assert list(run.iterdir()) == []
    assert kept("thing").parent.parent == temporary


def test_rows_that_were_being_written_go_with_their_process(temporary: Path) -> None:
    code = """
from pathlib import Path
from rolecast.data.jsonl import JsonlWriter
with JsonlWriter(Path("%s/rows.jsonl")) as out:
    out.write({"a": 1})
    %s
"""
    data = temporary / "data"
    for end, status in (("leave(4)", 4), ("os.kill(os.getpid(), signal.SIGKILL)", -9)):
        process = started(code % (data, end))
        folder_of(process)
        assert process.wait(60) == status
    [of_killed] = data.iterdir()
    with JsonlWriter(data / "rows.jsonl") as out:
        out.write({"a": 1})
        assert not of_killed.exists()
    assert [path.name for path in data.iterdir()] == ["rows.jsonl"]


def test_a_fork_has_a_folder_of_its_own_and_leaves_the_others(temporary: Path) -> None:
    mine = own()
    if not (pid := os.fork()):
        os._exit(not (own() != mine and own().is_dir() and (clear_own() or mine.is_dir())))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(temporary.iterdir()) == [mine]


def test_nothing_else_makes_temporary_files_or_ends_a_process_at_once() -> None:
    """What is made elsewhere would stay where a process ends at once, or is killed."""
    found = set()
    for path in [*ROOT.rglob("*.py"), *(ROOT.parents[1] / "pipelines").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "tempfile":
                found.add((path.name, "import"))
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and (node.value.id, node.attr[:5]) in (("os", "_exit"), ("tempfile", node.attr[:5]))
            ):
                found.add((path.name, node.attr))
    # Copies of what lies in a store, and kernels that were compiled: found again by the next process.
    lasting = {("run.py", "gettempdir"), ("version.py", "gettempdir"), ("vllm_api.py", "gettempdir")}
    assert found == {("scratch.py", "_exit"), ("scratch.py", "mkdtemp"), ("scratch.py", "gettempdir"), *lasting}
