"""How well a retriever finds a world's gold passages: by the raw question, and by each hop's own query."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rolecast.ports import Retriever
from rolecast.retriever.index import Kind, LocalRetriever, build_index
from rolecast.scratch import scratch
from rolecast.types import Question
from rolecast.world.counterfactual import World


def measure_world(world: World, k: int = 5, split: str = "test") -> dict[str, dict[str, float]]:
    """Per ranker, within the first `k`: share of chain questions with two or more hops whose gold the raw question finds in full, share of
    all questions of which that is so (none without an answer), and share of gold sub-queries that find their passage."""
    with scratch("index") as folder:
        path = folder / "index"
        build_index(world.passages, path, "hybrid")
        kinds: tuple[Kind, ...] = ("bm25", "dense", "hybrid")
        return {kind: asyncio.run(measure(LocalRetriever.open(path, kind), world.questions[split], k)) for kind in kinds}


async def measure(retriever: Retriever, questions: Sequence[Question], k: int) -> dict[str, float]:
    raw = await retriever.search([q.text for q in questions], k)
    whole = {
        q.id: all(hop.stated for hop in q.gold.chain) and set(q.gold.passages) <= {p.id for p in found}
        for q, found in zip(questions, raw, strict=True)
    }
    chains = [whole[q.id] for q in questions if q.type == "chain" and q.hops > 1]
    hops = [hop for q in questions for hop in q.gold.chain if hop.stated]
    asked = await retriever.search([hop.query for hop in hops], k)
    single = [hop.passage in {p.id for p in found} for hop, found in zip(hops, asked, strict=True)]
    return {
        "raw_question_all_gold": sum(chains) / len(chains),
        "one_search": sum(whole.values()) / len(whole),
        "gold_sub_query": sum(single) / len(single),
        "k": float(k),
    }
