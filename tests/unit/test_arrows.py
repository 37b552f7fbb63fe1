"""Which way imports run, and that what describes a run needs no tensors."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rolecast
from rolecast.methods.registry import find, known

ROOT = Path(rolecast.__file__).parent
METHODS = [folder.name for folder in (ROOT / "methods").iterdir() if (folder / "__init__.py").exists()]
LAYERS = [  # a module imports those of its own line and of the lines above
    "errors types seeding reading",
    "ports",
    "rewards.text credit tags judge.kinds rollout.render world.grammar",
    "judge.evidence rollout.env",
    "teachers.base",
    "methods.base",
    "methods.registry methods.one_answer teachers.examples teachers.drills",
    " ".join(f"methods.{name}" for name in METHODS),
    "judge.lexical judge.openai wire.judge config",
    "stages cli",
]
RANK = {name: rank for rank, line in enumerate(LAYERS) for name in line.split()}


def layer(module: str) -> str | None:
    """The entry of `LAYERS` that a module (without `rolecast.`) falls under; None for one that is on no line."""
    parts = module.split(".")
    return next((name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in RANK), None)


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rolecast":
            base = node.module.removeprefix("rolecast").lstrip(".")
            found |= {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
    return found


MODULES = [path for path in ROOT.rglob("*.py") if layer(".".join(path.relative_to(ROOT).with_suffix("").parts))]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_import_runs_up(path: Path) -> None:
    own = layer(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert own is not None
    used = {name for module in imported(path) if (name := layer(module))}
    assert not [name for name in used if RANK[name] > RANK[own]]
    assert not own.startswith("methods.") or own.split(".")[1] not in METHODS or not (used & {f"methods.{m}" for m in METHODS} - {own})


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
