"""How well a retriever finds a world's gold passages: by the raw question, and by each hop's own query."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rolecast.retriever.index import Kind, LocalRetriever, build_index
from rolecast.types import Question
from rolecast.world.counterfactual import World


def measure_world(world: World, k: int = 5, split: str = "test") -> dict[str, dict[str, float]]:
    """Per ranker: share of chain questions with two or more hops whose gold the raw question finds in full, and share of
    gold sub-queries that find their passage, both within the first `k`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        build_index(world.passages, path, "hybrid")
        kinds: tuple[Kind, ...] = ("bm25", "dense", "hybrid")
        return {kind: asyncio.run(measure(LocalRetriever.open(path, kind), world.questions[split], k)) for kind in kinds}


async def measure(retriever: LocalRetriever, questions: Sequence[Question], k: int) -> dict[str, float]:
    chains = [q for q in questions if q.type == "chain" and q.hops > 1]
    raw = await retriever.search([q.text for q in chains], k)
    whole = [set(q.gold.passages) <= {p.id for p in found} for q, found in zip(chains, raw, strict=True)]
    hops = [hop for q in questions for hop in q.gold.chain]
    asked = await retriever.search([hop.query for hop in hops], k)
    single = [hop.passage in {p.id for p in found} for hop, found in zip(hops, asked, strict=True)]
    return {"raw_question_all_gold": sum(whole) / len(whole), "gold_sub_query": sum(single) / len(single), "k": float(k)}
