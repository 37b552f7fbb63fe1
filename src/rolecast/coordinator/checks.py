"""Whether a submission is what its lease asked for. It comes from another machine, and what is taken is trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from rolecast.leasing import Lease
from rolecast.types import Action, Observation, Slot, Thread, Trajectory, endpoint_of

HIGHEST_LOGPROB = 1e-6  # of a token; above 0 by what rounding may do
MOST_SEARCHES = 10**6  # of an episode


@dataclass(frozen=True, slots=True)
class Rules:
    """What the run's method and model allow, as plain data: the coordinator knows neither."""

    method: str
    slots: Mapping[str, Slot]  # of each role
    vocabulary: int  # rows of the embedding: token ids are below


def faults(lease: Lease, trajectories: Sequence[Trajectory], rules: Rules | None, whole: bool = True) -> Iterator[str]:
    """What is wrong, one line each. What comes later relies on what comes earlier, so take the first one.

    Not `whole`: of a group whose playing was ended, nothing of which is trained on. Members may be missing, and log-probs.
    """
    group = lease.group
    members = tuple(t.member for t in trajectories)
    asked = group.members if whole else tuple(member for member in group.members if member in members)
    if members != asked or any(t.group != group.id for t in trajectories):
        yield f"it is for members {group.members} of group {group.id}, not for {_short(members)}"
    for t in trajectories:
        if t.question != group.question:
            yield f"member {t.member} answers another question than {group.question.id}, which was leased"
        if t.id != f"{group.id}.{t.member}":
            yield f"member {t.member} is called {_short(t.id)}, not {group.id}.{t.member}"
        if not 0 <= t.searches <= MOST_SEARCHES:
            yield f"{t.id} has {_short(t.searches)} searches"
        if min(t.judge_calls, t.judge_tokens) < 0:
            yield f"{t.id} has {_short(t.judge_calls)} judge calls of {_short(t.judge_tokens)} tokens"
        if rules is not None and t.method != rules.method:
            yield f"{t.id} is an episode of method {_short(t.method)}; the run's is {rules.method}"
    threads = [thread for t in trajectories for thread in t.threads]
    actions = [action for thread in threads for action in thread.actions]
    yield from _names(trajectories, threads, actions)
    for thread in threads:
        if rules is not None and rules.slots.get(thread.role) != thread.slot:
            yield f"thread {_short(thread.id)} is of role {_short(thread.role)} in slot {_short(thread.slot)}, which {rules.method} does not have"
        if not isinstance(next(iter(thread.turns), None), Observation) or not thread.turns[0].ids:
            yield f"thread {_short(thread.id)} does not begin with an observation, so nothing comes before its first action"
        yield from _tokens(thread, rules, whole)
    for action in actions:
        if action.version != lease.version.name:
            yield f"it asks for version {lease.version.name}; action {_short(action.id)} was sampled by {_short(action.version)}"


def _names(trajectories: Sequence[Trajectory], threads: Sequence[Thread], actions: Sequence[Action]) -> Iterator[str]:
    """Ids are the episode's own, so that those of two groups never meet, and what a reward is on is there."""
    names = Counter([*(t.id for t in trajectories), *(thread.id for thread in threads), *(action.id for action in actions)])
    if len(names) < names.total():
        yield f"id {_short(names.most_common(1)[0][0])} is there twice"
    for t in trajectories:
        own = {t.id, *(thread.id for thread in t.threads), *(action.id for action in t.actions)}
        if foreign := next((name for name in own if not name.startswith(t.id)), None):
            yield f"id {_short(foreign)} in episode {t.id} does not begin with the episode's"
        for reward in t.rewards:
            if reward.on not in own:
                yield f"reward {_short(reward.name)} of {t.id} is on {_short(reward.on)}, which is not in it"


def _tokens(thread: Thread, rules: Rules | None, whole: bool) -> Iterator[str]:
    for turn in thread.turns:
        where = _short(turn.id) if isinstance(turn, Action) else f"an observation of {_short(thread.id)}"
        if turn.ids and (min(turn.ids) < 0 or (rules is not None and max(turn.ids) >= rules.vocabulary)):
            most = f", the vocabulary has {rules.vocabulary}" if rules is not None else ""
            yield f"{where} has token ids from {_short(min(turn.ids))} to {_short(max(turn.ids))}{most}"
        if isinstance(turn, Action) and endpoint_of(thread.slot) is not None:
            if turn.logprobs:
                yield f"{where} has log-probs, and {_short(thread.slot)} gives none"
        elif isinstance(turn, Action):
            if not turn.ids or (len(turn.ids) != len(turn.logprobs) and (whole or turn.logprobs)):
                yield f"{where} has {len(turn.ids)} tokens and {len(turn.logprobs)} log-probs"
            if wrong := [p for p in turn.logprobs if not -inf < p <= HIGHEST_LOGPROB]:
                yield f"{where} has a token of log-prob {wrong[0]}"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:80]}…"
