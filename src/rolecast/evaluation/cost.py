"""What episodes took: tokens by who paid for them, searches, judge calls, and each role's longest context."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rolecast.types import Trajectory


@dataclass(frozen=True, slots=True)
class Cost:
    """Sums over episodes, probes included.

    `sampled`: tokens that trained roles spoke, what methods are compared on in RL. `frozen`: tokens that others spoke (frozen weights,
    external services). `prompt`: tokens that roles read, each once, however many turns its thread has. `searches`: queries, without
    those of probes. `judge_tokens`: as far as the judge says. `context`: tokens of the longest thread, by role.
    """

    sampled: int = 0
    frozen: int = 0
    prompt: int = 0
    searches: int = 0
    judge_calls: int = 0
    judge_tokens: int = 0
    context: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Cost) -> Cost:
        roles = dict.fromkeys([*self.context, *other.context])
        return Cost(
            self.sampled + other.sampled, self.frozen + other.frozen, self.prompt + other.prompt, self.searches + other.searches,
            self.judge_calls + other.judge_calls, self.judge_tokens + other.judge_tokens,
            {role: max(self.context.get(role, 0), other.context.get(role, 0)) for role in roles},
        )  # fmt: skip

    def totals(self) -> dict[str, int]:
        """What adds up, by name."""
        return {name: value for name, value in asdict(self).items() if isinstance(value, int)}


def cost_of(trajectories: Sequence[Trajectory], trained: Collection[str]) -> Cost:
    """`trained`: the roles whose tokens are `sampled`, unless an external service spoke in a role's place."""
    threads = [thread for t in trajectories for thread in t.threads]
    own = [thread.role in trained and not thread.slot.startswith("external:") for thread in threads]
    spoken = [(counts, sum(len(action.ids) for action in thread.actions)) for counts, thread in zip(own, threads, strict=True)]
    context: dict[str, int] = {}
    for thread in threads:
        context[thread.role] = max(context.get(thread.role, 0), len(thread.ids))
    return Cost(
        sampled=sum(count for counts, count in spoken if counts),
        frozen=sum(count for counts, count in spoken if not counts),
        prompt=sum(len(thread.ids) for thread in threads) - sum(count for _, count in spoken),
        searches=sum(t.searches for t in trajectories),
        judge_calls=sum(t.judge_calls for t in trajectories),
        judge_tokens=sum(t.judge_tokens for t in trajectories),
        context=context,
    )


def read_cost(kept: Mapping[str, Any]) -> Cost:
    """What a checkpoint or a manifest kept by `dataclasses.asdict`."""
    return Cost(**kept)
