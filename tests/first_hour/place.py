"""A fresh clone, and commands typed there."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.e2e.test_resume import CONFIG
from tests.weed import free_ports

ENTRY = "rolecast: "
# As README's small runs, but so short that a team need not be right.
SHORT = (
    CONFIG.replace("lockstep: true\n", "").replace("threads: 1\n", "").replace("steps: 320", "steps: 40").replace("drills: 32", "drills: 0")
)


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    errors: str

    @property
    def all(self) -> str:
        return self.out + self.errors

    @property
    def said(self) -> str:
        """The one line of a command that cannot go on. AssertionError if there is a traceback, or no such line, or several."""
        assert "Traceback" not in self.all, self.all[-3000:]
        lines = [line for line in self.all.splitlines() if line.startswith(ENTRY)]
        assert len(lines) == 1, f"{len(lines)} lines begin with {ENTRY!r}:\n{self.all[-2000:]}"
        return lines[0].removeprefix(ENTRY)


@dataclass(slots=True)
class Place:
    """`root`: the clone. `python`: of the environment that `make setup` made there, or of one that has the same packages."""

    root: Path
    python: Path
    folder: Path  # for runs
    made: dict[str, Path] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ROLECAST_", "OMP_", "GOMP_", "KMP_"))}
        paths = os.pathsep.join((str(self.root / "src"), str(self.root / "pipelines")))
        return {**kept, "PYTHONPATH": paths}

    def command(self, *arguments: str) -> list[str]:
        return [str(self.python), "-m", "rolecast.cli.main", *arguments]

    def run(self, *arguments: str, seconds: float = 400, at: Path | None = None, **variables: str) -> Done:
        """`at`: the folder where it is typed; that of the runs by default."""
        done = subprocess.run(
            self.command(*arguments),
            cwd=at or self.folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def refused(self, *arguments: str, code: int = 2, **variables: str) -> str:
        """The line that says why; nothing may have been trained before."""
        done = self.run(*arguments, **variables)
        said = done.said
        assert done.code == code, f"exit code {done.code}: {said}"
        assert "step" not in done.out.partition(ENTRY)[0], done.out
        return said

    def config(self, name: str = "config.yaml", text: str = SHORT) -> str:
        (self.folder / name).write_text(text)
        return name

    def run_of(self, name: str) -> str:
        """A finished run, made by whoever asks for it first."""
        if name not in self.made:
            done = self.run("pipeline", "run", "--local", "--config", self.config(), "--run", name, seconds=900)
            assert done.code == 0, done.all[-3000:]
            self.made[name] = self.folder / name
            (self.folder / f"{name}.out").write_text(done.all)
        return name

    def told_to_end(self, number: signal.Signals, ready: Callable[[], bool], *arguments: str) -> tuple[Done, list[str]]:
        """Sends the signal once `ready`; also the command that the last line says goes on."""
        process = subprocess.Popen(
            self.command(*arguments), cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        until(ready, process, 300)
        os.killpg(process.pid, number)
        out, errors = process.communicate(timeout=300)
        done = Done(process.returncode, out, errors)
        found = re.search(r"go on with `.*?(?:rolecast|rolecast\.cli\.main) (.*)`$", done.said)
        return done, shlex.split(found[1]) if found else []

    @contextmanager
    def serving(self, *arguments: str, ready: str = "/readyz", **variables: str) -> Iterator[str]:
        """The address of a service, from when it is ready until it was told to end."""
        [port] = free_ports(1)
        with (self.folder / f"served-{port}.log").open("w") as log:
            process = subprocess.Popen(
                self.command(*arguments, "--port", str(port), "--host", "127.0.0.1"), cwd=self.folder,
                env={**self.environment, **variables}, stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            )  # fmt: skip
            try:
                url = f"http://127.0.0.1:{port}"
                until(lambda: _answers(url + ready), process, 120)
                yield url
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(60)


def until(ready: Callable[[], bool], process: subprocess.Popen[str], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert process.poll() is None, f"it ended with {process.returncode}"
        assert time.monotonic() < deadline, f"not ready after {seconds:.0f} s"
        time.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
