"""Writes configs/example/: a corpus and questions of three splits, small enough to read. All of it is invented (`make reference`)."""

from __future__ import annotations

import sys
from pathlib import Path

from rolecast.data.records import write_corpus, write_questions
from rolecast.world.counterfactual import build_world

ENTITIES = {"train": 24, "dev": 12, "test": 16}
QUESTIONS = {"train": 16, "dev": 4, "test": 8}


def main(folder: Path) -> None:
    world = build_world(0, ENTITIES, QUESTIONS)
    folder.mkdir(parents=True, exist_ok=True)
    write_corpus(folder / "corpus.jsonl", world.passages)
    for split, questions in world.questions.items():
        write_questions(folder / f"{split}.jsonl", questions)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
