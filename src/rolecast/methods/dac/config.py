"""DAC's options: the defaults are the paper's."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rolecast.methods.base import MethodConfig
from rolecast.methods.dac.credit import SearcherReward

Sufficiency = Literal["string", "gold_passages", "judge"]


class DacConfig(MethodConfig):
    name: Literal["dac"] = "dac"  # which method
    max_turns: int = Field(4, ge=1)  # searches of an episode, at most
    k: int = Field(3, ge=1)  # passages of a search
    max_tokens: int = Field(500, ge=1)  # new tokens of a reply, either role's
    observation_tokens: int = Field(500, ge=8)  # of what a search shows the searcher; longer is cut inside
    think: str = Field("think", pattern=r"^\w+$")  # the tag of thoughts; reason for Qwen3, whose own thinking has <think>
    # when the generator's prompt lets it say unknown: in training alone, as in the paper, or always, or never
    abstention: Literal["train", "always", "never"] = "train"
    further_searches: int = Field(0, ge=0)  # outside of training: searches that an abstention may ask for, one at a time (6.1)
    # who says that evidence is sufficient: words of a gold answer, the gold passages, or the judge
    sufficiency: Sufficiency = "string"
    searcher_reward: SearcherReward = "cross"  # s and not abstained (eq. 1); answer is Decomp-AR, sufficiency is Decomp-SR
    turn_rewards: bool = True  # differences of that reward, turn by turn (3.4); false gives all of it at the end
    # what that reward is of: one greedy answer to the evidence up to a turn, or the mean of samples
    prefix_answers: Literal["greedy", "samples"] = "greedy"
    generator_samples: int = Field(5, ge=2)  # G: answers to one evidence that are compared
    augmentation: bool = True  # answers to sufficient evidence with noise among it are trained too (3.3)
    noise_from: int = Field(15, ge=1)  # noise comes from so many passages that the question itself finds
    noise: int = Field(3, ge=1)  # so many from the end of that ranking
    imitation: float = Field(0.0, ge=0)  # coefficient of eq. 8; the paper tries 0.05
    searcher_lr: float = Field(1e-6, gt=0)  # of RL
    generator_lr: float = Field(1e-6, gt=0)  # of RL
    critic_lr: float = Field(1e-5, gt=0)  # of the searcher's critic
    clip: float = Field(0.2, gt=0)  # both ratios are clipped at 1 ± this
    whiten: bool = True  # the searcher's advantages over a batch's action tokens
    epochs: int = Field(1, ge=1)  # passes over a step's rollouts
    minibatches: int = Field(4, ge=1)  # updates of an epoch
