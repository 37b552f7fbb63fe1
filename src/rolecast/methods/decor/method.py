"""DECOR: planner, filter and answerer around one curated memory (Algorithm 1; rewards 4.3; credit 4.4).

The planner never sees documents, the filter never sees the question, the answerer sees the question and the memory only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

from pydantic import Field

from rolecast.folds import mean, total
from rolecast.judge.kinds import JudgeKind, Rule
from rolecast.methods.base import DynamicSampling, Method, MethodConfig, Most, Spoken, imitation
from rolecast.methods.decor.condense import condense
from rolecast.methods.decor.judge import KINDS
from rolecast.methods.decor.state import STOP, DecorState, Entry
from rolecast.methods.decor.teacher import DecorTeacher
from rolecast.methods.decor.verdicts import RULES
from rolecast.methods.registry import register
from rolecast.ports import Embed, Judge
from rolecast.rewards.text import exact_match, token_f1
from rolecast.rollout.env import Env, EpisodeEnd
from rolecast.tags import blocks, left_open, trim
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import Objective, PolicyTerm, Question, Reward, Role, Stage, Trajectory, Unit


class DecorConfig(MethodConfig):
    name: Literal["decor"] = "decor"  # which method
    max_turns: int = Field(4, ge=1)  # T_max: searches of an episode
    k: int = Field(5, ge=1)  # passages of a search
    memory_tokens: int = Field(4096, ge=1)  # L_max: longer memory is condensed
    max_tokens: int = Field(4096, ge=1)  # tokens of every role's reply
    condenser: Literal["model", "extractive"] = "model"  # who condenses: the frozen model, or extraction
    alpha: float = Field(0.6, ge=0, le=1)  # team against role reward (eq. 3)
    lam: float = Field(0.5, ge=0, le=1)  # F1 against judge within the team reward (eq. 2)
    team: Literal["hybrid", "f1", "em"] = "hybrid"  # the team reward; f1 and em are ablations
    dynamic_sampling: DynamicSampling = "group"  # which groups or rollouts do not train
    lr: float = Field(2e-6, gt=0)  # of RL
    clip_low: float = Field(3e-4, gt=0)  # the ratio is clipped at 1 - this
    clip_high: float = Field(4e-4, gt=0)  # and at 1 + this
    minibatches: int = Field(2, ge=1)  # updates of an epoch
    epochs: int = Field(1, ge=1)  # passes over a step's rollouts


@register
class Decor(Method):
    name = "decor"
    trained = True
    config_type = DecorConfig
    presets = ("demo", "small_model")
    config: DecorConfig

    def __init__(self, config: DecorConfig) -> None:
        super().__init__(config)
        limit = config.max_tokens
        self.roles = {
            "planner": Role("planner", frozenset({"question", "queries", "memory"}), ("</search>",), limit),
            "filter": Role("filter", frozenset({"sub_query", "documents"}), ("</filter>",), limit),
            "answerer": Role("answerer", frozenset({"question", "memory"}), ("</answer>",), limit),
        }
        if config.condenser == "model":
            self.roles["condenser"] = Role("condenser", frozenset({"entry"}), ("</facts>",), limit, slot="frozen")

    @property
    def k(self) -> int:
        return self.config.k

    @property
    def dynamic_sampling(self) -> DynamicSampling:
        return self.config.dynamic_sampling

    @property
    def most(self) -> Most:
        """Every entry of memory but the last is condensed once at most; every reply is judged, and the answer once more."""
        turns = self.config.max_turns
        said = {"planner": Spoken(turns), "filter": Spoken(turns), "answerer": Spoken(1), "condenser": Spoken(turns - 1)}
        return Most({role: said[role] for role in self.roles}, turns, 2 * turns + 2)

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return DecorTeacher(errors, self.thoughts)

    @classmethod
    def judge_kinds(cls) -> Sequence[JudgeKind]:
        return KINDS

    @property
    def judged(self) -> Sequence[JudgeKind]:
        return KINDS if self.config.alpha < 1 else ()

    @property
    def unjudged(self) -> str:
        return "method.alpha to 1, by which every role earns the team's reward alone"

    @classmethod
    def verdicts(cls) -> Mapping[str, Rule]:
        return RULES

    async def rollout(self, question: Question, env: Env) -> str | None:
        state = DecorState(question.text)
        for _ in range(self.config.max_turns):
            query = await self._speak(env, "planner", state, "search")
            if query == STOP:
                break
            state.sub_query = query
            state.queries.append(query)
            state.documents = await env.search(query, self.config.k)
            evidence = await self._speak(env, "filter", state, "filter")
            await self._remember(state, Entry(query, evidence), env)
        return await self._speak(env, "answerer", state, "answer")

    async def _speak(self, env: Env, role: str, state: DecorState, tag: str) -> str:
        """The content of the role's reply. A reply without its tags ends the episode (4.3, format compliance)."""

        def parse(text: str) -> str | None:
            found = blocks(text, "think", tag)
            # An empty filter says that nothing was worth keeping; an empty query or answer says nothing.
            return None if found is None or (not found[tag] and role != "filter") else found[tag]

        _, content = await self.turn(env, self.roles[role], state, parse)
        if content is None:
            raise EpisodeEnd("format")
        return content

    async def _remember(self, state: DecorState, entry: Entry, env: Env) -> None:
        """Adds to memory; while it would pass its limit, the earliest entries are condensed to atomic facts (4.2)."""
        for earliest in state.memory:
            if self._memory_tokens([*state.memory, entry], env) <= self.config.memory_tokens:
                break
            if not earliest.condensed:
                earliest.evidence = await self._condense(earliest, state, env)
                earliest.condensed = True
        state.memory.append(entry)

    def _memory_tokens(self, memory: Sequence[Entry], env: Env) -> int:
        return env.tokens("\n".join(f"{entry.query}: {entry.evidence}" for entry in memory))

    async def _condense(self, entry: Entry, state: DecorState, env: Env) -> str:
        if self.config.condenser == "extractive":
            return condense(entry.evidence)
        state.entry = entry
        _, found = await self.turn(env, self.roles["condenser"], state, lambda text: blocks(text, "facts"))
        return found["facts"] if found and found["facts"] else entry.evidence  # the frozen model may fail; evidence is never lost

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        """`team.*` on the trajectory; `role` on every action that a role judge scores."""
        t, gold = trajectory, trajectory.question.gold
        if not t.counts:
            return []
        if t.status == "format":
            return [Reward("format", t.id, -1.0, "protocol", t.status)]
        verdict = await judge.judge("answer", {"question": t.question.text, "prediction": t.answer, "gold": gold})
        rewards = [
            Reward("team.f1", t.id, token_f1(t.answer, gold.answers), "text"),
            Reward("team.em", t.id, exact_match(t.answer, gold.answers), "text"),
            Reward("team.judge", t.id, verdict.score, "judge", verdict.reason),
        ]
        for role, tag in (("planner", "search"), ("filter", "filter"), ("answerer", "answer")):
            for thread in t.threads_of(role):
                for action in thread.actions:
                    state: DecorState = t.states[action.id]
                    said = left_open(thread.turns[0].text) + trim(action.text, self.roles[role].stop)  # as `act` read it
                    inputs = {
                        "question": t.question.text, "gold": gold, "queries": state.queries, "output": said,
                        "content": (blocks(said, "think", tag) or {tag: ""})[tag],
                        "memory": "\n".join(entry.evidence for entry in state.memory),
                        "sub_query": state.sub_query, "documents": [p.text for p in state.documents],
                    }  # fmt: skip
                    verdict = await judge.judge(f"decor.{role}", inputs)
                    rewards.append(Reward("role", action.id, verdict.score, f"judge.{role}", verdict.reason))
        return rewards

    def credit(self, group: Sequence[Trajectory]) -> list[Unit]:
        """One unit per (rollout, role), normalised over the question's rollouts role by role (eq. 3, 6)."""
        units = []
        for t in group:
            for role in ("planner", "filter", "answerer"):
                actions = tuple(action.id for thread in t.threads_of(role) for action in thread.actions)
                reward = self.role_reward(t, role, actions) if actions else None
                if reward is not None:
                    units.append(
                        Unit(f"{t.id}:{role}", actions, reward, "decor", f"{t.group}:{role}", tag=role, group=t.group, rollout=t.id)
                    )
        return units

    def role_reward(self, t: Trajectory, role: str, actions: Sequence[str]) -> float | None:
        """Eq. 3. None where a score that counts is missing, or no role is to blame for how the episode ended."""
        if not t.counts:
            return None
        if t.status == "format":
            return -1.0
        named = {(reward.name, reward.on): reward.value for reward in t.rewards}
        team = self._team_reward({name: named.get((f"team.{name}", t.id)) for name in ("f1", "em", "judge")})
        scores = [value for action in actions if (value := named.get(("role", action))) is not None]
        own = fmean(scores) if scores else None
        if own is None and role == "answerer" and self.config.alpha:  # no verdict: the evidence was not in memory
            return team
        return _weighted_sum((self.config.alpha, team), (1 - self.config.alpha, own))

    def _team_reward(self, scores: Mapping[str, float | None]) -> float | None:
        """Eq. 2, or one of its ablations. None if a score that counts is missing."""
        if self.config.team != "hybrid":
            return scores[self.config.team]
        return _weighted_sum((self.config.lam, scores["f1"]), (1 - self.config.lam, scores["judge"]))

    def schedule(self) -> tuple[Stage, ...]:
        """One sequence-level objective over the shared weights; roles differ by their units (eq. 4-5): a sum over the roles of a
        rollout, a mean over the rollouts of a question."""
        c = self.config
        policy = PolicyTerm("unit", (c.clip_low, c.clip_high), over=(total("rollout"), mean("group"), mean("batch")))
        objective = Objective("decor", "shared", c.lr, "group", policy, epochs=c.epochs, minibatches=c.minibatches)
        return (
            Stage("sft", "sft", objectives=imitation("sft", "shared"), merges=("shared",)),
            Stage("rl", "rl", "sft", (objective,), merges=("shared",)),
        )


def _weighted_sum(*terms: tuple[float, float | None]) -> float | None:
    """Σ weight · score. None if a score is missing, unless its weight is 0: what does not count may be missing."""
    counted = [(weight, score) for weight, score in terms if weight]
    if any(score is None for _, score in counted):
        return None
    return sum(weight * score for weight, score in counted if score is not None)
