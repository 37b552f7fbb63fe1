"""The plugin of two slots as an installed distribution, and runs of it through the real commands. Other plugins take its place."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster
from tests.weed import S3Server

PLUGINS = Path(__file__).parents[1] / "plugins"
PRESET = PLUGINS / "duet_method" / "presets" / "tiny.yaml"
WHOLE = "model.lora=null"


def install(site: Path, distribution: str, entry: str) -> None:
    """What `pip install` leaves beside the code: metadata with the entry point."""
    info = site / f"{distribution.replace('-', '_')}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[rolecast.methods]\n{entry}\n")


def environment(site: Path, **extra: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(site), str(PLUGINS), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **extra}


class Duet:
    """Commands in an environment that has the plugin."""

    distribution, entry, preset = "duet-methods", "duet = duet_method.method:Duet", PRESET

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "site"
        install(self.site, self.distribution, self.entry)

    def start(self, *arguments: str, module: str = "rolecast.cli.main", **extra: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=environment(self.site, **extra), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def rolecast(self, *arguments: str, code: int = 0, **extra: str) -> str:
        process = self.start(*arguments, **extra)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == code, out[-3000:]
        return out

    def create(self, run: Path, *overrides: str) -> Path:
        self.rolecast("run", "create", str(run), "--config", str(self.preset), *_set(overrides))
        return run

    def train(self, run: Path, *stages: str) -> str:
        return "".join(self.rolecast("train", str(run), stage) for stage in stages)

    def start_over(self, run: Path, stage: str, zero: int, ranks: int = 2) -> subprocess.Popen[str]:
        """As `launching.local` starts it."""
        launch = ["--standalone", f"--nproc-per-node={ranks}", "-m", "rolecast.learner.main", stage, str(run)]
        return self.start(*launch, module="torch.distributed.run", ROLECAST_ZERO_STAGE=str(zero))

    def train_over(self, run: Path, stage: str, zero: int) -> str:
        out, _ = (process := self.start_over(run, stage, zero)).communicate(timeout=300)
        assert process.returncode == 0, out[-3000:]
        return out


def _set(overrides: tuple[str, ...]) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def rows(run: Path, stage: str) -> list[dict[str, Any]]:
    file = run / stage / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def slots(folder: Path) -> dict[str, str]:
    """A hash of each slot's weights; files that say where they came from are left out."""
    found = {}
    for place in sorted((folder / "slots").iterdir()):
        weights = b"".join(file.read_bytes() for file in sorted(place.glob("*.safetensors")))
        found[place.name] = hashlib.sha256(weights).hexdigest()
    return found


def outcome(run: Path, stages: tuple[str, ...]) -> dict[str, str]:
    """Hashes of everything that the stages decide."""
    files = [file for stage in stages for file in sorted((run / stage).glob("model/**/*.safetensors"))]
    files += [run / stage / "metrics.jsonl" for stage in stages]
    return {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@contextmanager
def cluster_of(team: Duet, name: str, folder: Path, weed: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The platform's parts as processes that have the plugin, for one run in a bucket of its own."""
    monkeypatch.setenv("PYTHONPATH", environment(team.site)["PYTHONPATH"])
    bucket = weed.make_bucket(f"{name}-{uuid.uuid4().hex[:8]}")
    made = Cluster(folder, weed, f"s3://{bucket}/runs/{name}")
    yield made
    made.stop()
