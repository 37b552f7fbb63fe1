"""The episode, its rewards, and a schedule of three stages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from pydantic import Field

from duet_method.state import DuetState
from duet_method.teacher import DuetTeacher
from rolecast.methods.base import Method, MethodConfig, imitation
from rolecast.methods.registry import register
from rolecast.ports import Embed, Judge, Sampling
from rolecast.rewards.text import token_f1
from rolecast.rollout.env import Env
from rolecast.tags import blocks, trim
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import KlTerm, Objective, Passage, PolicyTerm, Question, Reward, Role, Stage, Trajectory, Unit, ValueTerm

AGAIN = Sampling(0.5)  # of the teller's second answer, which is never trained on
BRANCHES = ("left", "right")


class DuetConfig(MethodConfig):
    name: Literal["duet"] = "duet"
    k: int = Field(1, ge=1)  # passages of each of the two searches
    max_tokens: int = Field(12, ge=1)
    scout_lr: float = Field(1e-3, gt=0)
    critic_lr: float = Field(3e-3, gt=0)
    teller_lr: float = Field(5e-4, gt=0)
    kl: float = Field(0.01, ge=0)  # of the teller, to the base


@register
class Duet(Method):
    name = "duet"
    trained = True
    config_type = DuetConfig
    presets = ("tiny",)
    config: DuetConfig

    def __init__(self, config: DuetConfig) -> None:
        super().__init__(config)
        self.roles = {
            "scout": Role("scout", frozenset({"question"}), ("</search>",), config.max_tokens, "scout"),
            "teller": Role("teller", frozenset({"question", "documents"}), ("</answer>",), config.max_tokens, "teller"),
        }

    @property
    def k(self) -> int:
        return self.config.k

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return DuetTeacher()

    async def rollout(self, question: Question, env: Env) -> str | None:
        """Two scouts at once, then the teller on what both found."""
        state = DuetState(question.text)
        found = await env.gather({branch: partial(self._scout, state) for branch in BRANCHES})
        state.found = dict(zip(BRANCHES, found, strict=True))
        return await self._tell(state, env)

    async def _scout(self, state: DuetState, env: Env) -> list[Passage]:
        """A reply without its tags is a query as it stands."""
        role = self.roles["scout"]
        action, said = await self.turn(env, role, state, lambda text: blocks(text, "search"))
        return await env.search(said["search"] if said else trim(action.text, role.stop), self.config.k)

    async def _tell(self, state: DuetState, env: Env, key: str = "") -> str | None:
        _, said = await self.turn(env, self.roles["teller"], state, lambda text: blocks(text, "answer"), key=key)
        return said["answer"] if said else None

    async def probe(self, trajectory: Trajectory, env: Env) -> None:
        """The teller answers once more, sampled otherwise, on the evidence that was recorded."""
        for thread in trajectory.threads_of("teller"):
            for action in thread.actions:
                await self._tell(trajectory.states[action.id], env.probe(AGAIN), "again")

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        """`found` on each scout's action: the share of gold passages. `told` on each of the teller's: F1. `grounded` on both: by it
        replies of a model that is right in nothing differ too, so every step has something to learn."""
        t, gold = trajectory, trajectory.question.gold
        if not t.counts:
            return []
        rewards = []
        for thread in [*t.threads_of("teller"), *t.threads_of("teller", probe=True)]:
            for action in thread.actions:
                state: DuetState = t.states[action.id]
                said = trim(action.text, self.roles["teller"].stop)
                answer = (blocks(said, "answer") or {"answer": said})["answer"]
                rewards.append(Reward("told", action.id, token_f1(answer, gold.answers)))
                rewards.append(Reward("grounded", action.id, _grounded(said, state.documents)))
        for thread, passages in zip(t.threads_of("scout"), state.found.values(), strict=True):
            [action] = thread.actions
            hits = {passage.id for passage in passages} & set(gold.passages)
            said = trim(action.text, self.roles["scout"].stop)
            rewards.append(Reward("found", action.id, len(hits) / max(1, len(gold.passages))))
            rewards.append(Reward("grounded", action.id, _grounded(said, [passage.text for passage in passages])))
        return rewards

    def credit(self, group: Sequence[Trajectory]) -> list[Unit]:
        """The teller earns what it said; a scout what it found, and what the teller says with it in the probe."""
        units = []
        for t in group:
            if not t.counts:
                continue
            earned = {(reward.name, reward.on): reward.value for reward in t.rewards}
            second = [earned["told", action.id] for thread in t.threads_of("teller", probe=True) for action in thread.actions]
            for role, objective in (("scout", "search"), ("teller", "answer")):
                for thread in t.threads_of(role):
                    [action] = thread.actions
                    own = [earned["found", action.id], *second] if role == "scout" else [earned["told", action.id]]
                    parts = [*own, earned["grounded", action.id]]
                    units.append(
                        Unit(thread.id, (action.id,), sum(part for part in parts if part is not None), objective, f"{t.group}:{role}",
                             thread.id, tag=role, group=t.group, rollout=t.id)
                    )  # fmt: skip
        return units

    def schedule(self) -> tuple[Stage, ...]:
        """`warmup` leaves both slots beside the base, `duet` trains both at once, `solo` goes on with the teller alone."""
        c = self.config
        search = Objective(
            "search",
            "scout",
            c.scout_lr,
            "gae",
            PolicyTerm(),
            critic=ValueTerm("critic", c.critic_lr),
            lam=0.95,
            whiten=True,
            minibatches=2,
        )
        answer = Objective("answer", "teller", c.teller_lr, "group", PolicyTerm("unit"), KlTerm(c.kl) if c.kl else None, epochs=2)
        return (
            Stage("warmup", "sft", objectives=imitation("warmup", "scout", "teller")),
            Stage("duet", "rl", "warmup", (search, answer)),
            Stage("solo", "rl", "duet", (answer,)),
        )


def _grounded(said: str, documents: Sequence[str]) -> float:
    """The share of what was said, three letters at a time, that the documents have."""
    known, pieces = " ".join(documents), [said[i : i + 3] for i in range(len(said) - 2)]
    return sum(piece in known for piece in pieces) / max(1, len(pieces))
