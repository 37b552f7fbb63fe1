"""What the stages of a run are told, by their kinds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from rolecast.identity import ADDED, HOW, SEGMENT, SHAPE
from rolecast.learner.settings import OptimizerConfig, Packing
from rolecast.reading import CLOSED
from rolecast.teachers.base import TeacherErrors

Share = Annotated[float, Field(ge=0, le=1)]


class StageConfig(BaseModel):
    """What every stage has."""

    model_config = CLOSED

    # tokens of a reply, by role, for roles that have another limit in this stage, and with its model ever after
    lengths: dict[str, Annotated[int, Field(ge=1)]] = {}


class PlayedConfig(StageConfig):
    """What a stage has whose episodes workers may play."""

    lease_seconds: float = Field(60.0, gt=0, json_schema_extra=HOW)  # a worker that is silent for so long loses its groups to another one
    lease_tries: int = Field(3, ge=1, json_schema_extra=HOW)  # leases of a group before it is abandoned


class TrainedConfig(StageConfig):
    """What every stage of training has."""

    steps: int = Field(200, ge=0, json_schema_extra=SEGMENT)  # updates
    # the address of this stage's model as another run trained it, taken instead of training; held to its digest
    model: str | None = Field(None, min_length=1, json_schema_extra=HOW)
    optimizer: OptimizerConfig = OptimizerConfig()
    adapters: bool = True  # with model.lora: false trains whole weights in this stage, which must merge all that it trains
    optimizers: dict[str, OptimizerConfig] = {}  # by slot, for slots that have another optimizer than the rest
    max_tokens: int = Field(8192, ge=64, json_schema_extra=SHAPE)  # tokens of a micro-batch, with its padding
    # a micro-batch's rows are padded to the longest (off); lie in one row, each on its own (rows); or in one where what they begin with
    # alike is computed once (prefixes). For GPUs: without flex_attention the mask is of all pairs of tokens
    packing: Packing = Field("off", json_schema_extra=SHAPE)
    checkpoint_every: int = Field(10, ge=1, json_schema_extra=HOW)  # steps between two checkpoints
    keep: int = Field(2, ge=1, json_schema_extra=HOW)  # checkpoints that are kept


class SftConfig(TrainedConfig):
    """Supervised fine-tuning on the method's scripted teacher, or on demonstrations."""

    steps: int = Field(1000, ge=0, json_schema_extra=SEGMENT)  # updates
    batch: int = Field(16, ge=1)  # rows (turns) of a step
    lr: float = Field(2e-3, gt=0, le=100)  # peak learning rate
    errors: TeacherErrors = TeacherErrors()
    mix: dict[str, Share] = {}  # share of rows of each role; empty takes them as episodes have them
    drills: int = Field(0, ge=0)  # how many of the steps, the first ones, are reading drills instead of turns; for models from scratch
    invented: bool = False  # also where the run has data of its own, its teacher plays on invented worlds
    # what is learned instead of the teacher's turns: a file of conversations, or what `rolecast data demonstrate` kept
    demonstrations: str | None = Field(None, min_length=1, json_schema_extra=ADDED)
    checkpoint_every: int = Field(250, ge=1, json_schema_extra=HOW)  # steps between two checkpoints


class GuardConfig(BaseModel):
    """Collapse: the dev score stays under `fraction` of its best for `patience` evaluations; then the best is restored."""

    model_config = CLOSED

    fraction: float = Field(0.5, ge=0, le=1)  # collapsed is a dev score under this share of its best
    patience: int = Field(2, ge=1)  # evaluations in a row before the best is restored
    rollbacks: int = Field(1, ge=0)  # restorations before the stage is given up


class RolloutConfig(PlayedConfig):
    """Episodes from which the method prepares the questions of a later stage."""

    questions: int | None = Field(None, ge=1)  # at most so many train questions; by default all
    dev: int | None = Field(None, ge=1)  # at most so many dev questions; by default all
    samples: int = Field(1, ge=1)  # episodes of a train question
    temperature: float = Field(1.0, ge=0)  # of train questions; dev ones are played greedily
    shard: int = Field(64, ge=1)  # questions between two saves; SIGTERM waits for the end of a shard


class RlConfig(TrainedConfig, PlayedConfig):
    """Reinforcement learning from the method's rewards."""

    questions: int = Field(8, ge=1, json_schema_extra=SEGMENT)  # questions of a step
    group: int = Field(8, ge=1)  # rollouts of a question
    temperature: float = Field(1.0, gt=0)  # of sampling
    top_p: float = Field(1.0, gt=0, le=1)  # 1, the whole distribution, and nothing else: its log-probs are what the trainer recomputes
    refill: int = Field(1, ge=0, json_schema_extra=SEGMENT)  # extra rounds of sampling for groups without variance
    # groups that are sampled beside those that a step needs, where groups without variance are dropped: one that is dropped is replaced at once,
    # and what still plays when the step has enough is cancelled. 0: in rounds
    oversample: int = Field(0, ge=0, json_schema_extra=ADDED)
    # 1: the next step's groups are sampled while this one's update is made, so by weights one step older; each action is corrected for it
    staleness: int = Field(0, ge=0, le=1, json_schema_extra=ADDED)
    ratio_gate: float | None = Field(None, gt=0)  # bound of the mean |ratio - 1| on fresh tokens; by default what the dtype explains
    # so many steps in a row from which nothing could be learned end the stage; null: however many there are, it goes on to its last step
    idle_steps: int | None = Field(3, ge=1, json_schema_extra=SEGMENT)
    kl: float | None = Field(None, ge=0)  # coefficient of every objective's KL term, in place of the method's
    shuffle_rewards: bool = False  # a control: whole rollouts of a question exchange what they earned
    eval_every: int = Field(10, ge=1)  # steps between two evaluations on dev
    dev: int = Field(120, ge=1)  # questions of an in-loop evaluation
    guard: GuardConfig = GuardConfig()
    traces: int = Field(2, ge=0, json_schema_extra=HOW)  # episodes kept for the report at every evaluation
    record: bool = Field(False, json_schema_extra=HOW)  # keep every step's trajectories with their rewards, one artifact a step

    @field_validator("top_p")
    @classmethod
    def _whole_distribution(cls, top_p: float) -> float:
        if top_p < 1:
            raise ValueError("RL samples from the whole distribution, whose log-probs are what the trainer recomputes; leave top_p at 1")
        return top_p


STAGE_KINDS: dict[str, type[StageConfig]] = {"sft": SftConfig, "rollout": RolloutConfig, "rl": RlConfig}
