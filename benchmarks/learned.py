"""What a model learns of its teacher in SFT: the share of turns that it would say word for word, by role and type of question.

    python benchmarks/learned.py CONFIG [--every 200] [--episodes 80] [KEY=VALUE …]

Trains the first stage of CONFIG as a run would, and every so many steps asks the model for each token of the turns of a teacher that
makes no errors, on throw-away episodes that SFT never draws: greedy, each token after the right ones before it. It says early, and
without RL, which turns of which tasks a small model can learn at all. Prints a line of JSON for every evaluation, and at the end a table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from rolecast.config import RunConfig, load_config
from rolecast.learner.learner import make_learner
from rolecast.methods.base import Method
from rolecast.rollout.render import Renderer
from rolecast.stages.run import Run
from rolecast.stages.sft import BLOCK, draw_block
from rolecast.stages.team import prepare_torch, training_team
from rolecast.teachers.base import TeacherErrors
from rolecast.teachers.examples import example_of, throwaway_episode
from rolecast.types import Example

HELD_OUT = -1  # the seed of the episodes that are asked about
AT_ONCE = 64  # rows of a forward pass


def asked_about(config: RunConfig, method: Method, renderer: Renderer, episodes: int) -> list[Example]:
    """Turns, each with its role and the type of its question."""
    teacher, kind = method.teacher(TeacherErrors()), config.data.thrown_away
    found = []
    for number in range(episodes):
        played = throwaway_episode(method, teacher, renderer, HELD_OUT, number, config.model.max_context, kind)
        found += [replace(example_of(thread), tag=f"{thread.role} {played.question.type}") for thread in played.threads]
    return sorted(found, key=lambda row: len(row.ids))


@torch.no_grad()
def said(model: PreTrainedModel, rows: Sequence[Example]) -> dict[str, float]:
    """Share of rows, by tag, of which every trained token is the likeliest one."""
    right: defaultdict[str, list[bool]] = defaultdict(list)
    for start in range(0, len(rows), AT_ONCE):
        part = rows[start : start + AT_ONCE]
        width = max(len(row.ids) for row in part)
        ids = torch.tensor([[*row.ids, *[0] * (width - len(row.ids))] for row in part], device=model.device)
        likeliest = model(input_ids=ids).logits.argmax(-1).tolist()  # padding is on the right: nothing before it sees it
        for row, guessed in zip(part, likeliest, strict=True):
            right[row.tag].append(all(guessed[i - 1] == row.ids[i] for i, trained in enumerate(row.trained) if trained))
    return {tag: round(sum(found) / len(found), 3) for tag, found in sorted(right.items())}


def learned(config: RunConfig, every: int, episodes: int) -> dict[int, dict[str, float]]:
    """By step."""
    prepare_torch(config)
    stage = config.schedule[0]
    method, settings = config.method_in(stage), config.sft(stage.name)
    team = training_team(Run(Path(), config), method, stage, None)
    objectives = [replace(objective, lr=settings.lr) for objective in stage.objectives]
    learner = make_learner(objectives, team, settings.optimizer, settings.steps, config.seed, max_tokens=settings.max_tokens)
    renderer = Renderer(team.tokenizer, method.tags)
    rows = asked_about(config, method, renderer, episodes)
    table: dict[int, dict[str, float]] = {}
    start = time.monotonic()
    for step in range(settings.steps):
        if step % BLOCK == 0:
            block = draw_block(config, stage, method, renderer, step // BLOCK)
        learner.update([learner.cut(objective, [], [], [], {}, block[step % BLOCK]) for objective in objectives])
        if (step + 1) % every == 0 or step + 1 == settings.steps:
            table[step + 1] = said(team.model(objectives[0].slot), rows)
            print(json.dumps({"step": step + 1, "seconds": round(time.monotonic() - start), **table[step + 1]}), flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--episodes", type=int, default=80)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    table = learned(load_config(arguments.config, arguments.overrides), arguments.every, arguments.episodes)
    tags = sorted({tag for found in table.values() for tag in found})
    print("\n".join(["| turns | " + " | ".join(map(str, table)) + " |", "| --- " * (len(table) + 1) + "|"]))
    print("\n".join(f"| {tag} | " + " | ".join(f"{100 * found[tag]:.0f}" for found in table.values()) + " |" for tag in tags))


if __name__ == "__main__":
    main()
