"""Training: threads, ends, refusals, disks."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.first_hour.place import SHORT, Done, Place

Line = tuple[str, Callable[[Place], None]]


def trained(place: Place, run: str) -> Callable[[], bool]:
    file = place.folder / run / "sft" / "metrics.jsonl"
    return lambda: file.exists() and len(file.read_text().splitlines()) >= 2


def quiet_pipeline(place: Place) -> None:
    """Every stage, and no word of the library beneath."""
    place.run_of("first")
    said = (place.folder / "first.out").read_text()
    assert "95 % interval" in said
    assert not re.search(r"kfp|FAILURE|SUCCESS|executor|Traceback|Warning", said), said[-3000:]
    assert not (place.folder / "first" / ".kfp").exists()


def provenance_of_threads(place: Place) -> None:
    summary = json.loads((place.folder / place.run_of("first") / "summary.json").read_text())
    assert set(summary["threads"]) == {"sft", "rl"}
    assert min(summary["threads"].values()) >= 1
    assert re.search(r"\d+ threads on \d+ cores of \d+, waiting: GOMP_SPINCOUNT=1000", place.run("doctor").out)


def ends(number: signal.Signals, *command: str) -> Callable[[Place], None]:
    def play(place: Place) -> None:
        run = f"ended-{number.name}-{command[0]}"
        arguments = [part.format(run=run, config=place.config("long.yaml", SHORT.replace("steps: 40", "steps: 400"))) for part in command]
        done, again = place.told_to_end(number, trained(place, run), *arguments)
        assert done.code == 128 + number, done.all[-2000:]
        assert re.search(r"told to end: sft is saved at step \d+ of 400", done.said)
        assert again[0] in ("sft", "pipeline", "train", "demo")

    return play


def goes_on(place: Place) -> None:
    config = place.config("going.yaml", SHORT.replace("steps: 40", "steps: 120"))
    _, again = place.told_to_end(signal.SIGINT, trained(place, "going"), "sft", "going", "--config", config)
    done = place.run(*again)
    assert done.code == 0, done.all[-2000:]
    assert (place.folder / "going" / "sft" / "model" / "manifest.json").exists()


def own_data(place: Place, rows: dict[str, list[dict[str, object]]]) -> str:
    for split, of in rows.items():
        (place.folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in of))
    (place.folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"id": str(n), "title": f"T{n}", "text": f"text {n} of ten"}) + "\n" for n in range(10))
    )
    return "data: {world: null, corpus: corpus.jsonl, train: train.jsonl, dev: dev.jsonl, test: test.jsonl}"


def rows(split: str) -> list[dict[str, object]]:
    return [{"id": f"{split}{n}", "question": f"Who is {n} of {split}?", "answers": ["x"]} for n in range(4)]


def refusals(place: Place) -> None:
    base = place.config()
    said = place.refused("rl", "workers", "--config", base, "--set", "rollouts=workers")
    assert "s3://" in said
    said = place.refused("pipeline", "run", "--local", "--config", base, "--run", "unknown", "--set", "method={name: react_}")
    assert "unknown method" in said
    said = place.refused("sft", "sharded", "--config", base, "--set", "learner={name: deepspeed}")
    assert "--procs" in said
    own = own_data(place, {split: rows(split) for split in ("train", "dev", "test")})
    text = re.sub(r"data: .*", own, SHORT)
    assert "invented worlds" in place.refused("sft", "own", "--config", place.config("own.yaml", text))
    unjudged = text.replace("sft: {steps: 40", "sft: {steps: 0")
    said = place.refused("pipeline", "run", "--local", "--run", "unjudged", "--config", place.config("unjudged.yaml", unjudged))
    assert "gold chain" in said
    assert not any((place.folder / run).exists() for run in ("workers", "untrained", "sharded", "own", "unjudged"))


def untrained_method(place: Place) -> None:
    text = re.sub(r"method: .*", "method: {name: direct}", SHORT)
    text = re.sub(r"stages:\n(  .*\n)+", "", text)
    said = place.refused("rl", "direct", "--config", place.config("direct.yaml", text), "--set", "stages={}")
    assert "no stage 'rl'" in said, said


def template(place: Place) -> None:
    source = place.folder / place.run_of("first") / "sft" / "model"
    copy = place.folder / "no-template"
    shutil.copytree(source, copy, dirs_exist_ok=True)
    (copy / "manifest.json").unlink()
    (copy / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    said = place.refused("rl", "templateless", "--config", place.config(), "--set", f"model.path={copy}")
    assert "template" in said


def same_questions(place: Place) -> None:
    text = re.sub(r"data: .*", own_data(place, {"train": rows("train"), "dev": rows("dev"), "test": rows("train")}), SHORT)
    text = re.sub(r"method: .*", "method: {name: search_r1, prompts: compact, max_tokens: 20}", text).replace(
        "sft: {steps: 40", "sft: {steps: 0"
    )
    done = place.run("run", "create", "same", "--config", place.config("same.yaml", text))
    assert done.code == 0, done.all
    assert "4 of 4 questions of data.test are in data.train too" in done.errors, done.all


def several(place: Place) -> None:
    done = place.run("train", "ranks", "sft", "--procs", "2", "--config", place.config())
    assert done.code == 0, done.all[-2000:]


def full_disk(place: Place) -> None:
    """A file may not grow beyond 40 kB: what a full disk does to whoever writes."""
    done = subprocess.run(
        place.command("sft", "full", "--config", place.config()), cwd=place.folder, env=place.environment, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000)), timeout=300,
    )  # fmt: skip
    said = Done(done.returncode, done.stdout, done.stderr).said
    assert "cannot be written" in said
    assert "make room" in said


def in_the_way(place: Place) -> None:
    (place.folder / "file").write_text("a file")
    assert "file" in place.refused("sft", "file/run", "--config", place.config())


def cut_off(place: Place) -> None:
    copy = place.folder / "cut"
    shutil.copytree(place.folder / place.run_of("first"), copy)
    weights: Path = copy / "sft" / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    shutil.rmtree(copy / "eval")
    done = place.run("eval", "cut", "--stage", "sft")
    assert done.code == 1
    assert "model.safetensors is missing or does not match" in done.said


LINES: list[Line] = [
    ("a small pipeline runs, and its library keeps quiet", quiet_pipeline),
    ("waiting threads soon sleep; doctor and summary say how many there are", provenance_of_threads),
    ("Ctrl-C on sft saves, says so in one line, exits 130", ends(signal.SIGINT, "sft", "{run}", "--config", "{config}")),
    ("SIGTERM on sft: 143", ends(signal.SIGTERM, "sft", "{run}", "--config", "{config}")),
    ("Ctrl-C on a pipeline: 130", ends(signal.SIGINT, "pipeline", "run", "--local", "--run", "{run}", "--config", "{config}")),
    ("SIGTERM on a pipeline: 143", ends(signal.SIGTERM, "pipeline", "run", "--local", "--run", "{run}", "--config", "{config}")),
    ("the command that was named goes on", goes_on),
    ("what cannot work is refused before any work, and leaves nothing", refusals),
    ("RL of a method that has none is refused", untrained_method),
    ("a model without a chat template is refused", template),
    ("the same file as train and test is warned of", same_questions),
    ("--procs 2 trains over two processes", several),
    ("a full disk is one line", full_disk),
    ("a file in the place of a folder is one line", in_the_way),
    ("a model that is cut off is one line", cut_off),
]
