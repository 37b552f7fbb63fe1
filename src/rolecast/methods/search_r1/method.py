"""Search-R1, the monolithic baseline: one role that thinks, searches and answers in one transcript (Jin et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from rolecast.methods.base import imitation
from rolecast.methods.information import SOURCES
from rolecast.methods.registry import register
from rolecast.methods.search_r1.teacher import SearchR1Teacher
from rolecast.methods.transcript import Move, PassagesConfig, PassageTranscript
from rolecast.ports import Embed, Judge
from rolecast.rewards.abstention import Answered, shares
from rolecast.rewards.evidence import sufficient
from rolecast.rewards.text import exact_match, token_f1
from rolecast.rollout.env import LiveThread
from rolecast.tags import blocks
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import KlTerm, Objective, Observation, PolicyTerm, Reward, Role, Stage, Trajectory, Unit, ValueTerm

OPEN, CLOSE = "<information>", "</information>"


class SearchR1Config(PassagesConfig):
    name: Literal["search_r1"] = "search_r1"  # which method
    algorithm: Literal["grpo", "ppo"] = "grpo"  # group baseline, or value head with GAE
    reward: Literal["outcome", "f1", "format"] = "outcome"  # exact match, token F1, or exact match graded by format
    retrieval_bonus: float = Field(0.0, ge=0)  # format reward: for a gold answer among the passages, where wrong and valid
    whiten: bool = True  # PPO advantages over a batch's action tokens
    lr: float = Field(1e-6, gt=0)  # of RL
    critic_lr: float = Field(1e-5, gt=0)  # of PPO's critic
    kl: float = Field(1e-3, ge=0)  # coefficient of the KL term to the start
    clip: float = Field(0.2, gt=0)  # the ratio is clipped at 1 ± this
    epochs: int = Field(1, ge=1)  # passes over a step's rollouts
    minibatches: int = Field(2, ge=1)  # updates of an epoch


@register
class SearchR1(PassageTranscript):
    name = "search_r1"
    trained = True
    config_type = SearchR1Config
    presets = ("grpo", "ppo")
    speaker = "searcher"
    again = "\nThat was neither a search nor an answer. Put a query in <search> </search> or the answer in <answer> </answer>.\n"
    frame = (f"\n{OPEN}", f"{CLOSE}\n")
    config: SearchR1Config

    def __init__(self, config: SearchR1Config) -> None:
        super().__init__(config)
        self.roles = {
            "searcher": Role("searcher", frozenset({"question"}), ("</search>", "</answer>"), config.max_tokens),
        }

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return SearchR1Teacher(errors, self.config.max_turns, self.thoughts)

    def read(self, text: str, thread: LiveThread) -> Move | None:
        return parse(text)

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        """`outcome` is EM, or F1; the format variant also counts whether every move was well formed."""
        t, golds = trajectory, trajectory.question.gold.answers
        right, f1 = bool(exact_match(t.answer, golds)), token_f1(t.answer, golds)
        valid = t.answer is not None and all(action.valid for action in t.actions)
        if self.config.reward == "outcome":
            value = float(right)
        elif self.config.reward == "f1":
            value = f1
        elif right:
            value = 1.0 if valid else 0.8
        else:
            found = bool(set(t.retrieved) & set(t.question.gold.passages))
            value = (0.2 + self.config.retrieval_bonus * found) if valid else 0.1
        seen = [turn.text for thread in t.threads for turn in thread.turns if isinstance(turn, Observation) and turn.sources == SOURCES]
        shown = [text.replace(OPEN, " ").replace(CLOSE, " ") for text in seen]  # or a tag would be part of a word
        enough = sufficient(shown, t.retrieved, t.question)
        return [
            Reward("outcome", t.id, value, "text"),
            Reward("team.em", t.id, float(right), "text"),
            Reward("team.f1", t.id, f1, "text"),
            *([] if enough is None else [Reward("sufficient", t.id, float(enough), "text")]),
        ]

    def diagnostics(self, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """To search to the last turn counts as abstaining (DAC, 6.1)."""
        answers = []
        for t in trajectories:
            of = {reward.name: reward.value for reward in t.rewards}
            if t.counts and (right := of.get("team.em")) is not None:
                answers.append(Answered(of.get("sufficient"), float(t.searches >= self.config.max_turns), right))
        return shares(answers)

    def credit(self, group: Sequence[Trajectory]) -> list[Unit]:
        """One unit per rollout: the outcome, on every action token."""
        units = []
        for t in group:
            outcome = next((r.value for r in t.rewards if r.name == "outcome"), None)
            actions = tuple(action.id for action in t.actions)
            if outcome is not None and actions and t.counts:
                units.append(
                    Unit(t.id, actions, outcome, self.config.algorithm, t.group, t.id, tag="searcher", group=t.group, rollout=t.id)
                )
        return units

    def schedule(self) -> tuple[Stage, ...]:
        c = self.config
        policy, epochs, cuts = PolicyTerm("token", (c.clip, c.clip)), c.epochs, c.minibatches
        if c.algorithm == "grpo":
            objective = Objective("grpo", "shared", c.lr, "group", policy, KlTerm(c.kl) if c.kl else None, epochs=epochs, minibatches=cuts)
        else:
            penalty, critic = KlTerm(c.kl, "reward") if c.kl else None, ValueTerm("critic", c.critic_lr)
            objective = Objective(
                "ppo", "shared", c.lr, "gae", policy, penalty, critic=critic, whiten=c.whiten, epochs=epochs, minibatches=cuts
            )
        return (
            Stage("sft", "sft", objectives=imitation("sft", "shared"), merges=("shared",)),
            Stage("rl", "rl", "sft", (objective,), merges=("shared",)),
        )


def parse(text: str) -> dict[str, str] | None:
    """{"search": query} or {"answer": answer}; None where the reply is neither or says nothing."""
    found = blocks(text, "think", "search") or blocks(text, "think", "answer")
    return found if found and (found.get("search") or found.get("answer")) else None
