"""The central records. Data flows one way: question → trajectory → rewards → credit → batch → update → publish.

Records are plain frozen dataclasses; `Thread` and `Trajectory` grow while an episode runs. Token ids are Python ints in
tuples here; arrays begin in `learner.batch`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from typing import Any, Literal

from rolecast.folds import TOKEN_MEAN, Reduction

Slot = str  # which weights: "shared", a role's adapter, "critic", "frozen", "external:NAME"
EXTERNAL = "external:"  # what the slot of an endpoint begins with
Message = Mapping[str, str]  # {"role": "system" | "user" | "assistant", "content": text}
Status = Literal["ok", "format", "length", "error"]
StageKind = Literal["sft", "rollout", "rl"]
TRAIN = "train"  # where a stage's questions are from: the run's own, unless it names a rollout stage


def external(name: str) -> Slot:
    """The slot of roles that speak through the endpoint of that name."""
    return EXTERNAL + name


def endpoint_of(slot: Slot) -> str | None:
    """The name of the endpoint that a slot stands for; None where it stands for weights of the team."""
    return slot.removeprefix(EXTERNAL) if slot.startswith(EXTERNAL) else None


@dataclass(frozen=True, slots=True)
class Role:
    """One part that the language model plays.

    `sees` names the fields of the method's state that may reach this role's prompt; the barrier tests hold it to that.
    """

    name: str
    sees: frozenset[str]
    stop: tuple[str, ...]
    max_tokens: int
    slot: Slot = "shared"


@dataclass(frozen=True, slots=True)
class Passage:
    """One retrievable text. `score` is filled by a retriever; its scale depends on the retriever."""

    id: str
    title: str
    text: str
    score: float = 0.0

    def __deepcopy__(self, memo: dict[int, object]) -> Passage:
        """Itself: nothing of it ever changes, and every recorded state holds some."""
        return self


@dataclass(frozen=True, slots=True)
class Hop:
    """One gold fact of a question: what states it (`fact`, one sentence), where, and a query that finds it.

    A hop without an object is one that no passage states, and its `passage` is empty: the question has no answer in the corpus.
    """

    subject: str
    relation: str
    object: str
    fact: str
    passage: str
    query: str

    @property
    def stated(self) -> bool:
        return bool(self.object)


@dataclass(frozen=True, slots=True)
class RubricItem:
    """One thing that a long answer should say or do. `dimension`: what it is a part of, where a rubric has parts (insight, readability)."""

    text: str
    weight: float = 1.0
    dimension: str = ""


@dataclass(frozen=True, slots=True)
class Gold:
    """What only rewards, judges and evaluation may read: answers, or a rubric where an answer is a report.

    `chain` is empty where a data set has no gold chains.
    """

    answers: tuple[str, ...]
    chain: tuple[Hop, ...] = ()
    passages: tuple[str, ...] = ()
    rubric: tuple[RubricItem, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question. `given` is state that an earlier stage prepared; `gold` never reaches `messages`.

    `dataset` and `original_id` say which row of whose file it was, as that data set calls it: official scorers ask for it.
    """

    id: str
    text: str
    gold: Gold
    type: str = ""
    hops: int = 0
    given: Mapping[str, Any] = field(default_factory=dict)
    dataset: str = ""
    original_id: str = ""
    level: str = ""


def question_id(dataset: str, split: str, row: int | str) -> str:
    """Identity of a row across data sets, so that rows of two sets never share a group."""
    return hashlib.blake2b(f"{dataset}\x1f{split}\x1f{row}".encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Version:
    """Which team acted: one manifest covers all slots. `adapters[slot] is None` means merged into the base.

    `rollback`: how many there were before; a step whose weights were put back is published a second time, with other weights.
    """

    run: str
    attempt: int
    step: int
    base: str = ""
    adapters: Mapping[Slot, str | None] = field(default_factory=dict)
    rollback: int = 0

    def __str__(self) -> str:
        return f"{self.run}/{self.attempt}.{self.step}" + (f".r{self.rollback}" if self.rollback else "")


@dataclass(frozen=True, slots=True)
class Action:
    """Sampled tokens: the only ones that carry loss. `text == decode(ids)`, never cut at the stop string.

    What an endpoint said is an action of its role too, in our tokens. It carries no loss: no trained slot spoke it.
    """

    id: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of the sampler, natural log, one per id; none where an endpoint spoke
    version: str
    text: str
    finish: Literal["stop", "length"]
    valid: bool = True


@dataclass(frozen=True, slots=True)
class Observation:
    """Tokens that the policy only reads: prompt, tool text, template glue. No loss."""

    ids: tuple[int, ...]
    text: str
    sources: tuple[str, ...] = ()


@dataclass(slots=True)
class Thread:
    """One append-only token context of one role: one training row.

    `id` is the path of what opened it: episode, branches, parent, role and `key`. `key` tells what it stands for among its like
    ("n3", "t=2", "sample=0"); without a better name, its number.
    """

    id: str
    role: str
    slot: Slot
    parent: str | None = None
    probe: bool = False
    key: str = ""
    turns: list[Observation | Action] = field(default_factory=list)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(chain.from_iterable(turn.ids for turn in self.turns))

    @property
    def length(self) -> int:
        """Tokens, without putting them together."""
        return sum(len(turn.ids) for turn in self.turns)

    @property
    def actions(self) -> list[Action]:
        return [turn for turn in self.turns if isinstance(turn, Action)]


@dataclass(frozen=True, slots=True)
class Reward:
    """One named score on an action or a trajectory. `value is None` means unscored, which is never 0.

    A score that is not finite is none: it would pass into the advantages of its whole group.
    """

    name: str
    on: str
    value: float | None
    source: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if self.value is not None and not isfinite(self.value):
            object.__setattr__(self, "reason", f"unscored: the score is {self.value}. {self.reason}".rstrip())
            object.__setattr__(self, "value", None)


@dataclass(slots=True)
class Trajectory:
    """One episode: everything that every role saw and said, and what it earned.

    `threads`, `queries` and `retrieved` are in the order of opening; of branches played at once, in the order of the branches. `states` stay
    where the episode was played (`wire.coordinator`): `probe` and `score` read them, credit has named rewards only.
    `prepared` is what the method keeps of it for the question of a later stage, where it is played for that.
    `status`: `format` is a fault of a role, `length` a context without room to speak, `error` a fault of something else (`fault`).
    """

    id: str
    question: Question
    group: str
    member: int
    method: str
    seed: int
    config: str = ""
    threads: list[Thread] = field(default_factory=list)
    states: dict[str, Any] = field(default_factory=dict)  # action id -> the state that it was taken in
    answer: str | None = None
    status: Status = "ok"
    fault: str = ""  # what failed, where `status` is "error"
    searches: int = 0
    judge_calls: int = 0
    judge_tokens: int = 0  # of the judge's model, read and said, as far as it tells
    queries: list[str] = field(default_factory=list)
    retrieved: list[str] = field(default_factory=list)
    rewards: list[Reward] = field(default_factory=list)
    prepared: Mapping[str, Any] | None = None

    @property
    def actions(self) -> list[Action]:
        return [action for thread in self.threads for action in thread.actions]

    @property
    def counts(self) -> bool:
        """Whether what it earned says something of the roles: no role is to blame for a full context or a failed tool."""
        return self.status in ("ok", "format")

    def threads_of(self, role: str, probe: bool = False) -> list[Thread]:
        return [thread for thread in self.threads if thread.role == role and thread.probe == probe]


@dataclass(frozen=True, slots=True)
class PolicyTerm:
    """The clipped surrogate. `ratio`: one per token, or one per unit, the exponential of its mean log-ratio.

    `clip` is (below, above): the ratio is kept in [1 - below, 1 + above]. `dual_clip`: where the advantage is negative, the loss
    is at most `dual_clip` · |A| (Ye et al. 2020). `importance_cap` bounds the correction for an engine that samples from slightly
    other numbers than the trainer's.
    """

    ratio: Literal["token", "unit"] = "token"
    clip: tuple[float, float] = (0.2, 0.2)
    dual_clip: float | None = None
    over: Reduction = TOKEN_MEAN
    importance_cap: float = 2.0


@dataclass(frozen=True, slots=True)
class KlTerm:
    """coefficient · KL(π ‖ π_frozen) over action tokens: a term of the loss, or taken from each token's reward."""

    coefficient: float
    where: Literal["loss", "reward"] = "loss"
    over: Reduction = TOKEN_MEAN


@dataclass(frozen=True, slots=True)
class ImitationTerm:
    """coefficient · −log π over the trained tokens of `Example` rows; each row is a unit of its own."""

    coefficient: float = 1.0
    over: Reduction = TOKEN_MEAN


@dataclass(frozen=True, slots=True)
class ValueTerm:
    """The critic of an objective: whose weights it has, its rate, and PPO's clip of a value's change."""

    slot: Slot
    lr: float
    clip: float = 0.5
    over: Reduction = TOKEN_MEAN


@dataclass(frozen=True, slots=True)
class Objective:
    """How one slot is trained on the units that name this objective: a sum of terms, each with its own denominator.

    `estimator` turns the units' rewards into advantages (`credit.advantages`). Objectives of one slot in one stage have one `lr`.
    """

    name: str
    slot: Slot
    lr: float
    estimator: Literal["group", "gae", "none"] = "none"
    policy: PolicyTerm | None = None
    kl: KlTerm | None = None
    imitation: ImitationTerm | None = None
    critic: ValueTerm | None = None
    gamma: float = 1.0
    lam: float = 1.0
    epochs: int = 1
    minibatches: int = 1
    eps: float = 1e-6
    whiten: bool = False  # advantages to mean 0, deviation 1 over the action tokens of a batch

    @property
    def rates(self) -> dict[Slot, float]:
        """The slots that it trains, its critic's too, each with its rate."""
        return {self.slot: self.lr, **({self.critic.slot: self.critic.lr} if self.critic else {})}


@dataclass(frozen=True, slots=True)
class Unit:
    """Actions that share one reward.

    `baseline`: units with one key are normalised together. `chain`: units with one key form one return, in `order`.
    """

    id: str
    actions: tuple[str, ...]
    reward: float
    objective: str
    baseline: str = ""
    chain: str = ""
    order: int = 0
    tag: str = ""  # opaque to the learner: groups metrics, usually the role's name
    group: str = ""  # the question's group
    rollout: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """A supervised row: SFT, or an imitation term of a method. `trained[i]` says whether `ids[i]` carries loss."""

    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    weight: float = 1.0
    tag: str = ""
    objective: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """One entry of a method's schedule.

    `start`: the stage whose model this one starts from; "" is the run's own start model. `slots`: which slot a role speaks with in
    this stage, where that is not the role's own. `merges`: slots that become part of the base when the stage ends; others stay
    beside it. `data`: whose questions are played: the run's own (`TRAIN`), or those that an earlier rollout stage prepared. SFT plays none:
    it learns from its teacher's episodes, or from the turns that an earlier rollout stage kept.
    `task`: what its model is measured by and selected on (`evaluation.tasks`). `silent`: roles that its own episodes, dev's too, do
    without; its model is evaluated and served with all of them.
    """

    name: str
    kind: StageKind
    start: str = ""
    objectives: tuple[Objective, ...] = ()
    merges: tuple[Slot, ...] = ()
    slots: Mapping[str, Slot] = field(default_factory=dict)
    data: str = TRAIN
    task: str = "qa"
    silent: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether it ends with a model. A rollout stage ends with questions, and plays the model that it starts from."""
        return self.kind != "rollout"

    @property
    def trained(self) -> tuple[Slot, ...]:
        """Policies' slots that this stage trains, sorted."""
        return tuple(sorted({objective.slot for objective in self.objectives}))

    @property
    def critics(self) -> tuple[Slot, ...]:
        return tuple(sorted({objective.critic.slot for objective in self.objectives if objective.critic}))
