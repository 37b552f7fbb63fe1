"""Locks pin what the extras ask for, at versions that are tested together."""

from __future__ import annotations

import copy
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.images.dockerfiles import CUDA_PARTS, IMAGES, PARTS, ROOT, locked

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS = [(part, IMAGES / part / "requirements.lock") for part in PARTS]
LOCKS += [(part, IMAGES / part / "requirements-cuda.lock") for part in CUDA_PARTS]
every = pytest.mark.parametrize(
    ("part", "lock"), LOCKS, ids=lambda value: f"{value.parent.name}/{value.name}" if isinstance(value, Path) else ""
)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(project: dict[str, Any], extra: str) -> list[Requirement]:
    """Those of the project and of the extra, with the extras that it names."""
    found = [Requirement(text) for text in project["dependencies"]]
    for text in project["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            found += [one for name in sorted(requirement.extras) for one in requirements(project, name)]
        elif requirement.marker is None or requirement.marker.evaluate():
            found.append(requirement)
    return found


def lacking(project: dict[str, Any], extra: str, pins: dict[str, str]) -> list[str]:
    """Requirements that the pins do not meet."""

    def met(one: Requirement) -> bool:
        version = pins.get(normal(one.name))
        return version is not None and one.specifier.contains(version, prereleases=True)

    return [str(one) for one in requirements(project, extra) if not met(one)]


@pytest.mark.parametrize("lock", [*(lock for _, lock in LOCKS), IMAGES / "build.lock"], ids=lambda lock: f"{lock.parent.name}/{lock.name}")
def test_every_line_is_one_version_of_one_package(lock: Path) -> None:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert not [line for line in lines if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*==\d[\w.]*( --hash=sha256:[0-9a-f]{64})?", line)]
    names = [line.partition("==")[0] for line in lines]
    assert len(names) == len(set(names))
    bare = [line.partition("==")[0] for line in lines if "--hash" not in line]
    assert bare == ["torch"] * ("torch" in names and "-cuda" not in lock.name), (
        "pip installs nothing without a hash beside those that have one"
    )


def test_one_version_of_a_package_is_one_file_in_every_lock() -> None:
    """Locks are for one Python and platform: two hashes would say that one of them was written for another."""
    found: dict[str, set[str]] = {}
    for lock in [*(lock for _, lock in LOCKS), IMAGES / "build.lock"]:
        for line in lock.read_text().splitlines():
            pin, _, digest = line.partition(" --hash=sha256:")
            if digest:
                found.setdefault(pin, set()).add(digest)
    assert not {pin: digests for pin, digests in found.items() if len(digests) > 1}


@every
def test_the_lock_holds_what_the_extra_asks_for(part: str, lock: Path) -> None:
    assert not lacking(PROJECT, part, locked(lock)), f"run images/lock.sh for {lock.parent.name}"


@pytest.mark.parametrize(
    ("part", "lock"), [(part, lock) for part, lock in LOCKS if part not in ("control", "learner")], ids=lambda value: str(value)[-40:]
)
def test_services_can_trace_with_what_their_image_has(part: str, lock: Path) -> None:
    assert not lacking(PROJECT, "otel", locked(lock)), f"run images/lock.sh for {part}"


@pytest.mark.parametrize("part", PARTS)
def test_a_new_requirement_is_missed(part: str) -> None:
    pins = locked(IMAGES / part / "requirements.lock")
    changed = copy.deepcopy(PROJECT)
    changed["optional-dependencies"][part] += ["left-out>=1", "pydantic>=1000"]
    assert lacking(changed, part, pins) == ["left-out>=1", "pydantic>=1000"]


def test_a_new_requirement_of_a_shared_extra_is_missed() -> None:
    changed = copy.deepcopy(PROJECT)
    changed["optional-dependencies"]["s3"].append("left-out")
    for part in PARTS:
        assert "left-out" in " ".join(lacking(changed, part, {})), part


@pytest.mark.parametrize("part", PARTS)
def test_cpu_images_have_the_versions_that_are_tested_together(part: str) -> None:
    tested = {
        normal(name): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements/constraints.txt").read_text(), re.MULTILINE)
    }
    pins = locked(IMAGES / part / "requirements.lock")
    assert not {name: (pins[name], version) for name, version in tested.items() if name in pins and pins[name] != version}


@pytest.mark.parametrize("part", PARTS)
def test_cpu_images_carry_no_cuda(part: str) -> None:
    assert not [name for name in locked(IMAGES / part / "requirements.lock") if name.startswith(("nvidia-", "cuda-")) or name == "triton"]


@pytest.mark.parametrize("part", ["control", "judge"])
def test_slim_images_carry_no_torch(part: str) -> None:
    assert not {"torch", "transformers", "faiss-cpu", "vllm"} & set(locked(IMAGES / part / "requirements.lock"))


@pytest.mark.parametrize(
    "lock",
    [lock for _, lock in LOCKS if lock.parent.name in ("control", "retriever", "rollout")],
    ids=lambda lock: f"{lock.parent.name}/{lock.name}",
)
def test_images_of_pipeline_steps_carry_kfp(lock: Path) -> None:
    """Components install nothing when they start: Kubeflow runs a step with the kfp that its image has."""
    assert "kfp" in locked(lock)


def test_a_list_of_packages_is_written_for_each_image(tmp_path: Path) -> None:
    """By the tool that is asked for; one that is not there is named, and nothing is built."""
    tool = tmp_path / "bin" / "cyclonedx-py"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$@" >>"$RECORD"\n')
    tool.chmod(0o755)
    environ = {"PATH": f"{tool.parent}:/usr/bin:/bin", "SBOM": str(tmp_path / "sbom"), "SBOM_ONLY": "1", "RECORD": str(tmp_path / "record")}
    command = ["bash", "images/build.sh", "judge", "rollout-cuda"]
    result = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 0, result.stderr
    first, second = (tmp_path / "record").read_text().splitlines()
    assert first.endswith(f"{tmp_path}/sbom/rolecast-judge.cdx.json images/judge/requirements.lock")
    assert second.endswith(f"{tmp_path}/sbom/rolecast-rollout-cuda.cdx.json images/rollout/requirements-cuda.lock")
    tool.unlink()
    result = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert (result.returncode, "pip install cyclonedx-bom" in result.stderr) == (2, True)
