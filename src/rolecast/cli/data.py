"""`rolecast data …` and `rolecast index …`."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rolecast.cli.places import path_argument, path_option
from rolecast.errors import InputError

if TYPE_CHECKING:
    from rolecast.retriever.encoder import Prefixes

app = typer.Typer(help="Worlds and data sets.")
index_app = typer.Typer(help="Search indexes.")


@app.command()
def world(
    out: Annotated[Path, path_option("Folder to write; it must not exist yet.")],
    seed: Annotated[int, typer.Option(help="Draws the facts and questions.")] = 0,
    kind: Annotated[
        Literal["counterfactual", "crowded", "facts"], typer.Option(help="Invented facts, the same in a crowd, or real geography.")
    ] = "counterfactual",
    measure: Annotated[bool, typer.Option(help="Also measure BM25, dense and hybrid retrieval on it (minutes).")] = False,
) -> None:
    """Make a world: a corpus of one-sentence passages and multi-hop questions over it."""
    from rolecast.config import WorldConfig
    from rolecast.stages.world import statistics, write_world

    _fresh(out)
    made = write_world(out, WorldConfig(kind=kind), seed)
    numbers: dict[str, object] = statistics(made)
    if measure:
        from rolecast.evaluation.retrieval import measure_world

        numbers["retrieval"] = measure_world(made)
    print(json.dumps(numbers, indent=1))


@app.command()
def convert(
    source: Annotated[Path, path_argument("A file in the data set's own layout.")],
    out: Annotated[Path, path_option("Folder to write questions.jsonl (and corpus.jsonl) into.")],
    format: Annotated[str | None, typer.Option(help="Layout; guessed from the content when left out.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set, part of every question's id.")] = None,
    split: Annotated[str, typer.Option(help="Name of the split, part of every question's id.")] = "train",
) -> None:
    """Convert a public QA data set to Rolecast's questions."""
    from rolecast.data.convert import convert as run

    _fresh(out)
    try:
        found = run(source, out, format, dataset or source.stem, split)
    except InputError:
        with contextlib.suppress(OSError):
            out.rmdir()  # what the conversion made before it met the fault; never a folder that holds something
        raise
    told = {"questions": found.questions, "with gold passages": found.with_passages, "with a chain of facts": found.with_chain}
    beside = {"passages": found.passages, "paragraphs without text, left out": found.empty_paragraphs}
    print("\n".join([f"{source}: {found.format} → {out}", *_counted({**told, **{name: n for name, n in beside.items() if n}})]))


@app.command()
def merge(
    sources: Annotated[list[Path], path_argument("Folders that `rolecast data convert` wrote, or others in that form.")],
    out: Annotated[Path, path_option("Folder to write corpus.jsonl and a file of questions for each into; it must not exist yet.")],
) -> None:
    """Merge the corpora of splits and data sets into one, and keep their questions apart."""
    from rolecast.data.merge import merge as run

    _fresh(out)
    try:
        found = run(sources, out)
    except InputError:
        shutil.rmtree(out, ignore_errors=True)  # it was not there before
        raise
    print(
        "\n".join(
            [str(out), *_counted({"corpus.jsonl": found.passages, **found.questions, "passages that were there before": found.shared})]
        )
    )


def _counted(counts: Mapping[str, int]) -> list[str]:
    """A line each, numbers below each other."""
    width = max(len(f"{count:,}") for count in counts.values())
    return [f"  {count:>{width},}  {name}" for name, count in counts.items()]


@index_app.command()
def build(
    corpus: Annotated[Path, path_option("JSON lines of {id, title, text}, or Search-R1's {id, contents}; .gz is read too.")],
    out: Annotated[str, typer.Option(metavar="PLACE", help="Where nothing is yet: a folder, or s3://bucket/prefix/NAME.")],
    kind: Annotated[Literal["bm25", "dense", "hybrid"], typer.Option(help="hybrid holds both and can serve as either.")] = "dense",
    encoder: Annotated[str, typer.Option(help="minilm (packaged), or a sentence-transformers directory.")] = "minilm",
    query_prefix: Annotated[str | None, typer.Option(help="Before a query that is encoded; by default what the encoder names.")] = None,
    passage_prefix: Annotated[str | None, typer.Option(help="Before a passage that is encoded; by default what the encoder names.")] = None,
    long: Annotated[
        Literal["cut", "split"], typer.Option(help="A passage that outgrows the encoder's window: cut, or encoded in pieces.")
    ] = "cut",
    words: Annotated[
        Literal["plain", "unicode"], typer.Option(help="Words in one spelling, of any script; or plain, lower-cased as they are spelt.")
    ] = "unicode",
    stemmer: Annotated[str | None, typer.Option(help="Snowball stemmer of the corpus's language, english; none when left out.")] = None,
    k1: Annotated[float | None, typer.Option(help="BM25's k1: 0.9, or 1.5 of plain words.")] = None,
    b: Annotated[float | None, typer.Option(help="BM25's b: 0.4, or 0.75 of plain words.")] = None,
) -> None:
    """Build an index over a corpus."""
    from rolecast.retriever.analysis import analysis_of
    from rolecast.stages.shared_index import build as build_at

    analysis = analysis_of(words, stemmer, k1, b)
    count, built = build_at(
        str(corpus), out, kind, encoder, analysis, prefixes=_prefixes(query_prefix, passage_prefix), long=long, shown=_progress()
    )
    print(f"{out}: {kind} index of {count} passages{f', {built}' if built.vectors else ''}")


@index_app.command("eval")
def evaluate(
    index: Annotated[
        str, typer.Argument(metavar="PLACE", help="An index's folder or s3:// address, or the http:// address of a retriever.")
    ],
    questions: Annotated[list[Path], path_argument("JSON lines of questions that name their gold passages; a row of figures for each.")],
    kind: Annotated[Literal["bm25", "dense", "hybrid"] | None, typer.Option(help="Which ranker; by default the index's own.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Directory of the index's encoder, where it lies elsewhere by now.")] = None,
    k: Annotated[list[int] | None, typer.Option(min=1, help="How many passages count, given several times; 1, 3, 5, 10.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="An object for each file, with its intervals.")] = False,
) -> None:
    """How well an index finds the gold passages of questions: recall, any and all of them within k, and the rank of the first."""
    from rolecast.data.records import read_questions
    from rolecast.evaluation.supports import support_table
    from rolecast.stages.supports import measure_index

    read = {str(path): read_questions(path) for path in questions}
    found = measure_index(index, read, k or [1, 3, 5, 10], kind, encoder)
    print(json.dumps({name: of.record() for name, of in found.items()}, indent=1) if as_json else support_table(found))
    for name, of in found.items():
        if of.without:
            print(f"{name}: {of.without} questions name no gold passage and are left out", file=sys.stderr)
        if of.absent:
            print(f"{name}: {of.absent} questions have a gold passage that the corpus lacks; they count as not found", file=sys.stderr)


def _progress() -> Callable[[int, int], None]:
    from rolecast.stages.progress import Progress

    bars: list[Progress] = []

    def shown(done: int, total: int) -> None:
        if not bars:  # what another try left is there at once, and tells nothing of how long the rest takes
            bars.append(Progress("encoding", total, start=done))
        bars[0].update(done)

    return shown


def _prefixes(query: str | None, passage: str | None) -> Prefixes | None:
    from rolecast.retriever.encoder import Prefixes

    if (query is None) != (passage is None):
        raise InputError("--query-prefix and --passage-prefix go together; give both, an empty one where there is none")
    return None if query is None or passage is None else Prefixes(query=query, passage=passage)


def _fresh(out: Path) -> None:
    if out.exists():
        raise InputError(f"{out} exists; name a new folder")
