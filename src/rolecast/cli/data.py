"""`rolecast data …` and `rolecast index …`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rolecast.cli.demonstrate import demonstrate
from rolecast.cli.places import path_argument, path_option
from rolecast.errors import InputError

if TYPE_CHECKING:
    from rolecast.retriever.encoder import Prefixes

app = typer.Typer(help="Worlds and data sets.")
index_app = typer.Typer(help="Search indexes.")
app.command()(demonstrate)


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
    from rolecast.data.card import counted
    from rolecast.stages.world import write_world

    _fresh(out)
    made = write_world(out, WorldConfig(kind=kind), seed)
    counts = {"passages": len(made.passages), **{f"{split} questions": len(rows) for split, rows in made.questions.items()}}
    print("\n".join([str(out), *counted(counts)]))
    if measure:
        from rolecast.evaluation.retrieval import measure_world
        from rolecast.evaluation.table import aligned

        measured = measure_world(made)
        head = ["ranker", *(name.replace("_", " ") for name in next(iter(measured.values())))]
        print(
            aligned(
                head,
                [
                    [kind, *(f"{value:g}" if name == "k" else f"{100 * value:.1f}" for name, value in found.items())]
                    for kind, found in measured.items()
                ],
            )
        )


@app.command()
def convert(
    source: Annotated[Path, path_argument("A file in the data set's own layout, or a folder of plain text and Markdown.")],
    out: Annotated[Path, path_option("Folder to write questions.jsonl (and corpus.jsonl) into.")],
    format: Annotated[str | None, typer.Option(help="Layout; told by what only it has when left out.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set, part of every question's id.")] = None,
    split: Annotated[str, typer.Option(help="Name of the split, part of every question's id.")] = "train",
) -> None:
    """Convert a public data set or corpus to Rolecast's questions and passages."""
    from rolecast.data.card import counted, made_of_data
    from rolecast.data.convert import convert as run

    _fresh(out)
    name = dataset or source.name.partition(".")[0]
    with made_of_data(out, {"made": "convert", "source": str(source), "dataset": name, "split": split}) as (partial, said):
        found = run(source, partial, format, name, split)
        said["format"] = found.format
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
    print("\n".join([f"{source}: {found.format} → {out}", *counted({**told, **{name: n for name, n in beside.items() if n}})]))


@app.command()
def merge(
    sources: Annotated[list[Path], path_argument("Folders that `rolecast data convert` wrote, or others in that form.")],
    out: Annotated[Path, path_option("Folder to write corpus.jsonl and a file of questions for each into; it must not exist yet.")],
) -> None:
    """Merge the corpora of splits and data sets into one, and keep their questions apart."""
    from rolecast.data.card import counted, made_of_data
    from rolecast.data.merge import merge as run

    _fresh(out)
    with made_of_data(out, {"made": "merge", "sources": [str(source) for source in sources]}) as (partial, _):
        found = run(sources, partial)
    counts = {"corpus.jsonl": found.passages, **found.questions, "passages that were there before": found.shared}
    print("\n".join([str(out), *counted(counts)]))


@app.command()
def mix(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Converted folders or files of questions, each with =WEIGHT if you like.")
    ],
    out: Annotated[Path, path_option("Folder to write questions.jsonl and corpus.jsonl into; it must not exist yet.")],
    size: Annotated[int | None, typer.Option(min=1, help="Questions; by default as many as the weights allow.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the questions and their order.")] = 0,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="PLACE", help="An evaluation set, a folder or a file: no question of it gets into the mixture."),
    ] = None,
    near: Annotated[
        float,
        typer.Option(
            min=0.5, max=2.0, help="Share of words from which two questions with one answer ask the same; above 1 only equal texts do."
        ),
    ] = 0.8,
) -> None:
    """Mix the questions of several folders in given shares; what asks the same, or is held out, is left out."""
    from rolecast.data.card import made_of_data
    from rolecast.data.mix import Source, about
    from rolecast.data.mix import mix as run
    from rolecast.evaluation.table import aligned

    _fresh(out)
    read = [Source.read(source) for source in sources]
    with made_of_data(out, {}) as (partial, said):
        found = run(read, partial, size, seed, against or (), near)
        said.update(about(found, size, seed, against or (), near))
    head = ("source", "weight", "had", "held out", "exact repeats", "near repeats", "taken")
    rows = [
        (row.place, f"{row.weight:g}", *(f"{n:,}" for n in (row.had, row.evaluated, row.exact, row.near, row.taken)))
        for row in found.sources
    ]
    shared = f", {found.shared:,} of them in several sources" if found.shared else ""
    corpus = f"; {found.passages:,} passages{shared}" if found.passages else ""
    print("\n".join([aligned(head, rows), f"{out}: {found.questions:,} questions{corpus}"]))


@app.command()
def show(
    place: Annotated[Path, path_argument("A file of questions, or a folder with one.")],
    n: Annotated[int, typer.Option("-n", min=1, help="Questions to show.")] = 5,
    seed: Annotated[int, typer.Option(help="Draws them.")] = 0,
) -> None:
    """Show some questions with their answers, and where they are from."""
    from rolecast.data.card import shown

    print("\n\n".join(shown(place, n, seed)))


@app.command()
def card(
    place: Annotated[Path, path_argument("A folder with data, or a file of questions.")],
    as_json: Annotated[bool, typer.Option("--json", help="One object.")] = False,
) -> None:
    """Say what is in a folder of data, and how it was made."""
    from rolecast.data.card import card_of, lines_of, made_lines

    found, said = card_of(place)
    print(
        json.dumps({"card": found, "made": said}, indent=1, ensure_ascii=False)
        if as_json
        else "\n".join([*lines_of(found), *made_lines(said)])
    )


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
    structure: Annotated[
        Literal["flat", "hnsw", "ivf_flat", "ivf_pq"], typer.Option(help="Of vectors: flat compares all, the others miss some neighbours.")
    ] = "flat",
    procs: Annotated[
        int, typer.Option(min=1, help="Processes that encode; each loads the encoder, and takes a GPU of its own if there are.")
    ] = 1,
    stored: Annotated[
        Literal["float32", "float16"] | None, typer.Option(help="Numbers of a vector: float32, or float16, half the size.")
    ] = None,
    m: Annotated[int | None, typer.Option(help="Neighbours of a vector in an hnsw graph, 32.")] = None,
    ef_construction: Annotated[int | None, typer.Option(help="Candidates while an hnsw graph is built, 80.")] = None,
    ef_search: Annotated[int | None, typer.Option(help="Candidates of a search in an hnsw graph, 128.")] = None,
    nlist: Annotated[int | None, typer.Option(help="Lists of ivf_flat and ivf_pq; by default 4 √vectors.")] = None,
    nprobe: Annotated[int | None, typer.Option(help="Lists that a search looks into, 32.")] = None,
    code_bytes: Annotated[int | None, typer.Option(help="Bytes of a vector of ivf_pq; by default one for eight numbers.")] = None,
    words: Annotated[
        Literal["plain", "unicode"], typer.Option(help="Words in one spelling, of any script; or plain, lower-cased as they are spelt.")
    ] = "unicode",
    stemmer: Annotated[str | None, typer.Option(help="Snowball stemmer of the corpus's language, english; none when left out.")] = None,
    k1: Annotated[float | None, typer.Option(help="BM25's k1: 0.9, or 1.5 of plain words.")] = None,
    b: Annotated[float | None, typer.Option(help="BM25's b: 0.4, or 0.75 of plain words.")] = None,
) -> None:
    """Build an index over a corpus."""
    from rolecast.retriever.analysis import analysis_of
    from rolecast.retriever.structure import Structure, structure_of
    from rolecast.stages.shared_index import build as build_at

    analysis = analysis_of(words, stemmer, k1, b)
    given = {"stored": stored, "m": m, "ef_construction": ef_construction, "ef_search": ef_search}
    laid = structure_of(structure, **given, nlist=nlist, nprobe=nprobe, code_bytes=code_bytes)
    if kind == "bm25" and laid != Structure():
        raise InputError("a bm25 index has no vectors to be laid out; build it with --kind dense or hybrid, or leave that out")
    made = {"prefixes": _prefixes(query_prefix, passage_prefix), "long": long, "structure": laid, "procs": procs, "shown": _progress()}
    count, built = build_at(str(corpus), out, kind, encoder, analysis, **made)
    print(f"{out}: {kind} index of {count} passages{f', {built}' if built.vectors else ''}")


@index_app.command()
def split(
    index: Annotated[str, typer.Argument(metavar="PLACE", help="A committed index: a folder or s3://bucket/prefix/NAME.")],
    shards: Annotated[int, typer.Option(min=1, help="How many.")],
    out: Annotated[str, typer.Option(metavar="PLACE", help="Where nothing is yet; the shards are PLACE/0, PLACE/1, …")],
) -> None:
    """Cut an index into shards, which services of their own hold and `rolecast retriever front` searches as one."""
    from rolecast.stages.shared_index import cut

    for number, passages in enumerate(cut(index, shards, out)):
        print(f"{out.rstrip('/')}/{number}: {passages} passages")


@index_app.command("import")
def import_(
    source: Annotated[Path, path_argument("search_r1: e5_Flat.index, or a folder of its parts; pyserini: the folder of index and docid.")],
    layout: Annotated[Literal["search_r1", "pyserini"], typer.Option(help="Who built it.")],
    corpus: Annotated[Path, path_option("The corpus it was built of, in JSON lines; .gz is read too.")],
    encoder: Annotated[str, typer.Option(help="What it was built with: a sentence-transformers directory, or minilm.")],
    out: Annotated[str, typer.Option(metavar="PLACE", help="Where nothing is yet: a folder, or s3://bucket/prefix/NAME.")],
    query_prefix: Annotated[str | None, typer.Option(help="Before a query that is encoded; by default what the encoder names.")] = None,
    passage_prefix: Annotated[
        str | None, typer.Option(help="Before a passage that was encoded; by default what the encoder names.")
    ] = None,
) -> None:
    """Take in a FAISS index that others built, held against its corpus."""
    from rolecast.stages.shared_index import take_in

    found = take_in(layout, source, corpus, out, encoder, _prefixes(query_prefix, passage_prefix))
    checked = f"{found.checked} of them encoded again" if found.checked else f"none encoded again: the encoder {encoder} is not here"
    print(f"{out}: {found.passages} passages × {found.width}, {checked}")


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
