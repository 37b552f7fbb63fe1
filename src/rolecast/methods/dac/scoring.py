"""What is found out about a finished episode: components of the rewards, which `units` puts together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rolecast.methods.dac.config import DacConfig, Sufficiency
from rolecast.methods.dac.judge import SUFFICIENT
from rolecast.methods.dac.state import PREFIX, SAMPLE, UNKNOWN, DacState, about, evidence
from rolecast.ports import Judge, Verdict
from rolecast.rewards.evidence import contains, holds_passages, sufficient
from rolecast.rewards.text import exact_match, normalize, token_f1
from rolecast.tags import left_open, trim
from rolecast.types import Action, Passage, Question, Reward, Role, Thread, Trajectory

# Names of rewards. On the episode: all of its evidence. On a turn of the searcher: the evidence up to it. On an answer: the answer.
SUFFICIENT_NAME, ABSTAINED, RIGHT = "sufficient", "abstained", "right"
BY_STRING, BY_PASSAGES = "sufficient.string", "sufficient.passages"  # what either says, whichever counts


def is_sufficient(by: Sufficiency, documents: Sequence[Passage], question: Question) -> bool | None:
    """As words or gold passages say, before anybody is judged."""
    ids = [passage.id for passage in documents]
    return sufficient((passage.text for passage in documents), ids, question) if by == "string" else holds_passages(ids, question)


@dataclass(slots=True)
class Scorer:
    """Of one episode. `read`: the generator's answer in what it said."""

    trajectory: Trajectory
    judge: Judge
    config: DacConfig
    generator: Role
    read: Callable[[str], str | None]
    _known: dict[tuple[str, ...], Verdict] = field(default_factory=dict)

    async def rewards(self) -> list[Reward]:
        t = self.trajectory
        golds = t.question.gold.answers
        own: DacState = t.states[t.threads_of("generator")[-1].actions[-1].id]
        whole = await self._sufficient(own.documents)
        return [
            Reward("team.em", t.id, exact_match(t.answer, golds), "text"),
            Reward("team.f1", t.id, token_f1(t.answer, golds), "text"),
            Reward(SUFFICIENT_NAME, t.id, whole.score, self.config.sufficiency, whole.reason),
            *self._compared(own.documents),
            *[reward for thread in t.threads if thread.role == self.generator.name for reward in self._of_answer(thread)],
            *await self._of_turns(own),
        ]

    async def _sufficient(self, documents: Sequence[Passage]) -> Verdict:
        """Asked once for the same evidence. None without score where nobody can say."""
        key = tuple(passage.id for passage in documents)
        if key not in self._known:
            self._known[key] = await self._verdict(documents)
        return self._known[key]

    async def _verdict(self, documents: Sequence[Passage]) -> Verdict:
        t = self.trajectory
        if self.config.sufficiency == "judge":
            asked = {"question": t.question.text, "gold": t.question.gold, "documents": [passage.text for passage in documents]}
            verdict = await self.judge.judge(SUFFICIENT.name, asked)
            return Verdict(None if verdict.score is None else float(verdict.score >= 0.5), verdict.reason)
        found = is_sufficient(self.config.sufficiency, documents, t.question)
        return Verdict(None, "neither words nor gold passages can tell") if found is None else Verdict(float(found))

    def _compared(self, documents: Sequence[Passage]) -> list[Reward]:
        """What words and what passages say, where they can."""
        t = self.trajectory
        held = holds_passages([passage.id for passage in documents], t.question)
        said = {BY_STRING: contains((passage.text for passage in documents), t.question), BY_PASSAGES: held}
        return [Reward(name, t.id, float(value), "text") for name, value in said.items() if value is not None]

    def _of_answer(self, thread: Thread) -> list[Reward]:
        return [Reward(name, action.id, value, "text") for action in thread.actions for name, value in self._judged(thread, action).items()]

    def _judged(self, thread: Thread, action: Action) -> dict[str, float]:
        """Nothing of a reply that was cut because the context was full: nobody is to blame. One that broke its form is no abstention."""
        if action.finish == "length" and len(action.ids) < self.generator.max_tokens:
            return {}
        answer = self.read(left_open(thread.turns[0].text) + trim(action.text, self.generator.stop))
        abstained = answer is not None and normalize(answer) == UNKNOWN
        return {ABSTAINED: float(abstained), RIGHT: exact_match(answer, self.trajectory.question.gold.answers)}

    async def _of_turns(self, own: DacState) -> list[Reward]:
        """Of the evidence after each turn. A turn that found nothing new leaves all as it was; before the first one nothing is found."""
        rewards: list[Reward] = []
        before: list[Passage] = []
        known = {SUFFICIENT_NAME: 0.0, ABSTAINED: 1.0, RIGHT: 0.0}
        actions = [action for thread in self.trajectory.threads_of("searcher") for action in thread.actions]
        for turn, action in enumerate(actions, 1):
            documents = evidence(own.found[:turn])
            if documents != before:
                known = await self._of_prefix(turn, documents, own)
            rewards += [Reward(name, action.id, value, "prefix") for name, value in known.items()]
            before = documents
        return rewards

    async def _of_prefix(self, turn: int, documents: Sequence[Passage], own: DacState) -> dict[str, float]:
        """What is not known is left out: who was not asked, or had no room."""
        verdict = await self._sufficient(documents)
        asked = self._answers_to(turn, documents, own)
        judged = [found for thread in asked for action in thread.actions if (found := self._judged(thread, action))]
        return {
            **({} if verdict.score is None else {SUFFICIENT_NAME: verdict.score}),
            **({name: fmean(found[name] for found in judged) for name in (ABSTAINED, RIGHT)} if judged else {}),
        }

    def _answers_to(self, turn: int, documents: Sequence[Passage], own: DacState) -> list[Thread]:
        """R(T) is from the same kind of answer as the others, or the differences would not add up."""
        said = [thread for thread in self.trajectory.threads if thread.role == self.generator.name]
        if self.config.prefix_answers == "samples" and documents == own.documents:
            return [thread for thread in said if kind_of(thread) in ("", SAMPLE)]
        return [thread for thread in said if kind_of(thread) == PREFIX and thread.key.split("=")[1] == str(turn)]


def kind_of(thread: Thread) -> str:
    """What a thread of the generator's is for; "" for the episode's own."""
    return about(thread.key) if thread.probe else ""
