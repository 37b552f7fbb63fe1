"""The episode, what it prepares, and a schedule of four stages."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rolecast.methods.base import Method, MethodConfig, imitation
from rolecast.methods.registry import register
from rolecast.ports import Embed, Judge
from rolecast.rewards.text import token_f1
from rolecast.rollout.env import Env
from rolecast.tags import blocks, tagged, trim
from rolecast.teachers.base import Teacher, TeacherErrors, best_answer
from rolecast.types import Objective, PolicyTerm, Question, Reward, Role, Stage, Trajectory, Unit


class RelayConfig(MethodConfig):
    name: Literal["relay"] = "relay"
    lr: float = 1e-3


@dataclass(slots=True)
class RelayState:
    question: str
    query: str = ""
    documents: list[str] = field(default_factory=list)


class RelayTeacher:
    def reply(self, role: str, state: RelayState, episode: Trajectory, rng: random.Random) -> str:
        if role == "planner":
            return tagged("search", rng.choice(episode.question.gold.chain).query)
        return tagged("answer", best_answer(episode.question, " ".join(state.documents)))


@register
class Relay(Method):
    name = "relay"
    trained = True
    config_type = RelayConfig
    presets = ("tiny",)
    config: RelayConfig
    k = 1

    def __init__(self, config: RelayConfig) -> None:
        super().__init__(config)
        self.roles = {
            "planner": Role("planner", frozenset({"question"}), ("</search>",), 12, "planner"),
            "answerer": Role("answerer", frozenset({"question", "documents"}), ("</answer>",), 12, "answerer"),
        }

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return RelayTeacher()

    async def rollout(self, question: Question, env: Env) -> str | None:
        """The planner's query, or one that was prepared, and the answer from what it finds."""
        state = RelayState(question.text, **question.given)
        if not state.query:
            role = self.roles["planner"]
            action, said = await self.turn(env, role, state, lambda text: blocks(text, "search"))
            state.query = (said["search"] if said else trim(action.text, role.stop)) or question.text
            state.documents = [passage.text for passage in await env.search(state.query, self.k)]
        _, said = await self.turn(env, self.roles["answerer"], state, lambda text: blocks(text, "answer"))
        return said["answer"] if said else None

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        """F1 of the answer; and on each action the share of its letters that stand in the question, which differs in any model."""
        t = trajectory
        asked = set(t.question.text)
        shares = [Reward("letters", action.id, sum(letter in asked for letter in action.text) / len(action.text)) for action in t.actions]
        return [Reward("f1", t.id, token_f1(t.answer, t.question.gold.answers)), *shares]

    def credit(self, group: Sequence[Trajectory]) -> list[Unit]:
        units = []
        for t in group:
            earned = {reward.on: reward.value or 0.0 for reward in t.rewards}
            for thread in t.threads if t.counts else ():
                [action] = thread.actions
                units.append(
                    Unit(thread.id, (action.id,), earned[t.id] + earned[action.id], thread.role, f"{t.group}:{thread.role}",
                         tag=thread.role, group=t.group, rollout=t.id)
                )  # fmt: skip
        return units

    def prepare(self, trajectory: Trajectory) -> Mapping[str, Any] | None:
        """What the answerer saw. Of an episode that did not come so far nothing is kept."""
        states = [trajectory.states[action.id] for thread in trajectory.threads_of("answerer") for action in thread.actions]
        return {"query": state.query, "documents": state.documents} if states and (state := states[0]) else None

    def schedule(self) -> tuple[Stage, ...]:
        first, second = (Objective(role, role, self.config.lr, "group", PolicyTerm()) for role in self.roles)
        return (
            Stage("sft", "sft", objectives=imitation("sft", "planner", "answerer")),
            Stage("planner", "rl", "sft", (first,)),
            Stage("plans", "rollout", "planner"),
            Stage("answerer", "rl", "planner", (second,), data="plans"),
        )
