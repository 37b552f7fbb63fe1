"""docs/new_method.md, followed to the letter from an empty folder: as a package and as a folder of this repository."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rolecast.agent.core import Asked
from rolecast.config import RunConfig, load_config
from rolecast.errors import InputError
from rolecast.methods import registry
from rolecast.rollout.render import Renderer
from rolecast.stages.evaluate import evaluate
from rolecast.stages.inputs import inputs
from rolecast.stages.run import create
from rolecast.stages.serve import open_agent
from rolecast.stages.sft import draw_block
from rolecast.stages.train import train
from rolecast.world.tokenizer import demo_tokenizer
from tests.new_method import PACKAGE, PAGE, written

TINY = [
    "threads=1", "model.scratch.hidden=48", "model.scratch.heads=2", "model.scratch.head_dim=32", "model.scratch.feed_forward=96",
    "data.world.entities={train: 150, dev: 60, test: 90}", "data.world.questions={train: 60, dev: 6, test: 10}",
    "stages.sft.steps=240", "stages.sft.drills=0", "stages.sft.optimizer={name: adamw}", "stages.sft.lr=5e-3",
    "stages.rl.steps=2", "stages.rl.questions=8", "stages.rl.group=4", "stages.rl.dev=6", "stages.rl.eval_every=2", "stages.rl.refill=4", "eval.n=10", "eval.bootstrap=100",
]  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where things are written; what was imported from there is forgotten."""
    yield tmp_path
    monkeypatch.undo()
    registry._plugins.cache_clear()
    registry._built_in.cache_clear()
    registry._classes.pop("rewrite", None)
    for name in [name for name in sys.modules if name in (PACKAGE, "rolecast.methods.rewrite")]:
        del sys.modules[name]


def installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pip makes of pyproject.toml: metadata with its entry point."""
    project = (place / "pyproject.toml").read_text()
    name, version = (re.search(rf'^{key} = "(.+)"$', project, re.MULTILINE)[1] for key in ("name", "version"))  # type: ignore[index]
    [entry] = re.findall(r'^rewrite = "(.+)"$', project, re.MULTILINE)
    info = place / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nrewrite = {entry}\n")
    monkeypatch.syspath_prepend(str(place))
    registry._plugins.cache_clear()


def as_package(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(place)
    installed(place, monkeypatch)


def as_folder_here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(place / "typed").rename(place / "rewrite")
    monkeypatch.setattr(registry.package, "__path__", [*registry.package.__path__, str(place)])
    importlib.invalidate_caches()
    registry._built_in.cache_clear()


def drawn(config: RunConfig) -> None:
    """The first rows of SFT."""
    [stage, _] = config.schedule
    method = config.method_in(stage)
    draw_block(config, stage, method, Renderer(demo_tokenizer(method.words, method.tags), method.tags), 0)


def config() -> RunConfig:
    return load_config(Path(str(registry.find("rewrite").preset())), TINY)


@pytest.mark.parametrize(("form", "origin"), [(as_package, "rewrite-method 0.1"), (as_folder_here, "built-in")])
def test_it_is_trained_evaluated_and_served(
    form: Callable[[Path, pytest.MonkeyPatch], None], origin: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form(place, monkeypatch)
    [row] = [row for row in registry.describe() if row["name"] == "rewrite"]
    assert (row["origin"], row["trained"], [role["name"] for role in row["roles"]]) == (origin, True, ["asker", "answerer"])
    run = create(place / "run", config())
    inputs(run)
    for stage in ("sft", "rl"):
        train(run, stage)
    rows = [json.loads(line) for line in (run.stage("rl") / "metrics.jsonl").read_text().splitlines()]
    assert {"reward/asker", "reward/answerer", "valid/asker"} <= set(rows[-1])
    assert json.loads((evaluate(run, "rl") / "result.json").read_text())["n"] == 10
    team = open_agent(run.path)

    async def asked() -> list[str]:
        await team.start()
        episode = await team.ask(Asked("Who is the mentor of Brol Tan?"))
        await team.stop()
        return [thread.role for thread in episode.threads]

    assert asyncio.run(asked())[0] == "asker"


def test_the_method_is_about_sixty_lines_in_one_module(place: Path) -> None:
    folder = written(place)
    lines = [line for line in (folder / "__init__.py").read_text().splitlines() if line.strip()]
    assert len(lines) <= 72
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*")) == [
        "__init__.py", "presets/demo.yaml", "prompts/answerer.jinja", "prompts/asker.jinja",
    ]  # fmt: skip


# What is refused


def edited(old: str, new: str, file: str = "__init__.py") -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1))

    return edit


MISTAKES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "prompts" / "asker.jinja").unlink(), "method rewrite has no prompts/asker.jinja in the folder of rewrite_method, which tells the role what to do"),
    (edited("question:", "{{ documents }} question:", "prompts/asker.jinja"), "the prompt of asker names 'documents', which the role does not see; it sees question"),
    (edited('frozenset({"question"})', 'frozenset({"question", "notes"})'), "role asker sees 'notes', which its state, State, does not have"),
    (edited("def teacher", "def tutor"), "method rewrite has no teacher: give it one (Rewrite.teacher), or set sft.steps to 0"),
    (edited('tagged("search"', 'tagged("query"'), "as asker its teacher RewriteTeacher says '<query>"),
    (edited('Literal["rewrite"] = "rewrite"', 'Literal["rewrote"] = "rewrote"'), "Rewrite.config_type: give its field `name` the default 'rewrite'"),
    (edited('Objective("grpo", "shared"', 'Objective("grpo", "planner"'), "stage 'rl' trains 'planner', which no role speaks with in it"),
]  # fmt: skip


@pytest.mark.parametrize(("mistake", "said"), MISTAKES, ids=[said[:30] for _, said in MISTAKES])
def test_a_mistake_is_one_line_before_any_training(
    mistake: Callable[[Path], object], said: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(written(place))
    installed(place, monkeypatch)
    with pytest.raises(InputError) as caught:
        drawn(config())
    text = str(caught.value)
    assert said in text
    assert "\n" not in text
    assert said.partition(" '<")[0] in PAGE.read_text()
