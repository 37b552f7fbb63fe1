"""The index that a run searches."""

from __future__ import annotations

import logging
from pathlib import Path

from rolecast.config import RunConfig
from rolecast.data.records import read_corpus, read_questions
from rolecast.errors import InputError
from rolecast.methods.registry import make_method
from rolecast.ports import EXTERNAL
from rolecast.retriever.analysis import PLAIN, Analysis
from rolecast.retriever.index import KIND, build_index
from rolecast.retriever.live.settings import LIVE
from rolecast.stages.run import Run
from rolecast.stages.working import working
from rolecast.stages.world import world
from rolecast.store.artifact import parse_manifest
from rolecast.store.uri import manifest_at

log = logging.getLogger(__name__)


def index(run: Run) -> None:
    """Builds `run.index` from the run's corpus unless it is there; the corpus of a world of its own is drawn first.

    A run that takes its index from elsewhere, searches an external service or asks a search engine, builds none.
    """
    world(run)
    c, r = run.config, run.config.retriever
    if r.index:
        _check_shared(c)
    elif r.kind != EXTERNAL and r.kind != LIVE and not run.has(run.index):
        with working(run, "index"):
            corpus = Path(c.data.corpus) if c.data.corpus else run.world / "corpus.jsonl"
            passages = read_corpus(corpus)
            _warn_of_lost_gold(c, {passage.id for passage in passages})
            wanted = make_method(c.method).k
            if wanted > len(passages):
                raise InputError(f"{corpus}: method.k = {wanted} is larger than the corpus ({len(passages)} passages); lower method.k")
            build_index(passages, run.index, r.kind, r.encoder, analysis_of(c), prefixes=r.prefixes, long=r.long)
            run.publish(run.index)


def analysis_of(config: RunConfig) -> Analysis:
    """Worlds that a run draws say each word in one way, and their figures were measured with plain words."""
    return config.retriever.analysis or (Analysis() if config.data.corpus else PLAIN)


def _warn_of_lost_gold(config: RunConfig, corpus: set[str]) -> None:
    """Of questions from files: those of a world of the run's own come from its corpus."""
    for split in ("train", "dev", "test") if config.data.corpus else ():
        questions = read_questions(Path(getattr(config.data, split)))
        if lost := [question for question in questions if not corpus.issuperset(question.gold.passages)]:
            log.warning(
                "data.%s: %d of %d questions have gold passages that are not in data.corpus, the first one %s: no search can find them",
                split,
                len(lost),
                len(questions),
                lost[0].id,
            )


def _check_shared(config: RunConfig) -> None:
    """Raises InputError if what lies at `retriever.index` is no index, or none for this config."""
    c = config.retriever
    assert c.index is not None
    manifest = parse_manifest(manifest_at(c.index), c.index)
    built = manifest.get("provenance", {})
    if manifest["kind"] != KIND:
        raise InputError(f"retriever.index: {c.index} is a {manifest['kind']}, not an index; make one with `rolecast index build`")
    if built.get("kind") not in (c.kind, "hybrid"):
        raise InputError(f"retriever.index: {c.index} is a {built.get('kind')} index and cannot serve {c.kind}; set retriever.kind")
    wanted = make_method(config.method).k
    if wanted > built.get("passages", wanted):
        raise InputError(f"retriever.index: method.k = {wanted} is larger than the corpus ({built['passages']} passages); lower method.k")
