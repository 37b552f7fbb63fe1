"""`rolecast data …` and `rolecast index …`."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from rolecast.cli.places import path_argument, path_option
from rolecast.errors import InputError

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
    source: Annotated[Path, path_argument("A file in the data set's own layout, or a folder of plain text and Markdown.")],
    out: Annotated[Path, path_option("Folder to write questions.jsonl (and corpus.jsonl) into.")],
    format: Annotated[str | None, typer.Option(help="Layout; told by what only it has when left out.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set, part of every question's id.")] = None,
    split: Annotated[str, typer.Option(help="Name of the split, part of every question's id.")] = "train",
) -> None:
    """Convert a public data set or corpus to Rolecast's questions and passages."""
    from rolecast.data.convert import convert as run

    _fresh(out)
    try:
        found = run(source, out, format, dataset or source.name.partition(".")[0], split)
    except InputError:
        with contextlib.suppress(OSError):
            out.rmdir()  # what the conversion made before it met the fault; never a folder that holds something
        raise
    told = {"questions": found.questions, "with gold passages": found.with_passages, "with a chain of facts": found.with_chain}
    beside = {
        "unanswerable": found.unanswerable,
        "of them with their answerable twin in this corpus, so not unanswerable over it": found.twins,
        "rows that asked what another asked, united": found.unified,
        "passages": found.passages,
        "paragraphs without text, left out": found.empty_paragraphs,
        "passages that were there before, left out": found.duplicates,
        **{f"{reason}, left out": count for reason, count in found.left_out.items()},
    }
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
) -> None:
    """Build an index over a corpus."""
    from rolecast.data.records import read_corpus
    from rolecast.retriever.index import build_index
    from rolecast.store.uri import making

    with making(out) as folder:
        passages = read_corpus(corpus)
        build_index(passages, folder, kind, encoder)
    print(f"{out}: {kind} index of {len(passages)} passages")


def _fresh(out: Path) -> None:
    if out.exists():
        raise InputError(f"{out} exists; name a new folder")
