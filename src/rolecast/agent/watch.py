"""What happens in one episode, as it happens: for the page that shows it live, and the passages that its trace quotes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rolecast.evaluation.trace import thread_trace
from rolecast.types import Passage, Thread

Event = dict[str, Any]


class Watch:
    """The episode's watcher (`rollout.env.Watcher`). `tell` gets every event, in the team's thread.

    {"event": "thread", …}: a thread as in a trace, with the turns that are new. {"event": "search", "queries"}: they are being searched.
    {"event": "found", "passages"}: by id and title.
    """

    def __init__(self, tell: Callable[[Event], None] = lambda event: None) -> None:
        self._tell = tell
        self._told: dict[str, int] = {}  # turns, by the thread's id
        self.passages: dict[str, Passage] = {}  # each once, in the order in which they were found

    def grew(self, thread: Thread) -> None:
        since = self._told.get(thread.id, 0)
        self._told[thread.id] = len(thread.turns)
        self._tell({"event": "thread", **thread_trace(thread, {}, since)})

    def searches(self, queries: Sequence[str]) -> None:
        self._tell({"event": "search", "queries": list(queries)})

    def found(self, passages: Sequence[Passage]) -> None:
        for passage in passages:
            self.passages.setdefault(passage.id, passage)
        self._tell({"event": "found", "passages": [{"id": passage.id, "title": passage.title} for passage in passages]})
