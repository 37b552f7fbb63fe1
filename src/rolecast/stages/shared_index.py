"""An index that many runs search, built once and published at an address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecast.data.records import iter_corpus, read_corpus
from rolecast.errors import InputError
from rolecast.retriever.analysis import Analysis
from rolecast.retriever.index import KIND, Kind, build_index
from rolecast.retriever.windows import Built
from rolecast.scratch import scratch
from rolecast.store.artifact import digest_of, parse_manifest, provenance
from rolecast.store.uri import S3, copy_record, local_artifact, making, manifest_at, place_of

if TYPE_CHECKING:
    from rolecast.retriever.encoder import Prefixes
    from rolecast.retriever.importing import Imported, Layout


def build(corpus: str, out: str, kind: Kind, encoder: str, analysis: Analysis, **options: Any) -> tuple[int, Built]:
    """Writes it to `out`, a folder or s3://bucket/prefix/NAME where nothing is yet; how many passages it has, and how they were encoded.

    `corpus`: a file here, or an object s3://bucket/prefix/NAME.jsonl, which is first copied to this machine's disk. `options`: of
    `build_index`.
    """
    with making(out) as folder, _here(corpus) as file:
        passages = iter_corpus(file) if kind == "dense" else read_corpus(file)  # BM25 takes all words at once
        built = build_index(passages, folder, kind, encoder, analysis, **options)
        count = int(provenance(folder)["passages"])
    return count, built


def take_in(layout: Layout, source: Path, corpus: Path, out: str, encoder: str, prefixes: Prefixes | None) -> Imported:
    """A FAISS index that others built, at `out` where nothing is yet. An encoder that is not here is taken at its word."""
    from rolecast.retriever import encoder as encoders
    from rolecast.retriever.importing import import_index

    here = Path(encoder).is_dir() or encoder == encoders.PACKAGED
    name = str(Path(encoder).resolve()) if Path(encoder).is_dir() else encoder
    with making(out) as folder:
        return import_index(layout, source, corpus, folder, name, encoders.Encoder(encoder, prefixes) if here else None, prefixes)


def cut(index: str, shards: int, out: str) -> list[int]:
    """The index as `shards` artifacts `out`/0, `out`/1, …; how many passages each has."""
    from rolecast.retriever.shard import split

    with scratch("artifact") as folder:
        return split(local_artifact(index, folder / "index"), shards, lambda number: making(f"{out.rstrip('/')}/{number}"))


def find_or_build(corpus: str, out: str, kind: Kind, encoder: str) -> tuple[dict[str, Any], str]:
    """As `build`, but for an index that is there and was built this way. Its manifest and its digest."""
    try:
        data = manifest_at(out)
    except InputError:
        build(corpus, out, kind, encoder, Analysis())
        data = manifest_at(out)
    manifest = parse_manifest(data, out)
    place = str(Path(encoder).resolve()) if Path(encoder).is_dir() else encoder
    made, wanted = manifest.get("provenance", {}), (kind, place if kind != "bm25" else None)
    if manifest["kind"] != KIND or (made.get("kind"), made.get("encoder")) != wanted:
        what = f"an index of kind {made.get('kind')} with encoder {made.get('encoder')}" if manifest["kind"] == KIND else manifest["kind"]
        raise InputError(f"{out} holds {what}, not the {kind} index that was asked for; name another address")
    return manifest, digest_of(data)


@contextmanager
def _here(corpus: str) -> Iterator[Path]:
    if not corpus.startswith(S3):
        yield Path(corpus)
        return
    with scratch("artifact") as folder:
        file = folder / place_of(corpus)[1]
        if not copy_record(corpus, file):
            raise InputError(f"{corpus} is no object; put the corpus there, or mend the address")
        yield file
