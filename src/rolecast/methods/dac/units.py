"""From an episode's components to its units of credit, and to the rows of the imitation term."""

from __future__ import annotations

from collections.abc import Mapping

from rolecast.methods.dac.credit import SearcherReward, Verdicts, differences, evidence_value, generator_reward
from rolecast.methods.dac.scoring import ABSTAINED, RIGHT, SUFFICIENT_NAME, kind_of
from rolecast.methods.dac.state import NOISY, SAMPLE
from rolecast.types import Action, Example, Thread, Trajectory, Unit

Named = Mapping[tuple[str, str], float | None]  # a reward's value by its name and what it is on


def named(t: Trajectory) -> Named:
    return {(reward.name, reward.on): reward.value for reward in t.rewards}


def answers(t: Trajectory, *kinds: str) -> list[Action]:
    """The generator's answers of these kinds, in the order in which they were opened."""
    return [action for thread in t.threads if thread.role == "generator" and kind_of(thread) in kinds for action in thread.actions]


def searcher_units(t: Trajectory, kind: SearcherReward, turn_rewards: bool) -> list[Unit]:
    """One unit a turn, r(t) on its last token; all are one chain, so that its return from turn t on is R(T) − R(t−1). Without turn
    rewards one unit with R(T). None where a value that counts is unknown."""
    of = named(t)
    actions = [action.id for thread in t.threads_of("searcher") for action in thread.actions]
    values = [evidence_value(Verdicts(of.get((SUFFICIENT_NAME, id)), of.get((ABSTAINED, id)), of.get((RIGHT, id))), kind) for id in actions]
    baseline = chain = f"{t.id}:searcher"
    if not turn_rewards:
        last = values[-1] if values else None
        return [] if last is None else [Unit(chain, tuple(actions), last, "searcher", baseline, chain, 0, "searcher", t.group, t.id)]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return []
    return [
        Unit(id, (id,), reward, "searcher", baseline, chain, order, "searcher", t.group, t.id)
        for order, (id, reward) in enumerate(zip(actions, differences(known), strict=True))
    ]


def generator_units(t: Trajectory) -> list[Unit]:
    """One unit an answer; those to the episode's evidence are compared with each other, and so are those to augmented evidence."""
    of = named(t)
    whole = of.get((SUFFICIENT_NAME, t.id))
    units = []
    for order, (name, kinds, counts) in enumerate((("evidence", ("", SAMPLE), True), (NOISY, (NOISY,), whole == 1))):
        for action in answers(t, *kinds) if counts else ():
            reward = generator_reward(Verdicts(whole, of.get((ABSTAINED, action.id)), of.get((RIGHT, action.id))))
            if reward is not None:
                units.append(
                    Unit(action.id, (action.id,), reward, "generator", f"{t.id}:{name}", action.id, order, "generator", t.group, t.id)
                )
    return units


def imitated(t: Trajectory) -> list[Example]:
    """Eq. 7: after (Q, E'), what was said to (Q, E), where that was right and the answer of the same number to E' was wrong."""
    of = named(t)
    if of.get((SUFFICIENT_NAME, t.id)) != 1:
        return []
    clean, noisy = _numbered(t, "", SAMPLE), _numbered(t, NOISY)
    pairs = [(clean[number].actions[0], noisy[number]) for number in sorted(clean.keys() & noisy.keys())]
    return [
        _row(t, prompted, said.ids)
        for said, prompted in pairs
        if of.get((RIGHT, said.id)) == 1 and of.get((RIGHT, prompted.actions[0].id)) == 0
    ]


def _numbered(t: Trajectory, *kinds: str) -> dict[int, Thread]:
    """Threads with an answer, by the number of their sample; the episode's own is number 0."""
    found = [thread for thread in t.threads if thread.role == "generator" and kind_of(thread) in kinds and thread.actions]
    return {int(thread.key.split("=")[1]) if kind_of(thread) else 0: thread for thread in found}


def _row(t: Trajectory, prompted: Thread, said: tuple[int, ...]) -> Example:
    prompt = prompted.turns[0].ids
    trained = (False,) * len(prompt) + (True,) * len(said)
    return Example((*prompt, *said), trained, tag="generator", objective="generator", group=t.group)
