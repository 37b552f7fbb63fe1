"""DecomposeR's options. Learning rates, clip range and weights are lost from the paper's text: those here are ours."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rolecast.methods.base import MethodConfig
from rolecast.methods.decomposer.graph import Structure
from rolecast.methods.decomposer.rewards import Weights


class DecomposerConfig(MethodConfig):
    name: Literal["decomposer"] = "decomposer"  # which method
    k: int = Field(5, ge=1)  # results of a search
    fetches: int = Field(4, ge=0)  # results that the planner may have fetched whole
    snippet_words: int = Field(100, ge=1)  # of a result, as long as it is not fetched
    turns: Literal[1, 2] = 2  # of the planner; 1 executes the first graph (ablation)
    structure: Structure = "dag"  # of plans; linear (no aggregates) and tree (one parent each) are ablations
    training: Literal["staged", "joint"] = "staged"  # joint: both roles at once on the final report's reward (ablation)
    external: str | None = Field(None, pattern=r"^[\w.-]+$")  # the name of an endpoint that plays the answerer, which is then not trained
    # the name of an endpoint that plays all roles on train questions first: SFT learns what passes validator and parser
    cold_start: str | None = Field(None, pattern=r"^[\w.-]+$")
    short_answer: bool = True  # the answer node gives a short answer too; false where questions ask for a report alone
    planner_tokens: int = Field(8192, ge=1)  # of a reply of the planner
    answerer_tokens: int = Field(16384, ge=1)  # of a reply of the answerer
    weights: Weights = Weights()
    planner_lr: float = Field(1e-6, gt=0)  # of planner RL
    answerer_lr: float = Field(1e-6, gt=0)  # of answerer RL
    planner_kl: float = Field(1e-3, ge=0)  # coefficient of the KL term to the stage's start
    answerer_kl: float = Field(5e-3, ge=0)  # the same in answerer RL
    clip: float = Field(0.2, gt=0)  # the ratio is clipped at 1 ± this
    minibatches: int = Field(2, ge=1)  # updates of an epoch
    epochs: int = Field(1, ge=1)  # passes over a step's rollouts

    @property
    def counted(self) -> Weights:
        """The weights as they count: a linear plan has no graph to score and no aggregates to execute."""
        if self.structure == "linear":
            return self.weights.model_copy(update={"expressiveness": 0.0, "execution": 0.0})
        return self.weights
