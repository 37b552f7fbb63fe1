"""An index alone, for many runs to search."""

from typing import Any

from kfp import dsl

from rolecast.launching.overrides import Overrides
from rolecast_pipelines import components
from rolecast_pipelines.overrides import NOTHING
from rolecast_pipelines.parameters import Parameter, pipeline, placed
from rolecast_pipelines.place import JOB, Place

OWN = (
    Parameter("corpus", "JSON lines of {id, title, text}, also .gz: s3://bucket/prefix/NAME.jsonl."),
    Parameter("out", "Where the index is published: s3://bucket/prefix/NAME."),
    Parameter("kind", "bm25, dense or hybrid, which holds both.", "hybrid"),
    Parameter("encoder", "minilm, which is packaged, or a sentence-transformers directory of the image.", "minilm"),
)


def make_index_only(overrides: Overrides = NOTHING) -> Any:
    def body(corpus: Any, out: Any, kind: Any, encoder: Any, **given: Any) -> None:
        place = Place.of(given, overrides)
        with dsl.ExitHandler(place.telling(components.conclude(place=out, runs="[]", execution=JOB)), name="Build"):
            place.indexing(components.index(out=out, corpus=corpus, kind=kind, encoder=encoder, execution=JOB))

    return pipeline("rolecast-index-only", "Builds an index over a corpus, for many runs to search.", [*OWN, *placed(overrides)], body)
