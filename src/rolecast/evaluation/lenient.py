"""Reading models that were never taught the form of a reply. The strict score stays what it is; these stand beside it.

The rule, of the last reply of the role that answers, if the episode has no answer of its own:

1. the content of its last answer tag, or what follows that tag where it was left open;
2. else what follows the last "answer:" or "answer is", to the end of that line;
3. else the whole reply, without anything that looks like a tag.

`lenient_em` and `lenient_f1` score that answer, `reply_cem` asks whether a gold answer occurs anywhere in the whole reply, tags left out. Nothing of an
episode is changed: a role whose reply could not be read has ended it, leniently read or not.
"""

from __future__ import annotations

import re
from dataclasses import replace

from rolecast.evaluation.tasks import Scores, Task
from rolecast.methods.base import Method
from rolecast.rewards.text import OURS, Rules, cover_exact_match, exact_match, token_f1
from rolecast.types import Trajectory

ANSWERER = "answerer"
_TAGGED = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)
_SAID = re.compile(r"\banswer(?:\s+is|\s*:)[ \t]*(.+)", re.IGNORECASE)
_TAG = re.compile(r"</?\w+[^<>]*>")


def with_lenient(task: Task, method: Method, rules: Rules = OURS) -> Task:
    """The task with the lenient scores beside its own, by the same rules."""
    role = answering(method)

    def scores(t: Trajectory) -> Scores:
        golds = t.question.gold.answers
        if not golds:
            return {**task.scores(t), **dict.fromkeys(("lenient_em", "lenient_f1", "reply_cem"))}
        reply = last_reply(t, role)
        answer = t.answer if t.answer is not None else lenient(reply) if reply is not None else None
        return {
            **task.scores(t), "lenient_em": exact_match(answer, golds, rules), "lenient_f1": token_f1(answer, golds, rules),
            "reply_cem": cover_exact_match(_plain(reply) if reply is not None else None, golds, rules),
        }  # fmt: skip

    return replace(task, name=task.name, scores=scores)


def answering(method: Method) -> str | None:
    """The role whose reply is an answer: the one of that name, or the only one."""
    return ANSWERER if ANSWERER in method.roles else next(iter(method.roles)) if len(method.roles) == 1 else None


def last_reply(t: Trajectory, role: str | None) -> str | None:
    """What the role said last; None if it said nothing."""
    said = [action.text for thread in t.threads if thread.role == role and not thread.probe for action in thread.actions]
    return said[-1] if said else None


def lenient(reply: str) -> str:
    """The answer in a reply, by the rule above."""
    if tagged := _TAGGED.findall(reply):
        return _plain(tagged[-1])
    if said := _SAID.findall(reply):
        return _plain(said[-1])
    return _plain(reply)


def _plain(text: str) -> str:
    return " ".join(_TAG.sub(" ", text).split())
