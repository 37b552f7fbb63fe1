"""Vectors of a corpus, made in parts that outlive the process: a build that ended early goes on after its last part."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rolecast.disk import writing_to

if TYPE_CHECKING:
    from rolecast.retriever.encoder import Encoder

PART = 1024  # texts: some 20 s of MiniLM on one core
Stored = Literal["float32", "float16"]
Shown = Callable[[int, int], None]  # how many texts of how many


def encoded(texts: Sequence[str], encoder: Encoder, folder: Path, shown: Shown, stored: Stored = "float32") -> Iterator[npt.NDArray[Any]]:
    """Unit vectors (texts, dim) of each part, in order, as `stored` says. Parts lie in `folder` by what they are made of, so one of other texts, or of another
    encoder, is never taken for it. Whoever has used them deletes the folder.
    """
    maker = json.dumps([encoder.identity().record(), encoder.prefixes.model_dump(), *([] if stored == "float32" else [stored])])
    folder.mkdir(parents=True, exist_ok=True)
    for at in range(0, len(texts), PART):
        part = texts[at : at + PART]
        file = folder / f"{hashlib.sha256(json.dumps([maker, *part]).encode()).hexdigest()[:32]}.npy"
        vectors = _kept(file, len(part))
        if vectors is None:
            vectors = encoder.encode(part, "passage").astype(stored, copy=False)
            _keep(file, vectors)
        shown(at + len(part), len(texts))
        yield vectors


def _kept(file: Path, texts: int) -> npt.NDArray[Any] | None:
    """None where there is none, or half of one."""
    try:
        vectors: npt.NDArray[Any] = np.load(file)
    except (OSError, ValueError, EOFError):
        return None
    return vectors if len(vectors) == texts else None


def _keep(file: Path, vectors: npt.NDArray[Any]) -> None:
    temporary = file.with_suffix(".tmp")
    with writing_to(file):
        with temporary.open("wb") as out:
            np.save(out, vectors)
        os.replace(temporary, file)
