"""Which way imports run, and that what describes a run needs no tensors."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

import rolecast
from rolecast.methods.registry import find, known

ROOT = Path(rolecast.__file__).parent
METHODS = [folder.name for folder in (ROOT / "methods").iterdir() if (folder / "__init__.py").exists()]
LAYERS = [  # a module imports those of its own line and of the lines above
    "exits",
    "errors formats spans folds types seeding reading",
    "ports",
    "leasing identity externals weights.settings rollout.engines.settings learner.settings rewards credit tags judge.kinds rollout.render world.grammar",
    "judge.evidence rollout.scheduler rollout.waits rollout.clock rollout.limits rollout.snapshot rollout.env wire.coordinator",
    "teachers.base",
    "methods.base",
    "methods.registry methods.untrained methods.one_answer methods.information methods.transcript teachers.examples teachers.drills",
    " ".join(f"methods.{name}" for name in METHODS),
    "judge.lexical judge.openai wire.judge config",
    "coordinator learner rollout",
    "stages cli",
]
APART = [  # of each line none imports another: what they share is on a line above
    {f"methods.{name}" for name in METHODS},
    {"coordinator", "learner", "rollout"},
]
# What puts a process together: a worker with its clients, the learner's job.
EDGES = {"rollout.app", "learner.main"}
RANK = {name: rank for rank, line in enumerate(LAYERS) for name in line.split()}


def layer(module: str) -> str | None:
    """The entry of `LAYERS` that a module (without `rolecast.`) falls under; None for one that is on no line."""
    parts = module.split(".")
    return next((name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in RANK), None)


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import; write the module's whole name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name.removeprefix("rolecast.") for name in found if name.startswith("rolecast.")}


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


EVERY = sorted(path for path in ROOT.rglob("*.py") if dotted(path) not in EDGES)
MODULES = [path for path in EVERY if layer(dotted(path))]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_import_runs_up(path: Path) -> None:
    own = layer(dotted(path))
    assert own is not None
    used = {name for module in imported(path) if (name := layer(module))}
    assert not [name for name in used if RANK[name] > RANK[own]]


@pytest.mark.parametrize("group", APART, ids=lambda group: sorted(group)[0])
def test_parts_that_are_apart_know_nothing_of_each_other(group: set[str]) -> None:
    for path in EVERY:
        own = {part for part in group if within(dotted(path), part)}
        others = {part for part in group - own for module in imported(path) if within(module, part)}
        assert not own or not others, f"{dotted(path)} imports {', '.join(sorted(others))}"


def within(module: str, part: str) -> bool:
    return f"{module}.".startswith(f"{part}.")


def test_no_files_import_each_other_in_a_circle() -> None:
    """Also not inside of functions or for types alone."""
    paths = {dotted(path).removesuffix(".__init__"): path for path in ROOT.rglob("*.py")}
    graph = {
        module: {found for name in imported(path) if (found := name if name in paths else name.rpartition(".")[0]) in paths} - {module}
        for module, path in paths.items()
    }
    assert list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names a circle


def test_every_preset_in_a_folder_is_declared() -> None:
    for name in METHODS:
        files = {path.stem for path in (ROOT / "methods" / name / "presets").glob("*")}
        assert files == set(find(name).presets)
    assert set(known()) >= set(METHODS)


def test_configs_and_methods_are_read_without_torch() -> None:
    code = """
import sys
class Heavy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "peft", "deepspeed", "tokenizers"):
            raise ImportError(f"{name} is not for this")
sys.meta_path.insert(0, Heavy())
from pathlib import Path
from rolecast.config import load_config
from rolecast.methods.registry import describe, find, known, make_method
seen = 0
for name in known():
    for preset in find(name).presets:
        config = load_config(Path(str(find(name).preset(preset))))
        method = make_method(config.method)
        assert any(stage.kind == "rl" for stage in method.schedule()) == method.trained
        seen += 1
assert seen >= 4 and describe()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
