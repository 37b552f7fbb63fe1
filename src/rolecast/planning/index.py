"""How many passages a run searches, and what its index keeps in memory."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

from rolecast.config import RunConfig
from rolecast.errors import InputError
from rolecast.planning.memory import Part

OBJECTS = 260  # bytes of a passage as Python 3.11 keeps it, beside its letters: three strings, the record, its place in list and table
ENTRY = 8  # bytes of a word in a passage: a float32 score and an int32 row
WORD = 200  # bytes of a word of the vocabulary
LETTERS = 6  # of a word, with the space after it
DISTINCT = 0.7  # share of a passage's words that are not there already
DIMENSION, ENCODER = 384, 23_000_000  # of the packaged encoder: width of its vectors, and its parameters
SAMPLE = 2000  # passages whose length is looked at


@dataclass(frozen=True, slots=True)
class Corpus:
    """`letters`: of a passage, on average. `origin`: where the numbers are from."""

    passages: int
    letters: float
    origin: str


def corpus_of(config: RunConfig, passages: int | None = None) -> Corpus | None:
    """`passages`: a number that the user gives. None where the run has no index of its own and none was given."""
    if config.data.corpus is not None:
        found = _read(Path(config.data.corpus), passages)
    elif config.data.world is not None:
        found = _drawn(config)
    else:
        found = None
    if passages is not None:
        return Corpus(passages, found.letters if found else 600.0, "--passages")
    return None if config.retriever.index else found


def _read(file: Path, passages: int | None) -> Corpus | None:
    """Counts lines, and reads the first ones."""
    if not file.is_file():
        if passages is None:
            raise InputError(f"{file} is not here; say how many passages it has by --passages N")
        return None
    letters, looked, count = 0, 0, 0
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            count += 1
            if looked < SAMPLE:
                looked += 1
                letters += len(str(json.loads(line).get("text") or json.loads(line).get("contents") or ""))
    return Corpus(count, letters / max(1, looked), str(file))


def _drawn(config: RunConfig) -> Corpus:
    """A world is drawn in a second or two: its size is known by drawing it."""
    from rolecast.stages.world import draw_world

    assert config.data.world is not None
    made = draw_world(config.data.world, config.seed).passages
    return Corpus(len(made), sum(len(passage.text) for passage in made) / len(made), "data.world")


def index_parts(config: RunConfig, corpus: Corpus | None) -> list[Part]:
    """Of an index that is opened in the learner's process; a service has it elsewhere."""
    kind = config.retriever.kind
    if corpus is None or not config.retriever.indexed or config.retriever.url is not None:
        return []
    n = corpus.passages
    parts = [
        Part("index: passages", int(n * (OBJECTS + corpus.letters)), f"{n:,} × ({OBJECTS} + {corpus.letters:.0f} letters)", SERVICE, "host")
    ]
    words = corpus.letters / LETTERS
    if kind in ("bm25", "hybrid"):
        vocabulary = int(30 * (n * words) ** 0.5)  # Heaps' law with its usual constants (Manning et al. 2008, 5.1.1)
        held = int(n * words * DISTINCT * ENTRY) + vocabulary * WORD
        parts.append(
            Part(
                "index: words", held, f"{n:,} × {words * DISTINCT:.0f} words × {ENTRY} B, {vocabulary:,} words × {WORD} B", SERVICE, "host"
            )
        )
    if kind in ("dense", "hybrid"):
        width, size = _encoder(config.retriever.encoder)
        parts.append(Part("index: vectors", n * width * 4, f"{n:,} × {width} × 4 B", f"retriever.kind bm25, or {SERVICE}", "host"))
        parts.append(Part("index: encoder", size * 4, f"{size:,} × 4 B", SERVICE, "host"))
    return parts


SERVICE = "a retriever service on another machine (retriever.url)"


def _encoder(name: str) -> tuple[int, int]:
    """Width of its vectors, and its parameters."""
    from rolecast.planning.shape import headers_of

    file = Path(name) / "config.json"
    if name == "minilm" or not file.is_file():
        return DIMENSION, ENCODER
    return int(json.loads(file.read_text())["hidden_size"]), headers_of(Path(name)) or ENCODER
