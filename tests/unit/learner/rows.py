"""Small threads and units that the learner's tests share."""

from __future__ import annotations

from rolecast.types import Action, Objective, Observation, Thread, Unit

OBJECTIVE = Objective("o", "shared", "ppo", "group", "token", 1e-3, minibatches=1)


def act(id: str, *ids: int) -> Action:
    return Action(id, ids, tuple(-0.1 * token for token in ids), "v", "", "stop")


def see(*ids: int) -> Observation:
    return Observation(ids, "")


def thread(id: str, *turns: Action | Observation) -> Thread:
    return Thread(id, "planner", "shared", turns=list(turns))


def unit(id: str, *actions: str, group: str = "g", tag: str = "planner") -> Unit:
    return Unit(id, actions, 1.0, "o", tag=tag, group=group, rollout=id)


THREADS = [
    thread("t0", see(1, 2, 3), act("a", 4, 5), see(6), act("b", 7)),
    thread("t1", see(8), act("c", 9, 1, 2)),
    thread("t2", see(3, 3), act("d", 4)),
]
UNITS = [unit("u", "a", "b", group="g"), unit("v", "c", group="h", tag="filter")]
