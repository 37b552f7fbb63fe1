"""`python -m tests.first_hour [--only WORDS] [--setup]`: what somebody does in the first hour, in a fresh clone, a line each: pass or FAIL.

With --setup the clone gets an environment of its own by `make setup`, as README says (gigabytes); else it takes this one's packages.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.first_hour import clients, installing, runs
from tests.first_hour.place import Place

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.first_hour", description=__doc__)
    parser.add_argument("--only", help="lines whose words hold this")
    parser.add_argument("--setup", action="store_true", help="install what the clone wants")
    given = parser.parse_args(arguments)
    lines = [(part.__name__.rpartition(".")[2], title, play) for part in (installing, runs, clients) for title, play in part.LINES]
    chosen = [line for line in lines if not given.only or given.only in f"{line[0]}: {line[1]}"]
    failed = 0
    # Not ignored by what is started, as it is where the background of a shell began this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        place = clone(Path(folder), given.setup)
        for part, title, play in chosen:
            begun = time.monotonic()
            try:
                play(place)
                outcome = "pass"
            except Exception as error:
                failed += 1
                outcome = "FAIL"
                print(f"    {''.join(traceback.format_exception_only(error)).strip()[:2000]}", file=sys.stderr)
            print(f"{outcome}  {part}: {title} ({time.monotonic() - begun:.0f} s)", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} lines pass")
    return 1 if failed else 0


def clone(folder: Path, setup: bool) -> Place:
    root = folder / "rolecast"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(root)], check=True)
    if setup:
        subprocess.run(["make", "-s", "setup"], cwd=root, check=True)
    python = root / ".venv" / "bin" / "python" if setup else Path(sys.executable)
    (folder / "runs").mkdir()
    return Place(root, python, folder / "runs")


if __name__ == "__main__":
    sys.exit(main())
