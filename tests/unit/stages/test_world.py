"""A run's own world as an artifact: its kind decides what is drawn, and readers take what was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolecast.config import WorldConfig, load_config
from rolecast.data.records import read_corpus, read_questions
from rolecast.errors import NamedStop
from rolecast.stages.evaluate import evaluate
from rolecast.stages.inputs import inputs
from rolecast.stages.run import create
from rolecast.stages.train import train
from rolecast.stages.world import world, write_world
from rolecast.world.counterfactual import build_world
from rolecast.world.crowded import build_crowded_world
from rolecast.world.facts import build_facts_world

ENTITIES, QUESTIONS = {"train": 90, "dev": 60, "test": 60}, {"train": 40, "dev": 20, "test": 20}


@pytest.mark.parametrize("kind", ["counterfactual", "crowded", "facts"])
def test_the_kind_decides_and_what_is_written_is_read_back(kind: str, tmp_path: Path) -> None:
    config = WorldConfig.model_validate({"kind": kind, "entities": ENTITIES, "questions": QUESTIONS})
    builders = {
        "counterfactual": lambda: build_world(3, ENTITIES, QUESTIONS),
        "crowded": lambda: build_crowded_world(3, ENTITIES, QUESTIONS),
        "facts": lambda: build_facts_world(3, QUESTIONS),
    }
    made = write_world(tmp_path / "world", config, 3)
    assert made == builders[kind]()
    assert read_corpus(tmp_path / "world" / "corpus.jsonl") == made.passages
    for split, questions in made.questions.items():
        assert read_questions(tmp_path / "world" / f"{split}.jsonl") == questions
    stats = json.loads((tmp_path / "world" / "stats.json").read_text())
    assert stats["passages"] == len(made.passages)
    assert stats["questions"] == QUESTIONS


def test_what_no_passage_states_is_no_entity(tmp_path: Path) -> None:
    config = WorldConfig(kind="crowded", entities=ENTITIES, questions=QUESTIONS)
    made = write_world(tmp_path / "world", config, 0)
    stats = json.loads((tmp_path / "world" / "stats.json").read_text())
    for split, questions in made.questions.items():
        named = {name for q in questions for hop in q.gold.chain for name in (hop.subject, hop.object)}
        assert "" in named
        assert stats["entities_in_chains"][split] == len(named) - 1


SMALL = [
    "data.world.entities={train: 120, dev: 60, test: 90}", "data.world.questions={train: 40, dev: 20, test: 40}",
    "model.scratch={hidden: 32, layers: 1, heads: 1, head_dim: 32, feed_forward: 64}", "stages.sft.steps=33", "stages.sft.drills=32",
    "stages.sft.batch=2", "stages.rl.steps=1", "stages.rl.questions=2", "stages.rl.group=2", "stages.rl.dev=4", "stages.rl.refill=0",
    "eval.n=20",
]  # fmt: skip


def test_the_config_of_the_crowded_world_runs_from_end_to_end(tmp_path: Path) -> None:
    run = create(tmp_path / "run", load_config(Path(__file__).parents[3] / "configs" / "decor_crowded.yaml", SMALL))
    world(run)
    inputs(run)
    train(run, "sft")
    result = json.loads((evaluate(run, "sft") / "result.json").read_text())
    by_type = {"chain": 10, "comparison": 4, "intersection": 3, "unanswerable": 3}
    assert {kind: found["n"] for kind, found in result["by_type"].items()} == by_type
    assert result["status"].get("error", 0) == 0
    with pytest.raises(NamedStop, match=r"of 4 rollouts .* 4 broke their form"):  # so small a model speaks in none
        train(run, "rl")
