"""DecomposeR: a planner writes and revises a typed graph of searches and syntheses, an answerer fills it wave by wave (3.2).

The planner sees the question, and at its second turn its graph and what the searches found; the answerer sees the nodes that it fills,
their parents' reports and their evidence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from rolecast.folds import mean
from rolecast.judge.kinds import JudgeKind, Rule
from rolecast.methods.base import Method, imitation
from rolecast.methods.decomposer.config import DecomposerConfig
from rolecast.methods.decomposer.form import Final, PlanForm, read_blocks, read_final, read_numbers, read_reports
from rolecast.methods.decomposer.graph import Graph, Node, PlanFault
from rolecast.methods.decomposer.judge import KINDS
from rolecast.methods.decomposer.scoring import score_plan, score_report
from rolecast.methods.decomposer.state import DecomposerState, Found
from rolecast.methods.decomposer.teacher import DecomposerTeacher
from rolecast.methods.decomposer.verdicts import RULES
from rolecast.methods.registry import register
from rolecast.ports import Embed, Judge
from rolecast.rollout.env import Env, EpisodeEnd
from rolecast.tags import left_open, trim
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.teachers.kept import kept_turns
from rolecast.types import KlTerm, Objective, PolicyTerm, Question, Reward, Role, Slot, Stage, Trajectory, Unit

PLANNING, ANSWERING = ("planner", "reviser"), ("answerer", "writer")
PER_ROLLOUT = (mean("rollout"), mean("group"), mean("batch"))  # eq. 16: tokens of a rollout, rollouts of a question
NUMBERS = range(1, 41)  # of nodes and passages, that a model from scratch has a token for


@register
class Decomposer(Method):
    name = "decomposer"
    trained = True
    config_type = DecomposerConfig
    presets = ("demo",)
    words = (*map(str, NUMBERS), "search", "join", "answer", "graph", "reviser", "writer", "Report")
    config: DecomposerConfig

    def __init__(self, config: DecomposerConfig) -> None:
        super().__init__(config)
        self.form = PlanForm(config.prompts, config.structure)
        answering: Slot = f"external:{config.external}" if config.external else "answerer"
        final = "</answer>" if config.short_answer else "</node>"
        long, longer = config.planner_tokens, config.answerer_tokens
        roles = [
            Role("planner", frozenset({"question", "structure", "turns"}), ("</graph>",), long, "planner"),
            Role("reviser", frozenset({"question", "structure", "draft", "results", "fetches"}), ("</fetch>",), long, "planner"),
            Role("answerer", frozenset({"wave"}), ("</nodes>",), longer, answering),
            Role("writer", frozenset({"final", "catalogue", "short_answer"}), (final,), longer, answering),
        ]
        speaks = {"reviser": config.turns == 2, "answerer": config.structure != "linear"}  # what aggregates conclude the answerer says
        self.roles = {role.name: role for role in roles if speaks.get(role.name, True)}

    @property
    def k(self) -> int:
        return self.config.k

    @property
    def measured(self) -> Sequence[str]:
        return ("qa", "reward:report") if self.config.short_answer else ("reward:report",)

    @property
    def tags(self) -> frozenset[str]:
        """Those of nodes and citations have numbers, so that no instruction names them all. Plans of every kind have the same ones."""
        return (
            super().tags
            | {"<nodes>", "</nodes>", "<fetch>", "</fetch>"}
            | {f"<node id={number}>" for number in NUMBERS}
            | {f"[{number}]" for number in NUMBERS}
        )

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return DecomposerTeacher(errors, self.form, self.config.turns, self.config.short_answer)

    @classmethod
    def judge_kinds(cls) -> Sequence[JudgeKind]:
        return KINDS

    @property
    def judged(self) -> Sequence[JudgeKind]:
        w = self.config.counted
        return KINDS if not self.config.external and (self.config.training == "joint" or w.synthesis * w.judge) else ()

    @classmethod
    def verdicts(cls) -> Mapping[str, Rule]:
        return RULES

    async def rollout(self, question: Question, env: Env) -> str | None:
        c = self.config
        state = DecomposerState.of(question.text, question.given, c.structure, c.turns, c.fetches, c.short_answer)
        env.trajectory.states[env.trajectory.id] = state  # as the episode leaves it; those of actions are as they were taken
        if state.plan is None:
            await self._make_plan(state, env)
        assert state.plan is not None
        if "writer" in self.silent:
            return None
        for number, wave in enumerate(state.plan.waves()):
            await self._fill(wave, state, env, f"wave{number}")
        final = await self._write(state, env)
        return final.answer if c.short_answer else final.report

    async def _make_plan(self, state: DecomposerState, env: Env) -> None:
        """Graph, searches, revised graph with what to fetch, new searches. A first graph that is no plan may still be mended."""
        _, draft = await self.turn(env, self.roles["planner"], state, lambda text: self._read_plan(text, state.question))
        plan, wanted = draft, list[int]()
        if self.config.turns == 2:
            if draft is not None:
                await self._search(draft, state, env)
                state.draft = self.form.write(draft)
                state.results = [Found(query, state.shown(numbers)) for query, numbers in state.found.items()]
            _, revised = await self.turn(env, self.roles["reviser"], state, lambda text: self._read_revision(text, state.question))
            plan, wanted = revised or (None, [])
        if plan is None:
            raise EpisodeEnd("format")
        state.plan = plan
        await self._search(plan, state, env)
        await self._fetch(wanted, state, env)

    def _read_plan(self, text: str, question: str) -> Graph | None:
        found = read_blocks(text, "graph")
        return self._plan_of(found["graph"], question) if found else None

    def _read_revision(self, text: str, question: str) -> tuple[Graph, list[int]] | None:
        found = read_blocks(text, "graph", "fetch")
        plan = self._plan_of(found["graph"], question) if found else None
        numbers = read_numbers(found["fetch"]) if found else None
        return (plan, numbers) if plan is not None and numbers is not None else None

    def _plan_of(self, text: str, question: str) -> Graph | None:
        try:
            return self.form.read(text, question)
        except PlanFault:
            return None

    async def _search(self, plan: Graph, state: DecomposerState, env: Env) -> None:
        """Runs the plan's searches that were not run before."""
        queries = [query for query in dict.fromkeys(node.text for node in plan.searches) if query not in state.found]
        for query, passages in zip(queries, await env.search_all(queries, self.config.k), strict=True):
            state.add(query, passages, self.config.snippet_words)

    async def _fetch(self, wanted: Sequence[int], state: DecomposerState, env: Env) -> None:
        """Whole pages for the first results that were asked for; numbers of none are passed over."""
        shown = {source.number for found in state.results for source in found.sources}
        sources = state.shown([number for number in wanted if number in shown])[: self.config.fetches]
        for source, page in zip(sources, await env.fetch([source.id for source in sources]), strict=True):
            source.text = page.text

    async def _fill(self, wave: Sequence[Node], state: DecomposerState, env: Env, key: str) -> None:
        state.wave = [state.assigned(node) for node in wave]
        ids = [node.id for node in wave]
        _, reports = await self.turn(env, self.roles["answerer"], state, lambda text: read_reports(text, ids), key=key)
        if reports is None:
            raise EpisodeEnd("format")
        state.reports |= {id: reports[id] for id in ids}

    async def _write(self, state: DecomposerState, env: Env) -> Final:
        assert state.plan is not None
        state.final = state.assigned(state.plan.answer)
        state.catalogue = state.citable()
        _, final = await self.turn(env, self.roles["writer"], state, lambda text: self._read_final(text, state))
        if final is None:
            raise EpisodeEnd("format")
        return final

    def _read_final(self, text: str, state: DecomposerState) -> Final | None:
        assert state.plan is not None
        return read_final(text, state.plan.answer.id, self.config.short_answer)

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        """Each part that was played: `planner` for the plan, `answerer` and `report` for what was made of it."""
        t, whole = trajectory, "writer" not in self.silent
        if not t.counts:
            return [Reward("report", t.id, 0.0, "protocol", t.status)] if whole and t.status == "length" else []
        state: DecomposerState = t.states[t.id]
        rewards = []
        if any(t.threads_of(role) for role in PLANNING):
            rewards += await score_plan(t, state.plan, self.config.counted, embed)
        if whole and state.plan is None:
            rewards.append(Reward("report", t.id, 0.0, "protocol", "there is no plan"))
        elif whole:
            rewards += await score_report(t, state, self._final(t, state), self.config.counted, judge, embed)
        return rewards

    def _final(self, t: Trajectory, state: DecomposerState) -> Final | None:
        """The final report as it was read when it was said."""
        for thread in t.threads_of("writer"):
            [action] = thread.actions
            return self._read_final(left_open(thread.turns[0].text) + trim(action.text, self.roles["writer"].stop), state)
        return None

    def credit(self, group: Sequence[Trajectory]) -> list[Unit]:
        """One unit per rollout and part: the planner's, over both of its turns, and the answerer's. In joint RL both earn what the
        final report does."""
        units = []
        joint = self.config.training == "joint"
        for t in group:
            earned = {reward.name: reward.value for reward in t.rewards if reward.on == t.id}
            for part, roles in (("planner", PLANNING), ("answerer", ANSWERING)):
                actions = tuple(action.id for role in roles for thread in t.threads_of(role) for action in thread.actions)
                reward = earned.get("report" if joint else part)
                if actions and reward is not None and t.counts:
                    units.append(Unit(f"{t.id}:{part}", actions, reward, part, f"{t.group}:{part}", tag=part, group=t.group, rollout=t.id))
        return units

    def prepare(self, trajectory: Trajectory) -> Mapping[str, Any] | None:
        """The plan with what its searches found, and which sample it was; of a cold start's whole episodes, their turns. None for what
        is no plan, or has a reply that could not be read."""
        t = trajectory
        if "writer" not in self.silent:
            return kept_turns(t)
        state: DecomposerState | None = t.states.get(t.id)
        if state is None or state.plan is None or t.status != "ok":
            return None
        return {**state.kept(), "seed": t.seed, "sample": t.member}

    def diagnostics(self, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        """Sizes of graphs and length of answers (A.6), overlap of report and branches (A.7), the share of graphs that are no plan."""
        columns: dict[str, list[float]] = {}
        for t in trajectories:
            for reward in t.rewards:
                if reward.value is not None and reward.name.startswith(("graph.", "planner", "answer", "report")):
                    columns.setdefault(reward.name, []).append(reward.value)
        return {name: fmean(values) for name, values in columns.items()}

    def schedule(self) -> tuple[Stage, ...]:
        c = self.config
        planner = self._objective("planner", c.planner_lr, c.planner_kl)
        answerer = self._objective("answerer", c.answerer_lr, c.answerer_kl)
        answering = tuple(name for name in self.roles if name in ANSWERING)
        own = tuple(name for name in self.roles if not (c.external and name in ANSWERING))
        start: tuple[Stage, ...] = ()
        sft = Stage("sft", "sft", objectives=imitation("sft", "shared"), merges=("shared",), slots=dict.fromkeys(own, "shared"))
        if c.cold_start:
            start = (Stage("teacher", "rollout", slots=dict.fromkeys(self.roles, f"external:{c.cold_start}"), task="reward:report"),)
            sft = replace(sft, data="teacher")
        if c.training == "joint":
            objectives = (planner,) if c.external else (planner, answerer)
            return (*start, sft, Stage("joint", "rl", "sft", objectives, task="reward:report"))
        stage = Stage("planner", "rl", "sft", (planner,), merges=("planner",), task="reward:planner", silent=answering)
        if c.external:
            return (*start, sft, stage)
        plans = Stage("plans", "rollout", "planner", task="reward:planner", silent=answering)
        return (*start, sft, stage, plans, Stage("answerer", "rl", "planner", (answerer,), data="plans", task="reward:answerer"))

    def _objective(self, part: str, lr: float, kl: float) -> Objective:
        """GRPO (A.2): clipped ratio and KL to the stage's start in the loss, both a mean over a rollout's action tokens."""
        c = self.config
        policy = PolicyTerm("token", (c.clip, c.clip), over=PER_ROLLOUT)
        penalty = KlTerm(kl, over=PER_ROLLOUT) if kl else None
        return Objective(part, part, lr, "group", policy, penalty, epochs=c.epochs, minibatches=c.minibatches)
