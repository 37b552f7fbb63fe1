"""CoDA: a planner that delegates tasks, and executors that search, each in a context of its own (3.2), trained by PECO (3.3).

The planner never sees documents or what was refined from them; an executor sees one task and nothing of the question.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Literal

from pydantic import Field, model_validator

from rolecast.errors import RolecastError
from rolecast.folds import TOKEN_MEAN, mean, total
from rolecast.methods.base import Method, MethodConfig, Most, Spoken, imitation
from rolecast.methods.coda import moves, rewards
from rolecast.methods.coda.moves import AGAIN, ANSWER, Move
from rolecast.methods.coda.state import CodaState, Pair
from rolecast.methods.coda.teacher import CodaTeacher
from rolecast.methods.registry import register
from rolecast.ports import Embed, Judge
from rolecast.rewards.text import exact_match, token_f1
from rolecast.rollout.env import Env, LiveThread, Overflow
from rolecast.tags import left_open, trim
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import KlTerm, Objective, Passage, PolicyTerm, Question, Reward, Role, Stage, Thread, Trajectory, Unit

log = logging.getLogger(__name__)
RESULT, DOCUMENTS = ("result",), ("documents",)  # sources of observations
FAILED = 0.1  # share of executors that fail, above which something is wrong


class SearchFailed(RolecastError):
    """The retriever failed an executor, which ends; the planner goes on without its result."""


class CodaConfig(MethodConfig):
    name: Literal["coda"] = "coda"  # which method
    structure: Literal["hierarchy", "monolithic"] = "hierarchy"  # planner and executors, or the ablation: one context for all
    depth: int = Field(1, ge=1, le=2)  # levels of executors: with 2 an executor may delegate once more
    max_turns: int = Field(6, ge=1)  # replies of each thread, planner's and executor's
    k: int = Field(3, ge=1)  # passages of a search
    max_tokens: int = Field(512, ge=1)  # new tokens a turn
    # eq. 9; without the refine reward; the answer's alone; search_r1's exact match alone
    reward: Literal["full", "format", "answer", "em"] = "full"
    format_needs: Literal["both", "either"] = "both"  # I_P: a task and an answer (code), or either of them (text)
    executors: Literal["all", "mean"] = "all"  # I_E: all executors are right (text), or their share (code)
    refine_weight: float = Field(0.5, ge=0)  # delta of the refine reward (code; the text names no number)
    tokens: Literal["sum", "mean"] = "sum"  # the loss: over a rollout's tokens (text), or the mean of the minibatch's tokens (code)
    clip: float = Field(0.2, gt=0)  # the ratio is clipped at 1 ± this
    dual_clip: float | None = Field(None, gt=1)  # bound of the loss where the advantage is negative; the code has 3
    kl: float = Field(1e-3, ge=0)  # coefficient of the KL term to the start
    lr: float = Field(1e-6, gt=0)  # of RL
    epochs: int = Field(1, ge=1)  # passes over a step's rollouts
    minibatches: int = Field(8, ge=1)  # updates of an epoch

    @model_validator(mode="after")
    def _fits(self) -> CodaConfig:
        if self.structure == "monolithic" and self.depth > 1:
            raise ValueError("depth 2 nests executors, which structure: monolithic does not have; set depth to 1")
        return self


@register
class Coda(Method):
    name = "coda"
    trained = True
    config_type = CodaConfig
    presets = ("demo",)
    words = ("executor", "lead", "monolith", "task", AGAIN)
    config: CodaConfig

    def __init__(self, config: CodaConfig) -> None:
        super().__init__(config)
        if config.structure == "monolithic":
            names = ["monolith"]
        else:
            names = ["planner", "executor"] if config.depth == 1 else ["planner", "lead", "executor"]
        sees = {name: frozenset({"question" if name in ("planner", "monolith") else "task"}) for name in names}
        self.roles = {name: Role(name, sees[name], moves.stops(name), config.max_tokens) for name in names}

    @property
    def k(self) -> int:
        return self.config.k

    @property
    def most(self) -> Most:
        """What the last of a thread's turns asks for is not done, so each delegates, or searches, one time less than it speaks."""
        turns = self.config.max_turns
        said = {role: Spoken((turns - 1) ** level, turns) for level, role in enumerate(self.roles)}
        return Most(said, (turns - 1) ** len(self.roles))

    @property
    def top(self) -> str:
        """The role that is asked the question."""
        return next(iter(self.roles))

    @property
    def workers(self) -> tuple[str, ...]:
        """The roles that tasks are delegated to."""
        return tuple(self.roles)[1:]

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return CodaTeacher(errors, self.config.max_turns, self.config.depth, self.thoughts)

    async def rollout(self, question: Question, env: Env) -> str | None:
        return await self._work(env, self.top, CodaState(question=question.text))

    async def _work(self, env: Env, name: str, state: CodaState, parent: Thread | None = None) -> str | None:
        """One thread from its prompt to its answer, None after `max_turns` replies without one (3.3.1).

        What the last turn asks for is not done: nobody could read what comes of it.
        """
        role = self.roles[name]
        live = env.open(role, self.messages(role, state), state=state, parent=parent)
        for turn in range(1, self.config.max_turns + 1):
            _, move = await live.act(lambda text: moves.read(text, name, bool(state.queries)))
            if move is not None and move.act == ANSWER:
                return move.content
            if turn < self.config.max_turns:
                await self._respond(env, live, move, state)
        return None

    async def _respond(self, env: Env, live: LiveThread, move: Move | None, state: CodaState) -> None:
        if move is None:
            live.observe(moves.again(live.role.name, self.config.prompts))
            return
        if move.refine:
            state.notes.append(move.refine)
        if move.act == "task":
            answer = await self._delegate(env, move.content, live)
            state.pairs.append(Pair(move.content, answer))
            live.observe(moves.result(answer), RESULT)
        else:
            state.documents = await self._search(env, move.content, live.thread)
            state.queries.append(move.content)
            live.observe(moves.shown(state.documents, self.config.prompts), DOCUMENTS)

    async def _delegate(self, env: Env, task: str, live: LiveThread) -> str:
        """The answer of an executor that sees the task alone; empty where it has none.

        What fails an executor (its context is full, its search fails) is its own end, and an empty result for who delegated.
        """
        names = list(self.roles)
        below = names[names.index(live.role.name) + 1]
        try:
            answer = await self._work(env, below, CodaState(task=task), live.thread)
        except (Overflow, SearchFailed) as fault:
            log.warning("an executor of %s failed, the episode goes on: %s", live.thread.id, fault)
            return ""
        return env.renderer.quoted(answer or "")

    async def _search(self, env: Env, query: str, thread: Thread) -> list[Passage]:
        try:
            return await env.search(query, self.config.k)
        except Exception as error:
            raise SearchFailed(f"thread {thread.id}: the search for {query!r} failed: {type(error).__name__}: {error}") from error

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        """`format.planner` (I_P) and `refine` on the trajectory; `format.executor` on each executor, unscored where it failed of what no
        role is to blame for. The monolith is planner and executor in one.
        """
        t, c = trajectory, self.config
        if not t.counts:
            return []
        golds = t.question.gold.answers
        said = {thread.id: self.replies(t, thread) for thread in t.threads}
        [top] = t.threads_of(self.top)
        alone = c.structure == "monolithic"
        right = (rewards.executor_format if alone else rewards.planner_format)(said[top.id], c.format_needs)
        notes = [move.refine for replies in said.values() for move in replies if move is not None and move.refine]
        return [
            Reward("team.em", t.id, exact_match(t.answer, golds), "text"),
            Reward("team.f1", t.id, token_f1(t.answer, golds), "text"),
            Reward("format.planner", t.id, float(right), "protocol"),
            *(self._executor_reward(thread, said[thread.id]) for thread in ([top] if alone else self.executors(t))),
            Reward("refine", t.id, rewards.refined(notes, golds), "text"),
        ]

    def _executor_reward(self, thread: Thread, replies: rewards.Replies) -> Reward:
        on = thread.actions[-1].id if thread.actions else thread.id
        if self.failed(thread, replies):
            return Reward("format.executor", on, None, "protocol", "unscored: its context was full or its search failed")
        return Reward("format.executor", on, float(rewards.executor_format(replies, self.config.format_needs)), "protocol")

    def failed(self, thread: Thread, replies: rewards.Replies) -> bool:
        """Whether an executor ended before its answer and before its turns did."""
        answered = bool(replies) and (last := replies[-1]) is not None and last.act == ANSWER
        return not answered and len(replies) < self.config.max_turns

    def executors(self, t: Trajectory) -> list[Thread]:
        return [thread for thread in t.threads if thread.role in self.workers and not thread.probe]

    def replies(self, t: Trajectory, thread: Thread) -> list[Move | None]:
        """The thread's moves as `act` read them."""
        opening, stop = left_open(thread.turns[0].text), self.roles[thread.role].stop
        said = [("" if number else opening) + trim(action.text, stop) for number, action in enumerate(thread.actions)]
        states: list[CodaState] = [t.states[action.id] for action in thread.actions]
        return [moves.read(text, thread.role, bool(state.queries)) for text, state in zip(said, states, strict=True)]

    def credit(self, group: Sequence[Trajectory]) -> list[Unit]:
        """One unit per rollout over the actions of all its threads, normalised over the question's rollouts (eq. 2)."""
        units = []
        for t in group:
            actions = tuple(action.id for action in t.actions)
            reward = self.reward(t)
            if actions and reward is not None:
                units.append(Unit(t.id, actions, reward, "peco", t.group, tag="team", group=t.group, rollout=t.id))
        return units

    def reward(self, t: Trajectory) -> float | None:
        """Eq. 9, or one of its ablations. None where the episode was not scored, or no role is to blame for how it ended."""
        c, named = self.config, {reward.name: reward.value for reward in t.rewards if reward.on == t.id}
        if not t.counts or any(named.get(name) is None for name in ("team.em", "team.f1", "format.planner", "refine")):
            return None
        em, f1, planner, refine = (named[name] or 0.0 for name in ("team.em", "team.f1", "format.planner", "refine"))
        if c.reward == "em":
            return em
        earned = rewards.answer_reward(f1)
        if c.reward != "answer":
            earned += planner + rewards.executors_format(_right(t), c.executors)
        return earned + c.refine_weight * refine if c.reward == "full" else earned

    def diagnostics(self, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Executors per question, the share of them that is right and that failed, and the longest context of each role (tokens): its
        mean over the episodes, and the largest of all (3.4).
        """
        counts = [len(self.executors(t)) for t in trajectories]
        scores = [r.value for t in trajectories for r in t.rewards if r.name == "format.executor"]
        right = [value for value in scores if value is not None]
        told: dict[str, float] = {}
        if self.workers:
            told["executors"] = fmean(counts) if counts else 0.0
            if scores:
                told["executors/failed"] = 1 - len(right) / len(scores)
            if right:
                told["executors/right"] = fmean(right)
        for role in self.roles:
            peaks = [max(len(thread.ids) for thread in threads) for t in trajectories if (threads := t.threads_of(role))]
            if peaks:
                told |= {f"context/{role}": fmean(peaks), f"context/{role}/max": float(max(peaks))}
        return told

    def alarms(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
        share = rows[-1].get("method/executors/failed", 0.0) if rows else 0.0
        if share <= FAILED:
            return {}
        return {
            "executors_failed": f"{share:.0%} of the executors failed, and their results are empty: "
            "see the log for failed searches; else raise model.max_context or lower method.k"
        }

    def schedule(self) -> tuple[Stage, ...]:
        """One token-level objective over the shared weights. The sum over a rollout's tokens is averaged over rollouts, then questions."""
        c = self.config
        over = (total("rollout"), mean("group"), mean("batch")) if c.tokens == "sum" else TOKEN_MEAN
        policy = PolicyTerm("token", (c.clip, c.clip), c.dual_clip, over)
        kl = KlTerm(c.kl, over=over) if c.kl else None
        objective = Objective("peco", "shared", c.lr, "group", policy, kl, epochs=c.epochs, minibatches=c.minibatches)
        return (
            Stage("sft", "sft", objectives=imitation("sft", "shared"), merges=("shared",)),
            Stage("rl", "rl", "sft", (objective,), merges=("shared",)),
        )


def _right(t: Trajectory) -> list[float]:
    """The executors' scores, without those that failed of what no role is to blame for."""
    return [reward.value for reward in t.rewards if reward.name == "format.executor" and reward.value is not None]
