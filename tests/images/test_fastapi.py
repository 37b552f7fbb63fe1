"""Images on a GPU have an older FastAPI than those on CPUs, since vLLM asks for it: services start with both."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.images.dockerfiles import IMAGES, ROOT, locked

PINNED = {locked(lock)["fastapi"] for lock in IMAGES.glob("*/*.lock") if "fastapi" in locked(lock)}


@pytest.mark.slow
@pytest.mark.parametrize("pinned", sorted(PINNED - {version("fastapi")}))
def test_services_work_with_each_fastapi_that_images_have(pinned: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", f"--target={tmp_path}", f"fastapi=={pinned}"], check=True)
    parts = ["service/test_server.py", "retriever", "judge", "agent/test_app.py", "coordinator", "rollout/test_rollout_command.py"]
    tests = [str(ROOT / "tests" / "unit" / part) for part in parts]
    found = "import fastapi, sys, pytest; assert fastapi.__version__ == sys.argv[1]; sys.exit(pytest.main(['-q', *sys.argv[2:]]))"
    done = subprocess.run(
        [sys.executable, "-c", found, pinned, *tests],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


def test_there_is_an_older_one_to_try() -> None:
    assert len(PINNED) > 1
