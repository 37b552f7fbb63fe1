"""DAC: a searcher collects evidence, a generator answers from it or abstains; each is trained on what it did itself.

The searcher never sees what the generator says, the generator never sees what the searcher thought or asked. Sections and equations
are those of "Divide and Cooperate".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rolecast.folds import mean
from rolecast.judge.kinds import JudgeKind, Rule
from rolecast.methods.base import DOCUMENTS, Method, Most, Spoken, imitation
from rolecast.methods.dac import monitor
from rolecast.methods.dac.config import DacConfig
from rolecast.methods.dac.judge import SUFFICIENT
from rolecast.methods.dac.scoring import Scorer, is_sufficient
from rolecast.methods.dac.state import ABSTAINING, FORCED, NOISY, PREFIX, SAMPLE, STOP, UNKNOWN, DacState, evidence
from rolecast.methods.dac.teacher import DacTeacher
from rolecast.methods.dac.units import generator_units, imitated, searcher_units
from rolecast.methods.dac.verdicts import RULES
from rolecast.methods.information import SOURCES, information
from rolecast.methods.registry import register
from rolecast.ports import Embed, Judge, Sampling
from rolecast.rewards.text import normalize
from rolecast.rollout.env import Branch, Env, LiveThread, Overflow, Phase
from rolecast.tags import blocks
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import (
    Example,
    ImitationTerm,
    Objective,
    Passage,
    PolicyTerm,
    Question,
    Reward,
    Role,
    Stage,
    Trajectory,
    Unit,
    ValueTerm,
)

FRAME = ("\n<information>", "</information>\n")
AGAIN = "\nThat was neither a search nor a stop. Put a query in <search> </search>, or write <stop>.\n"
FURTHER = "\nThe documents do not answer the question yet. Search further.\n"
GREEDY = Sampling(0.0)


@register
class Dac(Method):
    name = "dac"
    trained = True
    config_type = DacConfig
    presets = ("demo", "small_model")
    words = ("generator", "or")
    probed = frozenset({"train", "eval"})
    taught = ("train", "eval")
    fixed = True
    config: DacConfig

    def __init__(self, config: DacConfig) -> None:
        super().__init__(config)
        limit = config.max_tokens
        self.roles = {
            "searcher": Role("searcher", frozenset({"question", "think"}), ("</search>", STOP), limit, "searcher"),
            "generator": Role("generator", frozenset({"question", "documents", "think", "abstains"}), ("</answer>",), limit, "generator"),
        }

    @property
    def k(self) -> int:
        return self.config.k

    @property
    def most(self) -> Most:
        """Other answers to all of the evidence, to that with noise among it (found by one more search), and to what each turn had
        found; the judge is asked once for each of these."""
        c = self.config
        turns, prefixes = c.max_turns + c.further_searches, 0
        if c.searcher_reward != "sufficiency":
            each = 1 if c.prefix_answers == "greedy" else c.generator_samples
            prefixes = each * (c.max_turns if c.turn_rewards else 1)
        probes = c.generator_samples - 1 + prefixes + c.generator_samples * c.augmentation
        said = {"searcher": Spoken(1, turns), "generator": Spoken(1 + c.further_searches)}
        judged = turns + 1 if c.sufficiency == "judge" else 0
        return Most(said, turns + c.augmentation, judged, {"generator": Spoken(probes)})

    @property
    def tags(self) -> frozenset[str]:
        return super().tags | {f"<{self.config.think}>", f"</{self.config.think}>"}

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return DacTeacher(errors, self.config.think, self.thoughts)

    @classmethod
    def judge_kinds(cls) -> Sequence[JudgeKind]:
        return (SUFFICIENT,)

    @property
    def judged(self) -> Sequence[JudgeKind]:
        return self.judge_kinds() if self.config.sufficiency == "judge" else ()

    @classmethod
    def verdicts(cls) -> Mapping[str, Rule]:
        return RULES

    # The episode

    async def rollout(self, question: Question, env: Env) -> str | None:
        state = DacState(question.text, think=self.config.think)
        if DOCUMENTS in question.given:
            state.found.append(await env.fetch(question.given[DOCUMENTS]))
        else:
            role = self.roles["searcher"]
            searcher = env.open(role, self.messages(role, state), state=state)
            await self._search(searcher, state, env, self.config.max_turns)
            if env.phase != "train":
                for _ in range(self.config.further_searches):
                    answer = await self._answer(state, env, abstains=True)
                    if answer is not None and normalize(answer) != UNKNOWN:
                        return answer
                    searcher.observe(FURTHER)
                    await self._search(searcher, state, env, 1)
        return await self._answer(state, env, abstains=self._may_abstain(env.phase))

    async def _search(self, searcher: LiveThread, state: DacState, env: Env, turns: int) -> None:
        """At most so many turns, until the searcher stops. A turn that is neither a search nor a stop is answered by asking again."""
        for _ in range(turns):
            _, move = await searcher.act(self._move)
            found = await env.search(move["search"], self.config.k) if move and "search" in move else []
            state.found.append(found)
            if move is None:
                searcher.observe(AGAIN)
            elif "search" in move:
                shown = information(found, self.config.prompts, FRAME, self.config.observation_tokens, env)
                searcher.observe(shown, SOURCES)
            else:
                return

    async def _answer(self, state: DacState, env: Env, *, abstains: bool) -> str | None:
        state.documents, state.abstains = evidence(state.found), abstains
        _, answer = await self.turn(env, self.roles["generator"], state, self.read_answer)
        return answer

    def _may_abstain(self, phase: Phase) -> bool:
        return self.config.abstention == "always" or (self.config.abstention == "train" and phase == "train")

    def _move(self, text: str) -> dict[str, str] | None:
        """{"search": query} or {"stop": ""}; None where the turn is neither or says nothing."""
        before, stopped, _ = text.partition(STOP)
        found = blocks(before, self.config.think) if stopped else blocks(text, self.config.think, "search")
        if found is None or (not stopped and not found["search"]):
            return None
        return {"stop": ""} if stopped else {"search": found["search"]}

    def read_answer(self, text: str) -> str | None:
        """The answer; None where the reply is none or says nothing."""
        found = blocks(text, self.config.think, "answer")
        return found["answer"] or None if found else None

    # Probes

    async def probe(self, trajectory: Trajectory, env: Env) -> None:
        """In training the generator's other samples, those on augmented evidence, and an answer to each prefix of the evidence; in
        evaluation one answer with the prompt that the episode did not use."""
        answered = trajectory.threads_of("generator")
        if not trajectory.counts or not answered:
            return
        state: DacState = trajectory.states[answered[-1].actions[-1].id]
        if env.phase == "train":
            asked = {**self._samples(state, SAMPLE, 1), **self._prefixes(state, trajectory.question)}
            # What a judge finds is known later: answers to evidence that it finds insufficient are left out then.
            if self.config.augmentation and self._may_be_sufficient(state.documents, trajectory.question):
                noisy = [*state.documents, *await self._noise(state, env)]
                asked |= self._samples(replace(state, documents=noisy), NOISY, 0)
        elif self.config.abstention != "never":
            key = FORCED if state.abstains else ABSTAINING
            asked = {key: partial(self._ask, replace(state, abstains=not state.abstains), key, False)}
        else:
            asked = {}
        await env.gather(asked)

    def _samples(self, state: DacState, kind: str, first: int) -> dict[str, Branch[None]]:
        """Answers to one evidence. Where `first` is 1, the episode's own is the one before them."""
        keys = [f"{kind}={number}" for number in range(first, self.config.generator_samples)]
        return {key: partial(self._ask, state, key, False) for key in keys}

    def _prefixes(self, state: DacState, question: Question) -> dict[str, Branch[None]]:
        """Answers to the evidence up to each turn that found something new, where the searcher's reward depends on them."""
        c, asked = self.config, dict[str, Branch[None]]()
        for turn in range(1, len(state.found) + 1):
            documents = evidence(state.found[:turn])
            if documents == evidence(state.found[: turn - 1]) or c.searcher_reward == "sufficiency":
                continue
            if not c.turn_rewards and documents != state.documents:
                continue
            if c.searcher_reward == "cross" and not self._may_be_sufficient(documents, question):
                continue  # R(t) = 0 whatever is answered
            shown = replace(state, documents=documents)
            if c.prefix_answers == "greedy":
                key = f"{PREFIX}={turn}"
                asked[key] = partial(self._ask, shown, key, True)
            elif documents != state.documents:  # to all of the evidence there are samples already
                asked |= self._samples(shown, f"{PREFIX}={turn}", 0)
        return asked

    def _may_be_sufficient(self, documents: Sequence[Passage], question: Question) -> bool:
        """As far as it is known before anybody is judged."""
        return self.config.sufficiency == "judge" or bool(is_sufficient(self.config.sufficiency, documents, question))

    async def _noise(self, state: DacState, env: Env) -> list[Passage]:
        """B.1: of what the question itself finds, without what is held, the last ones, from the end of the ranking."""
        held = {passage.id for passage in state.documents}
        left = [passage for passage in await env.search(state.question, self.config.noise_from) if passage.id not in held]
        return left[::-1][: self.config.noise]

    async def _ask(self, state: DacState, key: str, greedy: bool, env: Env) -> None:
        """An answer that has no room is no sample."""
        try:
            await self.turn(env.probe(GREEDY) if greedy else env, self.roles["generator"], state, self.read_answer, key=key)
        except Overflow:
            return

    # What it earns, and what is trained

    async def score(self, trajectory: Trajectory, judge: Judge, embed: Embed) -> list[Reward]:
        """Of the evidence after each turn and in all, whether it is sufficient; of each answer, whether it abstains and is right."""
        if not trajectory.counts or not trajectory.threads_of("generator"):
            return []
        return await Scorer(trajectory, judge, self.config, self.roles["generator"], self.read_answer).rewards()

    def credit(self, group: Sequence[Trajectory]) -> list[Unit]:
        """The searcher's turns form one return; answers to one evidence are normalised together."""
        c = self.config
        return [
            unit
            for t in group
            if t.counts
            for unit in (*searcher_units(t, c.searcher_reward, c.turn_rewards), *generator_units(t))
        ]  # fmt: skip

    def examples(self, group: Sequence[Trajectory]) -> list[Example]:
        """Eq. 7, where the imitation term is on."""
        return [example for t in group if t.counts for example in imitated(t)] if self.config.imitation else []

    def diagnostics(self, trajectories: Sequence[Trajectory]) -> Mapping[str, float]:
        return monitor.diagnostics(trajectories)

    def alarms(self, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
        return monitor.alarms(rows)

    def schedule(self) -> tuple[Stage, ...]:
        """SFT teaches both roles in one slot, which becomes the base of the two that RL trains, each with its rate (B.1)."""
        c = self.config
        clip, taught = (c.clip, c.clip), dict.fromkeys(self.roles, "shared")
        searcher = Objective(
            "searcher", "searcher", c.searcher_lr, "gae", PolicyTerm("token", clip, over=(mean("chain"), mean("batch"))),
            critic=ValueTerm("critic", c.critic_lr), whiten=c.whiten, epochs=c.epochs, minibatches=c.minibatches,
        )  # fmt: skip
        generator = Objective(
            "generator", "generator", c.generator_lr, "group", PolicyTerm("token", clip, over=(mean("baseline"), mean("batch"))),
            imitation=ImitationTerm(c.imitation) if c.imitation else None, epochs=c.epochs, minibatches=c.minibatches,
        )  # fmt: skip
        return (
            Stage("sft", "sft", objectives=imitation("sft", "shared"), merges=("shared",), slots=taught),
            Stage("rl", "rl", "sft", (searcher, generator)),
        )
