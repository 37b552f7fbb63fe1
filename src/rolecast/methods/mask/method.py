"""M-ASK: planning, search, summary, update and answer around one knowledge state (Algorithm 1; rewards 3.3; loss eq. 4-5).

Search never sees documents, summary never sees the question, update decides only where the environment writes the evidence. In
training the answer role also speaks after every turn, on the state that was recorded there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Literal, Self, TypeVar

from pydantic import Field, model_validator

from rolecast.methods.base import Method, MethodConfig, Most, Spoken, imitation
from rolecast.methods.mask import replies, scoring
from rolecast.methods.mask.replies import END, MOST_STEPS, Plan, Read
from rolecast.methods.mask.scoring import Credit, moves, turn_key
from rolecast.methods.mask.state import UNKNOWN, MaskState, Searched, Step
from rolecast.methods.mask.teacher import MaskTeacher
from rolecast.methods.registry import register
from rolecast.ports import Embed, Judge
from rolecast.rewards.text import exact_match, token_f1
from rolecast.rollout.env import Env, Overflow
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import Objective, Passage, PolicyTerm, Question, Reward, Role, Stage, Trajectory, Unit, ValueTerm

T = TypeVar("T")
STEPS = 10  # whose names a model from scratch knows as one token each: of a plan, and of as many turns


class MaskConfig(MethodConfig):
    name: Literal["mask"] = "mask"  # which method
    max_turns: int = Field(5, ge=1)  # searches of an episode
    k: int = Field(5, ge=1)  # passages of a search
    max_tokens: int = Field(512, ge=1)  # tokens of every role's reply
    # what a reply's return is: its own reward, all gains that follow it, or eq. 5 to the letter (all rewards that follow, of every role)
    credit: Credit = "per_response"
    rewards: Literal["turns", "final"] = "turns"  # eq. 2 and 3, or the last answer's F1 to every reply (an ablation)
    planning: bool = True  # off: nobody plans, the trajectory starts empty (an ablation)
    # what the trajectory starts with: the plan's steps, or the question with planning's answer as its only step, as released
    starts_with: Literal["plan", "question"] = "plan"
    knowledge: bool = True  # off: neither summary nor update, a search's documents are appended as they are (an ablation)
    update_sees: Literal["first", "latest"] = "first"  # planning's answer, or the answer to the state as it is, as released
    failed: Literal["counted", "dropped"] = "counted"  # questions without an answer in a score; dropped as released
    yes_no: Literal["counted", "left_out"] = "counted"  # questions of yes or no in F1; left out as released
    whiten: bool = True  # advantages over a batch's action tokens
    lr: float = Field(1e-6, gt=0)  # of RL
    critic_lr: float = Field(1e-5, gt=0)  # of the critic
    clip: float = Field(0.2, gt=0)  # the ratio is clipped at 1 ± this
    epochs: int = Field(1, ge=1)  # passes over a step's rollouts
    minibatches: int = Field(2, ge=1)  # updates of an epoch

    @model_validator(mode="after")
    def _final_rewards_stand_alone(self) -> Self:
        if self.rewards == "final" and self.credit != "per_response":
            raise ValueError("rewards: final gives every reply the same F1, which must not add up; it takes credit: per_response")
        return self


@register
class Mask(Method):
    name = "mask"
    trained = True
    config_type = MaskConfig
    presets = ("demo",)
    words = ("planning", "search", "summary", "update", "answer", "history", *(f"t{n}" for n in range(1, STEPS + 1)))
    config: MaskConfig

    def __init__(self, config: MaskConfig) -> None:
        super().__init__(config)
        solved, limit = ("</predicted_answer>",), config.max_tokens
        roles = [
            Role("planning", frozenset({"question"}), solved, limit),
            Role("search", frozenset({"question", "trajectory", "history"}), ("</search>", END), limit),
            Role("summary", frozenset({"query", "documents"}), ("</evidence>",), limit),
            Role("update", frozenset({"question", "trajectory", "predicted", "query", "evidence"}), ("</Update>", "</Add>"), limit),
            Role("answer", frozenset({"question", "trajectory"}), solved, limit),
        ]
        silent = {"planning": config.planning, "summary": config.knowledge, "update": config.knowledge}
        self.roles = {role.name: role for role in roles if silent.get(role.name, True)}

    @property
    def k(self) -> int:
        return self.config.k

    @property
    def most(self) -> Most:
        turns, every = self.config.max_turns, self._answers_every_turn
        said = {"planning": 1, "search": turns, "summary": turns, "update": turns, "answer": turns if every else 1}
        probes = {} if every or self.config.rewards == "final" else {"answer": Spoken(turns - 1)}
        return Most({role: Spoken(said[role]) for role in self.roles}, turns, probes=probes)

    @property
    def tags(self) -> frozenset[str]:
        """A plan numbers its own."""
        numbered = (f"<{slash}{kind}{n}>" for slash in ("", "/") for kind in "qa" for n in range(1, MOST_STEPS + 1))
        return super().tags | frozenset(numbered)

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return MaskTeacher(errors, self.config.knowledge)

    async def rollout(self, question: Question, env: Env) -> str | None:
        state = MaskState(question.text)
        if self.config.planning:
            plan = await self._speak(env, "planning", state, replies.read_plan, 0)
            state.trajectory, state.predicted = self._first_steps(plan, question.text), plan.answer
        while state.turns < self.config.max_turns:
            query = await self._speak(env, "search", state, replies.read_search, state.turns + 1)
            if query is None:
                break
            await self._learn(query, state, env)
            if self._answers_every_turn:
                state.predicted = await self._speak(env, "answer", state, replies.read_answer, state.turns)
        if state.turns and self._answers_every_turn:
            return state.predicted
        return await self._speak(env, "answer", state, replies.read_answer, state.turns)

    def _first_steps(self, plan: Plan, question: str) -> list[Step]:
        """A reply that plans nothing leaves the question as it is to be searched for."""
        if self.config.starts_with == "question":
            return [Step(question, plan.answer)]
        return list(plan.steps) or [Step(question, UNKNOWN)]

    @property
    def _answers_every_turn(self) -> bool:
        """In the episode itself, not in probes: where update is shown what the answer role says."""
        return self.config.update_sees == "latest" and self.config.knowledge

    async def _learn(self, query: str, state: MaskState, env: Env) -> None:
        """One turn's search, and what the trajectory becomes of it: update says where, the environment writes."""
        turn = state.turns + 1
        state.query, state.documents = query, await env.search(query, self.config.k)
        if not self.config.knowledge:
            state.trajectory.append(Step(query, _appended(state.documents)))
            state.history.append(Searched(query, ""))
            return
        state.evidence = await self._speak(env, "summary", state, replies.read_summary, turn)
        steps = len(state.trajectory)
        number = await self._speak(env, "update", state, lambda text: replies.read_update(text, steps), turn)
        state.trajectory[number - 1 : number] = [Step(query, state.evidence)]
        state.history.append(Searched(query, state.evidence))

    async def _speak(self, env: Env, role: str, state: MaskState, read: Callable[[str], Read[T]], turn: int) -> T:
        """What the role's reply means. One of an illegal form is marked so and read all the same: it never ends the episode."""
        heard: list[Read[T]] = []

        def parse(text: str) -> Read[T] | None:
            heard.append(read(replies.spoken(text)))
            return heard[0] if heard[0].legal else None

        await self.turn(env, self.roles[role], state, parse, key=turn_key(turn))
        return heard[0].content

    async def probe(self, trajectory: Trajectory, env: Env) -> None:
        """The answer role after every turn but the last, whose state is the one that the episode's own answer is given in.

        Search saw each of those states when its next turn began. These answers are trained on as well as that last one.
        """
        if not trajectory.counts or self._answers_every_turn or self.config.rewards == "final":
            return
        played = moves(trajectory)
        last = max(move.turn for move in played if move.role == "answer")
        for move in played:
            if move.role == "search" and 1 < move.turn <= last:
                try:
                    await self._speak(env, "answer", trajectory.states[move.action.id], replies.read_answer, move.turn - 1)
                except Overflow as full:
                    trajectory.status = full.status  # its turn has no gain, so what it said cannot be credited
                    return

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        """`f1`, `gain` and `format` on replies (`scoring.rewards`); `team.*` on the trajectory. Unscored without gold answers."""
        t, golds = trajectory, trajectory.question.gold.answers
        if not t.counts or not golds:
            return []
        return [
            *scoring.rewards(t),
            Reward("team.em", t.id, exact_match(t.answer, golds), "text"),
            Reward("team.f1", t.id, token_f1(t.answer, golds), "text"),
        ]

    def credit(self, group: Sequence[Trajectory]) -> list[Unit]:
        c = self.config
        return [unit for t in group if t.counts for unit in scoring.units(t, c.credit, c.rewards == "final")]

    def diagnostics(self, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """F1 of planning's answers, turns of an episode, the share of episodes that search ended, and of evidence that was added."""
        played = [moves(t) for t in trajectories if t.counts]
        planned = {move.action.id for of in played for move in of if move.role == "planning"}
        firsts = [r.value for t in trajectories for r in t.rewards if r.name == "f1" and r.on in planned and r.value is not None]
        lasts = [max((move.turn for move in of if move.role == "answer"), default=0) for of in played]
        ended = [any(move.role == "search" and move.turn > last for move in of) for of, last in zip(played, lasts, strict=True)]
        added = ["<Add>" in move.action.text for of in played for move in of if move.role == "update"]
        shares: dict[str, Sequence[float]] = {"planning_f1": firsts, "turns": lasts, "ended": ended, "added": added}
        return {name: fmean(values) for name, values in shares.items() if values}

    def schedule(self) -> tuple[Stage, ...]:
        """One policy and one critic for all roles; they differ by their prompts and their returns (eq. 4-5)."""
        c = self.config
        objective = Objective(
            scoring.OBJECTIVE, "shared", c.lr, "gae", PolicyTerm("token", (c.clip, c.clip)), critic=ValueTerm("critic", c.critic_lr),
            whiten=c.whiten, epochs=c.epochs, minibatches=c.minibatches,
        )  # fmt: skip
        task = "qa" + ("+answered" if c.failed == "dropped" else "") + ("+spans" if c.yes_no == "left_out" else "")
        return (
            Stage("sft", "sft", objectives=imitation("sft", "shared"), merges=("shared",), task=task),
            Stage("rl", "rl", "sft", (objective,), merges=("shared",), task=task),
        )


def _appended(documents: Sequence[Passage]) -> str:
    return " ".join(passage.text for passage in documents)
