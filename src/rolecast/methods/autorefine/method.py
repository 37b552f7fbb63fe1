"""`autorefine`: Search-R1's loop in which every observation is refined before anything else is said (Shi et al. 2025).

A reply after documents begins with what of them matters. Here nothing is trained on it, so there is no reward for retrieval.
"""

from __future__ import annotations

from typing import Literal

from rolecast.methods.autorefine.teacher import AutoRefineTeacher
from rolecast.methods.information import SOURCES
from rolecast.methods.registry import register
from rolecast.methods.transcript import Move, PassagesConfig, PassageTranscript
from rolecast.methods.untrained import Untrained
from rolecast.rollout.env import LiveThread
from rolecast.tags import blocks
from rolecast.teachers.base import Teacher, TeacherErrors
from rolecast.types import Observation, Role


class AutoRefineConfig(PassagesConfig):
    name: Literal["autorefine"] = "autorefine"  # which method


@register
class AutoRefine(Untrained, PassageTranscript):
    name = "autorefine"
    config_type = AutoRefineConfig
    speaker = "searcher"
    again = (
        "\nThat cannot be read. After documents begin with <refine> </refine>; think inside <think> </think>; then put a query in "
        "<search> </search> or the answer in <answer> </answer>.\n"
    )
    frame = ("\n<documents>", "</documents>\n")
    config: AutoRefineConfig

    def __init__(self, config: AutoRefineConfig) -> None:
        super().__init__(config)
        self.roles = {"searcher": Role("searcher", frozenset({"question"}), ("</search>", "</answer>"), config.max_tokens)}

    def teacher(self, errors: TeacherErrors) -> Teacher:
        return AutoRefineTeacher(errors, self.config.max_turns, self.thoughts)

    def read(self, text: str, thread: LiveThread) -> Move | None:
        """Once there were documents, every reply answers some, so it begins by refining."""
        shown = any(isinstance(turn, Observation) and turn.sources == SOURCES for turn in thread.thread.turns)
        lead = ("refine", "think") if shown else ("think",)
        found = blocks(text, *lead, "search") or blocks(text, *lead, "answer")
        return found if found and (found.get("search") or found.get("answer")) else None
