"""What the documentation says is what the code does: printed pages are current, examples are taken, snippets run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rolecast.cli import main
from rolecast.config import RunConfig, load_config
from rolecast.data.convert import FORMATS, convert, detect
from rolecast.data.records import read_corpus, read_questions
from rolecast.methods.registry import find, known
from rolecast.stages.inputs import inputs
from rolecast.stages.run import create
from rolecast.store.artifact import writing
from tests.tiny import TOKENIZER, tiny_model

ROOT = Path(__file__).parents[2]
README, DATA = (ROOT / "README.md").read_text(), (ROOT / "docs" / "data.md").read_text()
EXAMPLE = ("corpus.jsonl", "train.jsonl", "dev.jsonl", "test.jsonl")
OWN = [name for name in known() if find(name).__module__.startswith("rolecast.methods.")]


def script(name: str, *arguments: str) -> str:
    return subprocess.run([sys.executable, str(ROOT / "scripts" / name), *arguments], capture_output=True, text=True, check=True).stdout


def test_the_reference_of_the_config_is_current() -> None:
    assert script("config_reference.py") == (ROOT / "docs" / "config.md").read_text(), "run make reference"


def test_the_example_is_what_the_script_makes(tmp_path: Path) -> None:
    script("example_data.py", str(tmp_path))
    for name in EXAMPLE:
        assert (tmp_path / name).read_text() == (ROOT / "configs" / "example" / name).read_text(), "run make reference"


def test_the_config_for_own_data_finds_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run = create(tmp_path / "run", load_config(Path("configs/own_data.yaml")))
    inputs(run)
    assert (run.index / "manifest.json").exists()


def rows_of(section: str) -> list[str]:
    text = DATA.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"```json\n(.*?)\n```", text, re.DOTALL)


@pytest.mark.parametrize(("section", "read", "count"), [("Corpus", read_corpus, 2), ("Questions", read_questions, 3)])
def test_examples_of_our_files_are_taken(section: str, read: type, count: int, tmp_path: Path) -> None:
    rows = rows_of(section)
    assert len(rows) == count
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    assert len(read(tmp_path / "rows.jsonl")) == count


@pytest.mark.parametrize("layout", FORMATS)
def test_examples_of_layouts_are_converted(layout: str, tmp_path: Path) -> None:
    section = DATA.partition("## What `rolecast data convert` reads")[2]
    assert re.search(rf"^\| `{layout}` \|.*\| [^|]*(real|description)[^|]* \|$", section, re.MULTILINE), "no row in the table"
    found = re.search(rf"^`{layout}`.*?```json\n(.*?)\n```", section, re.DOTALL | re.MULTILINE)
    if layout not in ("flashrag", "hotpotqa", "2wikimultihopqa", "musique", "search_r1", "verl", "multihop"):
        return  # its file is in tests/unit/data/layouts
    assert found
    (tmp_path / "in.jsonl").write_text(found[1])
    (tmp_path / "corpus.jsonl").write_text(rows_of("Corpus")[0])  # which `multihop` has beside it
    assert detect(tmp_path / "in.jsonl") == layout
    assert convert(tmp_path / "in.jsonl", tmp_path / "out", None, "set", "dev").questions == 1


def test_every_method_has_its_row_among_the_papers() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", README.partition("| method | paper |")[2].partition("\n\n")[0], re.MULTILINE))
    assert set(rows) == set(OWN)
    assert all("](https://" in paper for name, paper in rows.items() if name != "direct")


def test_every_trained_method_has_its_page() -> None:
    linked = set(re.findall(r"\]\(methods/(\w+)\.md\)", (ROOT / "docs" / "methods.md").read_text()))
    pages = {page.stem for page in (ROOT / "docs" / "methods").iterdir()}
    assert linked == pages == {name for name in OWN if find(name).trained}


def test_commands_in_the_readme_are_there(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", README, re.DOTALL))
    called = {tuple(words.split()) for words in re.findall(r"(?<=rolecast) ((?:[a-z]+ ?){1,2})(?= |$)", blocks, re.MULTILINE)}
    assert len(called) > 8
    for words in called:
        command = words if words[0] in ("data", "index", "pipeline", "agent", "deploy") else words[:1]
        monkeypatch.setattr(sys, "argv", ["rolecast", *command, "--help"])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert not ended.value.code, command
    capsys.readouterr()


def test_the_python_of_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    """In a folder where runs/demo has been trained: here by nobody, so its team speaks nonsense, and is scored for that."""
    world = {"entities": {"train": 30, "dev": 30, "test": 30}, "questions": {"train": 4, "dev": 2, "test": 2}}
    method = {"name": "decor", "prompts": "compact", "condenser": "extractive", "max_tokens": 4}
    config = RunConfig.model_validate({"method": method, "data": {"world": world}, "model": {"max_context": 512}})
    run = create(tmp_path / "runs" / "demo", config)
    inputs(run)
    with writing(run.model("rl"), "model", {}) as partial:
        tiny_model().save_pretrained(partial)
        TOKENIZER.save_pretrained(partial)
    [snippet] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", snippet], cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    gold = json.loads((run.world / "test.jsonl").read_text().splitlines()[0])["answers"]
    lines = done.stdout.splitlines()
    assert lines[0].startswith("format ask-")
    assert lines[0].endswith("-1.0")
    assert lines[1] == "planner -1.0 ask:planner"
    assert lines[-1] == f"None instead of {tuple(gold)}"


@pytest.mark.parametrize(("target", "needs"), [("tools", False), ("lint", True)])
def test_tools_are_fetched_without_the_environment(target: str, needs: bool, tmp_path: Path) -> None:
    planned = subprocess.run(["make", "-n", target, f"VENV={tmp_path}/none"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ("scripts/setup.sh" in planned) == needs
