"""An episode as JSON: what the report and the trace page show of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean
from types import MappingProxyType
from typing import Any

from rolecast.evaluation.tasks import Task
from rolecast.types import Action, Observation, Reward, Thread, Trajectory

Tokens = Mapping[str, Mapping[str, Any]]  # by action: texts and numbers of its tokens, by name


def trace(trajectory: Trajectory, task: Task | None = None, tokens: Tokens = MappingProxyType({})) -> dict[str, Any]:
    """The episode's question, outcome, rewards and threads, in the order in which they happened. With a task, its headline `score` too,
    which is None where the task cannot score the episode; nobody knows that of an episode that is served. `tokens`: of actions that training
    looked at."""
    t, q = trajectory, trajectory.question
    actions = {action.id for action in t.actions}
    rewards: dict[str, list[Reward]] = defaultdict(list)
    for reward in t.rewards:
        # What is on no action counts as the episode's, so that a reward with an unknown `on` is shown rather than lost.
        rewards[reward.on if reward.on in actions else t.id].append(reward)
    return {
        "id": t.id,
        "question": q.text,
        "type": q.type,
        "hops": q.hops,
        "golds": list(q.gold.answers),
        "answer": t.answer,
        **({"measure": task.headline, "score": task.scores(t)[task.headline]} if task is not None else {}),
        "status": t.status,
        "fault": t.fault,
        "searches": t.searches,
        "retrieved": list(t.retrieved),
        "gold_passages": list(q.gold.passages),
        "rewards": [_reward(reward) for reward in rewards[t.id]],
        "threads": [thread_trace(thread, rewards, tokens=tokens) for thread in t.threads],
    }


def thread_trace(
    thread: Thread, rewards: Mapping[str, Sequence[Reward]], since: int = 0, tokens: Tokens = MappingProxyType({})
) -> dict[str, Any]:  # fmt: skip
    """The thread with its turns from number `since` on; `rewards` by the action's id."""
    return {
        "id": thread.id,
        "role": thread.role,
        "key": thread.key,
        "probe": thread.probe,
        "turns": [_turn(turn, rewards, tokens) for turn in thread.turns[since:]],
    }


def _turn(turn: Observation | Action, rewards: Mapping[str, Sequence[Reward]], tokens: Tokens) -> dict[str, Any]:
    if isinstance(turn, Observation):
        return {"kind": "observation", "text": turn.text, "sources": list(turn.sources), "tokens": len(turn.ids)}
    return {
        "kind": "action",
        "id": turn.id,
        "text": turn.text,
        "tokens": len(turn.ids),
        "valid": turn.valid,
        "finish": turn.finish,
        "logprob": _mean(turn.logprobs),
        "rewards": [_reward(reward) for reward in rewards.get(turn.id, ())],
        **({"of_tokens": dict(tokens[turn.id])} if turn.id in tokens else {}),
    }


def _reward(reward: Reward) -> dict[str, Any]:
    return {"name": reward.name, "value": reward.value, "source": reward.source, "reason": reward.reason}


def _mean(logprobs: Sequence[float]) -> float | None:
    """None without tokens, and where one has no finite log-prob: JSON has no infinity."""
    mean = fmean(logprobs) if logprobs else None
    return mean if mean is not None and isfinite(mean) else None
