"""The index that a run searches."""

from __future__ import annotations

from pathlib import Path

from rolecast.data.records import read_corpus
from rolecast.errors import InputError
from rolecast.methods.registry import make_method
from rolecast.retriever.index import build_index
from rolecast.stages.run import Run, working
from rolecast.stages.world import world


def index(run: Run) -> Path:
    """Builds `run.index` from the run's corpus unless it is there; the corpus of a world of its own is drawn first."""
    world(run)
    if not run.has(run.index):
        with working(run, "index"):
            c = run.config
            corpus = Path(c.data.corpus) if c.data.corpus else run.world / "corpus.jsonl"
            passages = read_corpus(corpus)
            wanted = make_method(c.method).k
            if wanted > len(passages):
                raise InputError(f"{corpus}: method.k = {wanted} is larger than the corpus ({len(passages)} passages); lower method.k")
            build_index(passages, run.index, c.retriever.kind, c.retriever.encoder)
            run.publish(run.index)
    return run.index
