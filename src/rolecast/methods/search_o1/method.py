"""`search_o1`: searches inside its reasoning (Li et al. 2025).

A separate call, the paper's Reason-in-Documents, reads the documents against the reasoning so far; only what it says enters it.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from rolecast.methods.base import Most, Spoken
from rolecast.methods.registry import register
from rolecast.methods.search_o1.state import NOTHING, RESULT, SEARCH, SearchO1State
from rolecast.methods.search_o1.teacher import SearchO1Teacher
from rolecast.methods.transcript import Move, Transcript, TranscriptConfig
from rolecast.methods.untrained import Untrained
from rolecast.rollout.env import Env, LiveThread
from rolecast.tags import blocks
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import Role

MOVE = re.compile(
    rf"(?P<reasoning>.*?)(?:{re.escape(SEARCH[0])}(?P<search>.*?){re.escape(SEARCH[1])}|<answer>(?P<answer>.*?)</answer>)\s*", re.DOTALL
)


class SearchO1Config(TranscriptConfig):
    name: Literal["search_o1"] = "search_o1"  # which method
    max_turns: int = Field(5, ge=1)  # searches, before one last turn without
    k: int = Field(10, ge=1)  # passages of a search
    reader_tokens: int = Field(500, ge=1)  # tokens of what a search's documents are condensed to


@register
class SearchO1(Untrained, Transcript):
    name = "search_o1"
    config_type = SearchO1Config
    words = ("reasoner", "reader", "reasoning")
    speaker = "reasoner"
    again = f"\nThat was neither a search nor an answer. Put a query in {SEARCH[0]} {SEARCH[1]} or the answer in <answer> </answer>.\n"
    config: SearchO1Config

    def __init__(self, config: SearchO1Config) -> None:
        super().__init__(config)
        self.roles = {
            "reasoner": Role("reasoner", frozenset({"question"}), (SEARCH[1], "</answer>"), config.max_tokens),
            "reader": Role("reader", frozenset({"reasoning", "query", "documents"}), ("</information>",), config.reader_tokens),
        }

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return SearchO1Teacher(errors, self.config.max_turns, self.thoughts)

    @property
    def most(self) -> Most:
        turns = self.config.max_turns
        return Most({"reasoner": Spoken(1, turns + 1), "reader": Spoken(turns)}, turns)

    def state(self, question: str) -> SearchO1State:
        return SearchO1State(question)

    def read(self, text: str, thread: LiveThread) -> Move | None:
        """Reasoning in free words, which ends with a query or with the answer."""
        move = MOVE.fullmatch(text)
        said = {name: move[name].strip() for name in ("search", "answer") if move[name]} if move else {}
        return {
            name: content for name, content in said.items() if content and not any(tag in content for tag in (*SEARCH, "<answer>"))
        } or None

    async def respond(self, query: str, thread: LiveThread, env: Env) -> None:
        """A reader that says nothing that can be read has found nothing: the reasoning goes on."""
        state = thread.state
        state.query, state.documents = query, await env.search(query, self.config.k)
        state.reasoning = "".join(turn.text for turn in thread.thread.turns[1:]).strip()
        _, found = await self.turn(env, self.roles["reader"], state, lambda text: blocks(text, "information"), parent=thread.thread)
        condensed = found["information"] if found and found["information"] else NOTHING
        thread.observe(f"\n{RESULT[0]} {condensed}{RESULT[1]}\n", ("information",))
