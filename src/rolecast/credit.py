"""From units of credit to advantages: one pure function, two estimators.

Methods say which actions share a reward, which units are normalised together and which form one return. Everything
that differs between GRPO, DECOR's role groups, PPO and turn-level returns is in those keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rolecast.types import Objective, Unit

Floats = npt.NDArray[np.float64]


def advantages(
    units: Sequence[Unit],
    objective: Objective,
    lengths: Mapping[str, int],
    values: Mapping[str, Floats] | None = None,
    penalties: Mapping[str, Floats] | None = None,
) -> dict[str, Floats]:
    """Advantage of every action token: {action id: float64 array of `lengths[action]`}.

    `values` (critic) and `penalties` (taken from the reward, e.g. KL) are per action token; only `gae` reads them.
    An action may belong to one unit per objective.
    """
    if objective.estimator == "gae":
        if values is None:
            raise ValueError(f"objective {objective.name} uses GAE and needs the critic's values")
        return {action: adv for action, (adv, _) in gae(units, objective, lengths, values, penalties).items()}
    scores = group_advantages(units, objective.eps) if objective.estimator == "group" else {u.id: u.reward for u in units}
    return {action: np.full(lengths[action], scores[unit.id]) for unit in units for action in unit.actions}


def group_advantages(units: Sequence[Unit], eps: float) -> dict[str, float]:
    """(R − μ) / (σ + ε) over the units of one baseline key; {unit id: advantage}. DECOR eq. 6; GRPO.

    σ is the sample's own deviation (over n). A group whose rewards are all equal has advantage 0, and so does a group
    of one: there is nothing to compare with.
    """
    groups: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        groups[unit.baseline].append(unit)
    result: dict[str, float] = {}
    for members in groups.values():
        rewards = np.array([unit.reward for unit in members], dtype=np.float64)
        deviation = rewards.std()
        same = deviation <= 1e-12  # rounding of equal rewards is not variance
        for unit, reward in zip(members, rewards, strict=True):
            result[unit.id] = 0.0 if same else float((reward - rewards.mean()) / (deviation + eps))
    return result


def gae(
    units: Sequence[Unit],
    objective: Objective,
    lengths: Mapping[str, int],
    values: Mapping[str, Floats],
    penalties: Mapping[str, Floats] | None = None,
) -> dict[str, tuple[Floats, Floats]]:
    """Generalised advantage estimation along each chain; {action id: (advantages, returns)}, both per token.

    A chain's action tokens are laid end to end in the order of its units: observations between them are no steps. Each
    unit's reward is earned by its last token. δ_t = r_t + γ V_{t+1} − V_t, A_t = δ_t + γλ A_{t+1} (Schulman et al. 2016),
    return = A + V.
    """
    chains: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        chains[unit.chain or unit.id].append(unit)
    result: dict[str, tuple[Floats, Floats]] = {}
    for chain in chains.values():
        actions: list[str] = []
        rewards: list[Floats] = []
        for unit in sorted(chain, key=lambda u: u.order):
            for action in unit.actions:
                earned = np.zeros(lengths[action])
                if penalties is not None:
                    earned -= penalties[action]
                actions.append(action)
                rewards.append(earned)
            rewards[-1][-1] += unit.reward
        r = np.concatenate(rewards)
        v = np.concatenate([values[action] for action in actions])
        advantage = np.zeros_like(r)
        ahead = 0.0
        for t in reversed(range(len(r))):
            following = v[t + 1] if t + 1 < len(v) else 0.0
            delta = r[t] + objective.gamma * following - v[t]
            ahead = delta + objective.gamma * objective.lam * ahead
            advantage[t] = ahead
        start = 0
        for action in actions:
            end = start + lengths[action]
            result[action] = (advantage[start:end], advantage[start:end] + v[start:end])
            start = end
    return result


def whiten(arrays: Mapping[str, Floats], eps: float = 1e-8) -> dict[str, Floats]:
    """Advantages with mean 0 and deviation 1 over all action tokens of a batch (PPO practice)."""
    flat = np.concatenate(list(arrays.values()))
    return {key: (array - flat.mean()) / (flat.std() + eps) for key, array in arrays.items()}
