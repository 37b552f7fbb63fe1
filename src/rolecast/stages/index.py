"""The index that a run searches."""

from __future__ import annotations

from pathlib import Path

from rolecast.data.records import read_corpus
from rolecast.retriever.index import build_index
from rolecast.stages.run import Run, working
from rolecast.store.artifact import committed


def index(run: Run) -> Path:
    """Builds `run.index` from the run's corpus unless it is there."""
    if not committed(run.index):
        with working(run, "index"):
            c = run.config
            corpus = Path(c.data.corpus) if c.data.corpus else run.world / "corpus.jsonl"
            build_index(read_corpus(corpus), run.index, c.retriever.kind, c.retriever.encoder)
    return run.index
