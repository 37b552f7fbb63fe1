"""Random threads that begin alike: what packing and prefix sharing are held to."""

from __future__ import annotations

import random

import numpy as np
from rows import act, see, thread

from rolecast.types import Action, Observation, Thread, Unit

TOKENS = range(10, 14)  # few, so that threads begin alike by chance, too


def random_forest(seed: int, groups: int = 3, members: int = 4) -> tuple[list[Thread], list[Unit], dict[str, np.ndarray]]:
    """Members of a group that share a prompt, some of them a turn and more; one group has a thread that goes on where another ends,
    and two that are equal. Units of one or two threads, with advantages."""
    draw = random.Random(seed)

    def words(least: int, most: int) -> list[int]:
        return [draw.choice(TOKENS) for _ in range(draw.randint(least, most))]

    system = words(0, 4)
    threads: list[Thread] = []
    for group in range(groups):
        prompt, first, second = system + words(1, 9), words(1, 4), words(1, 3)
        for member in range(members):
            name = f"{group}.{member}"
            turns: list[Action | Observation] = [see(*prompt), act(f"{name}/a", *(first if member % 2 else words(1, 4)))]
            if member:
                turns += [see(*(second if draw.random() < 0.5 else words(1, 3))), act(f"{name}/b", *words(1, 5))]
            threads.append(thread(name, *turns))
    last = threads[-1]
    threads.append(thread(f"{last.id}+", see(*last.ids), act(f"{last.id}+/a", *words(1, 3))))
    threads.append(thread(f"{last.id}=", *(act(f"{t.id}=", *t.ids) if isinstance(t, Action) else see(*t.ids) for t in last.turns)))
    units, advantage = [], {}
    for group in range(groups):
        own = [t for t in threads if t.id.startswith(f"{group}.")]
        draw.shuffle(own)
        while own:
            taken, own = own[: (size := draw.randint(1, 2))], own[size:]
            actions = [action for t in taken for action in t.actions]
            units.append(
                Unit(taken[0].id, tuple(a.id for a in actions), 1.0, "o", tag=f"r{len(units) % 2}", group=str(group), rollout=taken[0].id)
            )
            worth = draw.uniform(-2, 2)
            advantage |= {action.id: np.full(len(action.ids), worth) for action in actions}
    return threads, units, advantage
