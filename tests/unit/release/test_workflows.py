"""The public workflows run what is here, and a release names one version everywhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import release_version

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(workflow.read_text())["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_targets_scripts_and_charts_that_it_names_are_there(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in steps(workflow):
        run = step.get("run", "")
        assert {name for line in re.findall(r"^make ([a-z -]+)", run, re.MULTILINE) for name in line.split()} <= targets, run
        for script in re.findall(r"scripts/\S+\.py", run):
            assert (ROOT / script).is_file(), script


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_it_may_read_and_each_job_ends_in_time(workflow: Path) -> None:
    read = yaml.safe_load(workflow.read_text())
    assert read["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] for job in read["jobs"].values())


def test_a_change_is_linted_tested_rendered_and_built() -> None:
    run = "\n".join(step.get("run", "") for step in steps(ROOT / ".github" / "workflows" / "ci.yml"))
    for needed in ("make lint", "make test", "helm lint --strict", "helm template", "pip wheel", "wheel_contents.py"):
        assert needed in run, needed


def test_all_name_one_version_and_the_changelog_tells_of_it() -> None:
    said = release_version.versions()
    assert len(said) > 10
    assert len(set(said.values())) == 1, said
    (version,) = set(said.values())
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## (Unreleased \()?{re.escape(version)}\b", changes, re.MULTILINE)


def test_a_tag_of_another_version_is_refused(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "docker-bake.hcl", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "charts" / "rolecast", tmp_path / "charts" / "rolecast")
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 0.1.0\n")
    assert release_version.faults("v0.1.0", tmp_path) == []
    assert "pyproject.toml says 0.1.0" in release_version.faults("v0.2.0", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## Unreleased (0.1.0)\n")
    assert release_version.faults("v0.1.0", tmp_path) == ["CHANGELOG.md has no heading ## 0.1.0"]
