"""A run on questions of one's own by the documented commands, with and without SFT: a scripted engine speaks in the place of a model that can.

What the commands keep, count and refuse is theirs; only what is said comes from the script: tokens of the run's own tokenizer, so that SFT and
RL learn from them by real updates of a tiny model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from rolecast.config import RunConfig
from rolecast.errors import InputError, NamedStop
from rolecast.ports import Completion, GenerateRequest
from rolecast.rollout.render import Renderer
from rolecast.stages import models, playing, publish
from rolecast.stages.metrics import read_metrics
from rolecast.tags import tagged
from tests.invoking import command
from tests.tiny import save_tiny

SFT = [word for key in ("demonstrations=demos", "steps=2", "batch=4", "lr=1.0e-5") for word in ("--set", f"stages.sft.{key}")]
CONFIG = Path(__file__).parents[2] / "configs" / "real_questions.yaml"
NAMES = [f"{first} {last}" for first in ("Kel", "Brol", "Vrek", "Zen", "Dral", "Tan") for last in ("Dax", "Stom", "Kol", "Vim")]


class Script:
    """Searches once, then answers. `right`: of so many episodes one has the whole answer, of as many one its last word alone."""

    generated, failure = 0, None

    def __init__(self, renderer: Renderer, answers: Mapping[str, str], right: int) -> None:
        self.renderer, self.answers, self.right = renderer, answers, right
        self.version, self.branches = "script", 0
        self.episodes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    def close(self) -> None: ...

    async def failed(self) -> Exception:
        raise AssertionError("a script does not fail")

    async def generate(self, request: GenerateRequest) -> Completion:
        text = self.renderer.decode(request.ids)
        asked = re.findall(r"mentor of (\w+ \w+)", text)[0]
        said = tagged("think", "So.") + (
            tagged("answer", self.answer(asked)) if "The mentor of" in text else tagged("search", f"mentor of {asked}")
        )
        ids = tuple(self.renderer.encode(said))
        return Completion(ids, (-0.5,) * len(ids), self.renderer.decode(ids), "stop")

    def answer(self, asked: str) -> str:
        self.episodes += 1
        whole = self.answers[asked]
        if not self.right:
            return "nobody"
        return (whole, whole.split()[-1], *["nobody"] * self.right)[self.episodes % self.right]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the documented commands are given: a data set as it is published, and a model directory."""
    monkeypatch.chdir(tmp_path)
    save_tiny(tmp_path / "models" / "base")
    published = tmp_path / "published"
    published.mkdir()
    facts = [(name, NAMES[(7 * at + 5) % len(NAMES)]) for at, name in enumerate(NAMES)]
    passages = [{"id": f"p{at}", "title": name, "text": f"The mentor of {name} is {mentor}."} for at, (name, mentor) in enumerate(facts)]
    rows = [
        {
            "id": f"q{at}", "dataset": "own", "question": f"Who is the mentor of {name}?", "golden_answers": [mentor], "hops": 1, "type": "bridge",
            "evidence": "gold", "supporting_passage_ids": [f"p{at}"],
        }
        for at, (name, mentor) in enumerate(facts)
    ]  # fmt: skip
    for file, lines in {"corpus": passages, "train": rows[:20], "dev": rows[20:]}.items():
        (published / f"{file}.jsonl").write_text("".join(json.dumps({"split": file, **line}) + "\n" for line in lines))
    small = yaml.safe_load(CONFIG.read_text())
    small["method"] |= {"prompts": "compact", "max_tokens": 32, "observation_tokens": 64}
    small["model"] |= {"dtype": "float32", "max_context": 256}
    small["stages"]["rl"] |= {"ratio_gate": 1e9, "dev": 2}  # what a script says has no log-probs of its own
    small |= {"eval": {"n": 4, "bootstrap": 100}, "threads": 1}
    (tmp_path / "real_questions.yaml").write_text(yaml.safe_dump(small))
    return tmp_path


def data() -> None:
    command("data", "convert", "published/train.jsonl", "--out", "data/all")
    command("data", "convert", "published/dev.jsonl", "--split", "test", "--out", "data/test")
    command("data", "mix", "data/all", "--size", 4, "--against", "data/test", "--out", "data/dev")
    command("data", "mix", "data/all", "--against", "data/dev", "--against", "data/test", "--out", "data/train")
    command("data", "merge", "data/train", "data/dev", "data/test", "--out", "data/multihop")


def speaks(monkeypatch: pytest.MonkeyPatch, right: int) -> None:
    rows = [json.loads(line) for file in ("train", "dev") for line in Path(f"published/{file}.jsonl").read_text().splitlines()]
    answers = {re.findall(r"mentor of (\w+ \w+)", row["question"])[0]: row["golden_answers"][0] for row in rows}

    def engine(config: RunConfig, speakers: Any, renderer: Renderer, version: str = "", lockstep: bool = False) -> Script:
        return Script(renderer, answers, right)

    for where in (models, publish, playing):
        monkeypatch.setattr(where, "model_engine", engine)


def stages(run: str, *more: str) -> list[dict[str, Any]]:
    """Every step of a pipeline, and the metrics of RL."""
    command("run", "create", run, "--config", "real_questions.yaml", *more)
    for stage in ("sft", "rl"):
        command("train", run, stage)
        command("eval", run, "--stage", stage)
    command("report", run)
    return read_metrics(Path(run) / "rl")


@pytest.mark.slow
def test_without_sft_two_steps_of_rl_learn_from_groups_that_vary_in_f1(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data()
    speaks(monkeypatch, 4)
    rows = stages("runs/no-sft")
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["groups"] == 4 and row["loss"] is not None and not row.get("idle") for row in rows[1:])
    for row in rows[1:]:
        assert 0 < row["train/em"] < row["train/f1"] == pytest.approx(row["reward"]), "a part of an answer earns a part"
    summary = json.loads(Path("runs/no-sft/summary.json").read_text())
    assert (summary["method"], list(summary["stages"])) == ("search_r1", ["sft", "rl"])


@pytest.mark.slow
def test_rejection_sampled_sft_and_then_rl(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data()
    speaks(monkeypatch, 4)
    asked = ["data", "demonstrate", "--model", "models/base", "--method", "search_r1", "--data", "data/multihop/train.jsonl"]
    asked += ["--out", "demos", "--config", "real_questions.yaml", "--samples", "4", "--by", "f1", "--least", "0.5"]
    told = command(*asked)
    kept = int(re.findall(r"(\d+)  both, kept", told)[0])
    assert kept >= 8
    assert "of a reply at most" not in told
    rows = stages("runs/sft", *SFT)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(row["groups"] == 4 for row in rows[1:])
    assert read_metrics(Path("runs/sft/sft"))[0]["searcher/nll"] > 0


def test_a_model_that_is_never_right_is_told_by_counts_and_loses_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data()
    speaks(monkeypatch, 0)
    asked = ["data", "demonstrate", "--model", "models/base", "--method", "search_r1", "--data", "data/multihop/train.jsonl"]
    asked += ["--out", "demos", "--config", "real_questions.yaml", "--samples", "2", "-n", "3"]
    for _ in range(2):  # what was played stays
        with pytest.raises(NamedStop, match=r"none of 6 episodes is kept: 6 are valid, 0 right, none is both") as caught:
            command(*asked)
        assert caught.value.exit_code == 3
    assert len(Path("demos/episodes.jsonl").read_text().splitlines()) == 6
    with pytest.raises(InputError, match="demos: no demonstrations"):
        command("run", "create", "runs/sft", "--config", "real_questions.yaml", *SFT)
    command("run", "create", "runs/no-sft", "--config", "real_questions.yaml")
    command("train", "runs/no-sft", "sft")
    with pytest.raises(NamedStop, match=r"step 1, after 1 rounds: .* of 16 rollouts \(16 valid, 0 right, 0 both\) 16 earned what"):
        command("train", "runs/no-sft", "rl")
    assert [row["step"] for row in read_metrics(Path("runs/no-sft/rl"))] == [0, 1]
