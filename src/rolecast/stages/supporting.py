"""Texts of supporting passages, for what can say more of an episode that went wrong."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rolecast.errors import RolecastError
from rolecast.evaluation.attribution import Texts, silent_on
from rolecast.evaluation.reports import rightness
from rolecast.evaluation.tasks import Scores, Task
from rolecast.ports import Retriever
from rolecast.types import Trajectory

log = logging.getLogger(__name__)
AT_ONCE = 256  # passages of a request


def wanted(done: Sequence[Trajectory], scored: Sequence[Scores], task: Task) -> list[str]:
    """Ids of the passages whose texts would say more, each once. `scored`: of each episode by the task."""
    silent = (silent_on(t, rightness(task, scores)) for t, scores in zip(done, scored, strict=True))
    return list(dict.fromkeys(passage for passages in silent for passage in passages))


async def texts_of(ids: Sequence[str], retriever: Retriever) -> Texts:
    """Those that the retriever has. Without them an evaluation says less and is as right: one that does not answer is warned of."""
    found = {}
    try:
        for start in range(0, len(ids), AT_ONCE):
            found.update({passage.id: passage for passage in await retriever.fetch(ids[start : start + AT_ONCE])})
    except RolecastError as error:
        log.warning("the retriever gives no supporting passages (%s): whether they were asked for is not told", error)
    return found
