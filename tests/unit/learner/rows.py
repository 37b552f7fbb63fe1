"""Small threads and units that the learner's tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from rolecast.credit import Floats
from rolecast.folds import Reduction, mean, total
from rolecast.learner.batch import action_lengths, make_batch
from rolecast.learner.cut import Cut, cut
from rolecast.learner.ranks import Ranks
from rolecast.types import Action, KlTerm, Objective, Observation, PolicyTerm, Thread, Unit

T = TypeVar("T")
OBJECTIVE = Objective("o", "shared", 1e-3, "group", PolicyTerm())
UNIT_MEAN: Reduction = (mean("unit"), mean("batch"))
GROUP_MEAN: Reduction = (mean("unit"), total("rollout"), mean("group"), mean("batch"))  # of tokens
UNITS_OF_GROUP: Reduction = (total("rollout"), mean("group"), mean("batch"))  # of units


def objective(loss: str, per: str, kl: float = 0.0) -> Objective:
    """One of the usual kinds: a ratio per token (ppo) or per unit (gspo), averaged over tokens, units, or the rollouts of groups."""
    of_tokens = {"token": (mean("batch"),), "unit": UNIT_MEAN, "group": GROUP_MEAN}[per]
    of_units = {"token": (mean("batch"),), "unit": (mean("batch"),), "group": UNITS_OF_GROUP}[per]
    policy = PolicyTerm("unit", over=of_units) if loss == "gspo" else PolicyTerm("token", over=of_tokens)
    return replace(OBJECTIVE, policy=policy, kl=KlTerm(kl, over=of_tokens) if kl else None)


def act(id: str, *ids: int) -> Action:
    return Action(id, ids, tuple(-0.1 * token for token in ids), "v", "", "stop")


def see(*ids: int) -> Observation:
    return Observation(ids, "")


def thread(id: str, *turns: Action | Observation) -> Thread:
    return Thread(id, "planner", "shared", turns=list(turns))


def unit(id: str, *actions: str, group: str = "g", tag: str = "planner", rollout: str = "") -> Unit:
    return Unit(id, actions, 1.0, "o", tag=tag, group=group, rollout=rollout or id)


def cut_of(objective: Objective, threads: Sequence[Thread], units: Sequence[Unit], max_tokens: int = 10**6, of: Sequence[Unit] = ()) -> Cut:
    """The batch of `units`, with denominators that count `of` as well."""
    every = [*units, *of]
    order = list(range(len({unit.group for unit in every})))
    lengths = action_lengths(threads)
    return cut(objective, make_batch("shared", threads, units), every, [], lengths, max_tokens, order)


THREADS = [
    thread("t0", see(1, 2, 3), act("a", 4, 5), see(6), act("b", 7)),
    thread("t1", see(8), act("c", 9, 1, 2)),
    thread("t2", see(3, 3), act("d", 4)),
]
UNITS = [unit("u", "a", "b", group="g"), unit("v", "c", group="h", tag="filter")]


class Alone(Ranks):
    """One rank of several, run by itself: what others would add is added by the test."""

    def sum(self, array: Floats) -> Floats:
        return array

    def gather(self, value: T) -> list[T]:
        return [value]
