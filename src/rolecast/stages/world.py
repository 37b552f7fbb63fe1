"""The run's own world: a corpus and questions of three splits, as one artifact."""

from __future__ import annotations

import json
from pathlib import Path

from rolecast.config import WorldConfig
from rolecast.data.records import read_questions, write_corpus, write_questions
from rolecast.stages.run import Run
from rolecast.stages.working import working
from rolecast.store.artifact import writing
from rolecast.world.counterfactual import World, build_world
from rolecast.world.crowded import build_crowded_world
from rolecast.world.reports import build_reports_world
from rolecast.world.throwaway import CROWDED, REPORTS


def world(run: Run) -> Path:
    """Writes `run.world` unless it is there. A run with data of its own has its questions read instead, so that a bad row
    stops it before anything is trained."""
    data = run.config.data
    config = data.world
    if config is None:
        for file in (data.train, data.dev, data.test):
            read_questions(Path(str(file)))
    elif not run.has(run.world):
        with working(run, "world"):
            write_world(run.world, config, run.config.seed)
            run.publish(run.world)
    return run.world


def draw_world(config: WorldConfig, seed: int) -> World:
    if config.kind == "facts":
        from rolecast.world.facts import build_facts_world

        return build_facts_world(seed, config.questions)
    build = {CROWDED: build_crowded_world, REPORTS: build_reports_world}.get(config.kind, build_world)
    return build(seed, config.entities, config.questions)


def write_world(path: Path, config: WorldConfig, seed: int) -> World:
    made = draw_world(config, seed)
    with writing(path, "world", {"seed": seed, "config": config.model_dump(mode="json")}) as partial:
        write_corpus(partial / "corpus.jsonl", made.passages)
        for split, questions in made.questions.items():
            write_questions(partial / f"{split}.jsonl", questions)
        (partial / "stats.json").write_text(json.dumps(statistics(made), indent=1))
    return made


def statistics(made: World) -> dict[str, object]:
    """Counts that the documentation quotes."""
    entities = {
        split: len({name for q in questions for hop in q.gold.chain for name in (hop.subject, hop.object) if name})
        for split, questions in made.questions.items()
    }
    return {
        "passages": len(made.passages),
        "questions": {split: len(questions) for split, questions in made.questions.items()},
        "entities_in_chains": entities,
    }
