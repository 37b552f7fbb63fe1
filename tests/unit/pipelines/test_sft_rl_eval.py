from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rolecast.errors import InputError
from rolecast.launching.local_pipeline import compile_pipeline


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    out = tmp_path_factory.mktemp("pipeline") / "pipeline.yaml"
    compile_pipeline(out)
    text = out.read_text()
    return text, next(yaml.safe_load_all(text))


def test_compiling_is_deterministic(compiled: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    compile_pipeline(tmp_path / "again.yaml")
    assert (tmp_path / "again.yaml").read_text() == compiled[0]


def test_no_step_is_cached_and_every_step_takes_the_image_from_the_parameter(compiled: tuple[str, dict[str, Any]]) -> None:
    tasks = compiled[1]["root"]["dag"]["tasks"]
    assert len(tasks) == 6
    assert all(not task["cachingOptions"].get("enableCache", False) for task in tasks.values())
    images = {executor["container"]["image"] for executor in compiled[1]["deploymentSpec"]["executors"].values()}
    assert all("inputs.parameters" in image for image in images), images


def test_steps_install_nothing_at_run_time(compiled: tuple[str, dict[str, Any]]) -> None:
    assert "pip install" not in compiled[0]


def test_rl_starts_after_sft_was_evaluated(compiled: tuple[str, dict[str, Any]]) -> None:
    tasks = compiled[1]["root"]["dag"]["tasks"]
    assert set(tasks["train-2"]["dependentTasks"]) >= {"train", "evaluate"}


@pytest.mark.parametrize(
    ("name", "said"), [("dir.yaml", "is a folder"), (300 * "a" + ".yaml", "cannot be written"), ("p.txt", "ends in .yaml")]
)
def test_a_place_that_takes_no_file_is_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "dir.yaml").mkdir()
    with pytest.raises(InputError, match=said):
        compile_pipeline(tmp_path / name)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no directory"):
        compile_pipeline(tmp_path / "none" / "p.yaml")
