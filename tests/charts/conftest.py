"""helm and kubectl for the session, fetched where they are missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.charts.rendering import INSTALLS, ROOT, Helm


@pytest.fixture(scope="session")
def tools() -> Path:
    result = subprocess.run(["bash", "scripts/kubernetes_tools.sh"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if result.returncode:
        pytest.skip(f"helm and kubectl cannot be had: {result.stderr.strip().splitlines()[-1]}")
    return ROOT / ".tools"


@pytest.fixture(scope="session")
def helm3(tools: Path) -> Helm:
    return Helm(tools / "helm3")


@pytest.fixture(scope="session")
def helm4(tools: Path) -> Helm:
    return Helm(tools / "helm4")


@pytest.fixture(scope="session", params=["helm3", "helm4"])
def helm(request: pytest.FixtureRequest) -> Helm:
    found: Helm = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=list(INSTALLS))
def install(request: pytest.FixtureRequest) -> str:
    return str(request.param)
