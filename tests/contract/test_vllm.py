"""The tests of a real vLLM, in an interpreter that can import it: vLLM's packages and ours do not share an environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vllm_engine import HERE

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("ROLECAST_VLLM_PYTHON", "")
SEVERAL = ["tests/contract/test_engine.py", "tests/contract/test_vllm_weights.py", "tests/contract/test_vllm_served.py"]


@pytest.mark.slow
@pytest.mark.skipif(HERE, reason="vllm is in this environment: its tests run beside the others")
@pytest.mark.parametrize("file", SEVERAL)
def test_vllm_s_own_tests_pass_where_it_is_installed(file: str) -> None:
    if not PYTHON:
        pytest.skip("vllm is not installed: make an environment for it (docs/engines.md) and name its python in ROLECAST_VLLM_PYTHON")
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "pipelines"), str(ROOT)])
    done = subprocess.run(
        [PYTHON, "-m", "pytest", "-x", "-p", "no:cacheprovider", file, "-k", "vllm"], cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    sys.stdout.write(done.stdout[-4000:])
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert "passed" in done.stdout.splitlines()[-1], "nothing was tested"
