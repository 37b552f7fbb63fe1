"""An index, wherever it is served or lies, measured on questions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from rolecast.evaluation.supports import Support, measure_supports
from rolecast.ports import Retriever
from rolecast.retriever.client import HttpRetriever
from rolecast.retriever.index import Kind, LocalRetriever
from rolecast.scratch import scratch
from rolecast.store.uri import local_artifact
from rolecast.types import Question


def measure_index(
    place: str, questions: Mapping[str, Sequence[Question]], ks: Sequence[int], kind: Kind | None = None, encoder: str | None = None
) -> dict[str, Support]:
    """`place`: a folder, s3:// or http(s):// address. By the names of the sets of questions."""
    if place.startswith(("http://", "https://")):
        return asyncio.run(_served(HttpRetriever(place), questions, ks))
    with scratch("artifact") as folder:
        retriever = LocalRetriever.open(local_artifact(place, folder / "index"), kind, encoder)
        return asyncio.run(_measured(retriever, questions, ks, {passage.id for passage in retriever.passages}))


async def _served(service: HttpRetriever, questions: Mapping[str, Sequence[Question]], ks: Sequence[int]) -> dict[str, Support]:
    try:
        return await _measured(service, questions, ks, None)
    finally:
        await service.close()


async def _measured(
    retriever: Retriever, questions: Mapping[str, Sequence[Question]], ks: Sequence[int], corpus: set[str] | None
) -> dict[str, Support]:
    return {name: await measure_supports(retriever, of, ks, corpus) for name, of in questions.items()}
