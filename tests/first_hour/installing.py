"""Installing, and README's first commands."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable

from tests.first_hour.place import Place

Line = tuple[str, Callable[[Place], None]]


def version(place: Place) -> None:
    done = place.run("--version")
    assert done.code == 0
    assert re.search(r"\d+\.\d+", done.out)


def needs(place: Place) -> None:
    text = (place.root / "README.md").read_text()
    for word in ("Python", "GB", "arxiv.org"):
        assert word in text, word


def tools(place: Place) -> None:
    """Two binaries, and no environment of gigabytes."""
    done = subprocess.run(["make", "-n", "tools"], cwd=place.root, capture_output=True, text=True, check=True)
    assert "setup.sh" not in done.stdout


def passes(place: Place, tests: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests]
    done = subprocess.run(command, cwd=place.root, env=place.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


def parts(place: Place) -> None:
    """Every extra alone, every command's missing package in one line."""
    passes(place, "tests/extras")


def documents(place: Place) -> None:
    """README's Python runs as it stands; the reference of the config is that of the code."""
    passes(place, "tests/unit/test_docs.py")


def proposals(place: Place) -> None:
    run = place.run_of("first")
    done = place.run("ask", "--run", run)
    assert done.code == 0, done.all[-2000:]
    assert done.all.count("?") >= 3


def answer(place: Place) -> None:
    run = place.run_of("first")
    question = "Who is the mentor of nobody at all?"
    told = place.run("ask", question, "--run", run)
    assert told.code == 0, told.all[-2000:]
    quiet = place.run("ask", question, "--run", run, "--quiet")
    assert quiet.code == 0
    assert len(quiet.out.splitlines()) <= 1 < len(told.out.splitlines())


def own_data(place: Place) -> None:
    typed = ("pipeline", "run", "--local", "--config", "configs/own_data.yaml", "--run", str(place.folder / "own-data"))
    done = place.run(*typed, seconds=900, at=place.root)
    assert done.code == 0, done.all[-3000:]


LINES: list[Line] = [
    ("--version", version),
    ("README says what is needed, and names the papers", needs),
    ("make tools builds no environment", tools),
    ("each extra works alone; a missing package is one line", parts),
    ("README's Python and the config's reference are those of the code", documents),
    ("ask without a question proposes three", proposals),
    ("ask shows what was searched and found; --quiet the answer alone", answer),
    ("a run on own data, in minutes, without a GPU", own_data),
]
