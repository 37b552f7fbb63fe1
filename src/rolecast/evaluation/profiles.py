"""Evaluation profiles: what released code does otherwise than its paper says or than we do, one switch each, set together by a name.

A score under a profile says so, and is never kept under the plain name. Where each switch is from: docs/comparing.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rolecast.errors import InputError, RolecastError
from rolecast.evaluation.tasks import Scores, Task
from rolecast.ports import Sampling
from rolecast.rewards.text import RULES, SPECIAL, cover_exact_match, exact_match, normalize, token_f1
from rolecast.types import Question, Trajectory

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Profile:
    """`name`: "" is ours, greedy and every row once."""

    name: str = ""
    temperature: float = 0.0  # of the episodes
    top_p: float = 1.0
    batch: int | None = None  # rows are played in batches of this, and the last partial batch is dropped
    prompt_answers: bool = False  # an episode without an answer has the last one that stands anywhere in its last context
    loses_beginning: bool = False  # a context that is too long loses its beginning, where the episode would end
    drops_failed: bool = False  # episodes without an answer count for nothing
    rules: Literal["ours", "hotpotqa", "squad", "triviaqa", "nq"] = "ours"  # whose script compares answers (`rewards.text.RULES`)
    without_yes_no: bool = False  # no F1 where both answer and golds say yes, no or noanswer; another answer to such a question has 0

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p)

    @property
    def switches(self) -> dict[str, Any]:
        """What it does otherwise than ours."""
        ours = asdict(Profile())
        return {key: value for key, value in asdict(self).items() if key != "name" and value != ours[key]}

    def asked(self, questions: Sequence[Question]) -> Sequence[Question]:
        """`InputError` where the last partial batch is all there is."""
        if self.batch is None:
            return questions
        kept = questions[: len(questions) // self.batch * self.batch]
        if not kept:
            raise InputError(
                f"profile {self.name} drops the last batch that is not full: of {len(questions)} questions none is left; raise eval.n to {self.batch}"
            )
        return kept

    def counted(self, done: Sequence[Trajectory]) -> list[Trajectory]:
        """The episodes that count, with the answers that count. RolecastError where none does."""
        kept = [t for t in done if t.answer is not None or not self.drops_failed]
        if not kept:
            raise RolecastError(
                f"profile {self.name} drops episodes without an answer, and all {len(done)} are; evaluate without it to see why"
            )
        return [replace(t, answer=_last_answer(t)) if self.prompt_answers and t.answer is None else t for t in kept]

    def task(self, task: Task) -> Task:
        """The task with the profile's rules for answers; one that compares none stays as it is."""
        plain = self.rules == "ours" and not self.without_yes_no
        return task if plain else replace(task, scores=lambda t: self._scores(t, task.scores(t)))

    def _scores(self, t: Trajectory, scores: Scores) -> Scores:
        golds, rules = t.question.gold.answers, RULES[self.rules]
        if scores.get("f1") is None:
            return scores
        if self.without_yes_no and t.answer is not None and all(normalize(text) in SPECIAL for text in (t.answer, *golds)):
            return {**scores, "f1": None}
        if self.rules == "ours":
            return scores
        compared = {"em": exact_match, "f1": token_f1, "cem": cover_exact_match}
        return {**scores, **{name: compare(t.answer, golds, rules) for name, compare in compared.items()}}


def _last_answer(t: Trajectory) -> str | None:
    """What Search-R1's reader finds: the last pair of answer tags in all that the last context holds, instructions included."""
    text = "".join(turn.text for turn in t.threads[-1].turns) if t.threads else ""
    found = ANSWER.findall(text)
    return found[-1].strip() if found else None


SAMPLED = Profile(temperature=1.0, top_p=0.95, batch=256)  # validation of Search-R1's trainer, which CoDA's is made from
PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        replace(SAMPLED, name="faithful_search_r1", prompt_answers=True, loses_beginning=True),
        replace(SAMPLED, name="faithful_coda"),
        Profile("faithful_mask", drops_failed=True, without_yes_no=True),
        Profile("hotpotqa", rules="hotpotqa"),
        Profile("squad", rules="squad"),
        Profile("triviaqa", rules="triviaqa"),
        Profile("nq", rules="nq"),
    )
}
OURS = Profile()


def find_profile(name: str) -> Profile:
    """Raises InputError for a name that no profile has."""
    if not name:
        return OURS
    if name not in PROFILES:
        raise InputError(f"no evaluation profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]
