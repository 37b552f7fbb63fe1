"""Bad input through the real command: one line on stderr, exit code 2, nothing half-written.

Importing torch takes seconds, so most run in this process.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest

from rolecast.cli.main import main
from rolecast.config import load_config
from rolecast.stages.run import create

ROW = {"id": "q1", "question": "Who?", "answers": ["x"]}


def process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rolecast.cli.main", *arguments], cwd=cwd, capture_output=True, text=True, timeout=120)


def rolecast(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with ExitStack() as stack:
        for place in (
            chdir(cwd),
            redirect_stdout(out),
            redirect_stderr(err),
            patch.dict("os.environ"),
            patch.object(sys, "argv", ["rolecast", *arguments]),
        ):
            stack.enter_context(place)
        ended = stack.enter_context(pytest.raises(SystemExit))
        main()
    return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def write(path: Path, *rows: object) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def tiny_config(folder: Path, **changes: str) -> str:
    text = "name: t\nmethod: {name: decor, prompts: compact, condenser: extractive, k: 5}\n"
    text += f"data: {{world: null, corpus: {folder}/corpus.jsonl, train: {folder}/q.jsonl, dev: {folder}/dev.jsonl, test: {folder}/test.jsonl}}\n"
    text += "stages: {sft: {steps: 0}, rl: {steps: 0}}\n"
    for split in ("dev", "test"):
        write(folder / f"{split}.jsonl", {**ROW, "id": f"{split}1", "question": f"Who is of {split}?"})
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "config.yaml"
    path.write_text(text)
    return str(path)


def refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    lines = result.stderr.strip().splitlines()
    assert result.returncode == 2, result.stderr
    assert len(lines) == 1, result.stderr
    for word in words:
        assert word in lines[0]


def test_unknown_key(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("stages: {sft: {stepz: 3}}\n")
    refused(process("sft", "run", "--config", "c.yaml", cwd=tmp_path), "stages.sft.stepz", "unknown key")
    assert not (tmp_path / "run").exists()


def test_missing_file(tmp_path: Path) -> None:
    refused(rolecast("index", "build", "--corpus", "none.jsonl", "--out", "ix", cwd=tmp_path), "none.jsonl")
    refused(rolecast("sft", "run", "--config", "none.yaml", cwd=tmp_path), "none.yaml")
    refused(rolecast("report", "run", cwd=tmp_path), "run")
    assert list(tmp_path.iterdir()) == []


def test_malformed_row_is_named_by_file_and_line(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", {"id": "p1", "title": "", "text": "one"}, "{broken")
    refused(rolecast("index", "build", "--corpus", "corpus.jsonl", "--out", "ix", "--kind", "bm25", cwd=tmp_path), "corpus.jsonl", "2")
    assert not (tmp_path / "ix").exists()
    assert not list(tmp_path.glob(".*"))


def test_empty_corpus(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("")
    refused(rolecast("index", "build", "--corpus", "corpus.jsonl", "--out", "ix", "--kind", "bm25", cwd=tmp_path), "corpus.jsonl", "empty")


def test_question_without_gold(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", *({"id": f"p{i}", "title": "", "text": f"text {i}"} for i in range(9)))
    write(tmp_path / "q.jsonl", {**ROW, "answers": []})
    config = tiny_config(tmp_path)
    refused(rolecast("sft", "run", "--config", config, cwd=tmp_path), "q.jsonl", "gold")
    assert not (tmp_path / "run" / "index").exists()


def test_a_stage_before_its_time(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", *({"id": f"p{i}", "title": "", "text": f"text {i}"} for i in range(9)))
    write(tmp_path / "q.jsonl", ROW)
    config = tiny_config(tmp_path)
    refused(rolecast("rl", "run", "--config", config, cwd=tmp_path), "no sft model")
    refused(rolecast("eval", "run", cwd=tmp_path), "no rl model")


def test_a_stage_that_the_method_does_not_have(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", *({"id": f"p{i}", "title": "", "text": f"text {i}"} for i in range(9)))
    write(tmp_path / "q.jsonl", ROW)
    config = tiny_config(tmp_path)
    refused(rolecast("train", "run", "bogus", "--config", config, cwd=tmp_path), "no stage 'bogus'", "it has sft, rl")
    refused(rolecast("eval", "run", "--stage", "bogus", "--config", config, cwd=tmp_path), "no stage 'bogus'", "it has sft, rl")
    assert not (tmp_path / "run").exists()
    assert rolecast("run", "create", "there", "--config", config, cwd=tmp_path).returncode == 0
    refused(process("train", "there", "bogus", cwd=tmp_path), "no stage 'bogus'", "it has sft, rl")
    refused(rolecast("eval", "there", "--stage", "bogus", cwd=tmp_path), "no stage 'bogus'", "it has sft, rl")
    assert not (tmp_path / "there" / "bogus").exists()


def test_a_job_for_a_stage_that_the_method_does_not_have_makes_nothing(tmp_path: Path) -> None:
    config = load_config(Path(tiny_config(tmp_path)))
    create(tmp_path / "run", config)
    command = [sys.executable, "-m", "rolecast.learner.main", "bogus", str(tmp_path / "run")]
    refused(subprocess.run(command, capture_output=True, text=True, timeout=120), "no stage 'bogus'", "it has sft, rl")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]


def test_a_stage_that_is_trained_by_its_name(tmp_path: Path) -> None:
    """`sft` and `rl` are short for it, and refuse where the method has no such stage."""
    write(tmp_path / "corpus.jsonl", *({"id": f"p{i}", "title": "", "text": f"text {i}"} for i in range(9)))
    write(tmp_path / "q.jsonl", ROW)
    direct = {"{name: decor, prompts: compact, condenser: extractive, k: 5}": "{name: direct}", ", rl: {steps: 0}": ""}
    config = tiny_config(tmp_path, **direct)
    result = rolecast("train", "run", "sft", "--config", config, cwd=tmp_path)
    assert (result.returncode, result.stdout.splitlines()[-1]) == (0, "run/sft/model"), result.stderr
    assert rolecast("sft", "run", cwd=tmp_path).stdout.splitlines()[-1] == "run/sft/model"
    refused(rolecast("rl", "run", cwd=tmp_path), "no stage 'rl'", "it has sft")
    refused(rolecast("eval", "run", "--stage", "rl", cwd=tmp_path), "rl")


def test_a_run_of_another_format(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"name": "old", "sft": {"steps": 0}}')
    refused(rolecast("train", "run", "sft", cwd=tmp_path), "run.json", "written by another version of rolecast")
    refused(rolecast("report", "run", cwd=tmp_path), "run.json", "written by another version of rolecast")


def test_k_larger_than_the_corpus(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", {"id": "p1", "title": "", "text": "alpha beta"})
    write(tmp_path / "q.jsonl", ROW)
    refused(rolecast("sft", "run", "--config", tiny_config(tmp_path), cwd=tmp_path), "k = 5", "larger than the corpus")
    assert not (tmp_path / "run" / "sft").exists()


def test_model_directory_without_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    refused(rolecast("demo", "--model", "model", cwd=tmp_path), "model", "tokenizer")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "arguments", [["bogus"], ["demo", "--seed", "x"], ["data", "world"], ["agent", "serve"], ["pipeline", "run"], ["train", "run"]]
)
def test_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    refused(rolecast(*arguments, cwd=tmp_path))


def test_methods_as_json(tmp_path: Path) -> None:
    rows = json.loads(rolecast("methods", "--json", cwd=tmp_path).stdout)
    assert {row["name"] for row in rows} >= {"decor", "search_r1", "naive_rag", "direct"}
    assert all(set(row) == {"name", "origin", "trained", "roles", "switches"} for row in rows)


def test_doctor_lists_every_extra(tmp_path: Path) -> None:
    result = rolecast("doctor", cwd=tmp_path)
    assert result.returncode == 0
    for extra in ("control", "retriever", "rollout", "learner", "agent", "local", "dev"):
        assert f"  {extra} " in result.stdout
