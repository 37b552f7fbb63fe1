"""The wheel that is built has what runs need besides modules, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scripts import wheel_contents

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without isolation, by the backend that is installed with the tests."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (found,) = out.glob("*.whl")
    return found


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_it_has_every_file_of_both_packages_and_no_other(wheel: Path) -> None:
    assert wheel_contents.main(str(wheel)) == 0


@pytest.mark.parametrize(
    "name",
    [
        "rolecast_pipelines/schedule.py",
        "rolecast/methods/decor/prompts/",
        "rolecast/judge/prompts/",
        "rolecast/evaluation/templates/",
    ],
)
def test_it_has_pipelines_prompts_and_templates(wheel: Path, name: str) -> None:
    assert any(found.startswith(name) for found in names(wheel)), name


def test_what_is_missing_and_what_is_foreign_is_found(wheel: Path, tmp_path: Path) -> None:
    lost = next(name for name in sorted(names(wheel)) if "/prompts/" in name)
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(tmp_path / "a.whl", "w") as new:
        for name in old.namelist():
            if name != lost:
                new.writestr(name, old.read(name))
        new.writestr("tests/conftest.py", "")
    assert wheel_contents.main(str(tmp_path / "a.whl")) == 1
    assert wheel_contents.missing(names(tmp_path / "a.whl")) == [lost]
    assert wheel_contents.foreign(names(tmp_path / "a.whl")) == ["tests/conftest.py"]
