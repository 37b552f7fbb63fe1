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
from rolecast.retriever.parallel import Encoding, Part

if TYPE_CHECKING:
    from rolecast.retriever.encoder import Encoder

PART = 1024  # texts: some 20 s of MiniLM on one core
Stored = Literal["float32", "float16"]
Shown = Callable[[int, int], None]  # how many texts of how many


def encoded(
    texts: Sequence[str], encoder: Encoder, folder: Path, shown: Shown, stored: Stored = "float32", procs: int = 1
) -> Iterator[npt.NDArray[Any]]:
    """Unit vectors (texts, dim) of each part, in order, as `stored` says. Parts lie in `folder` by what they are made of, so one of other texts, or of another
    encoder, is never taken for it. Whoever has used them deletes the folder. `procs`: processes that encode, this one or others.
    """
    maker = json.dumps([encoder.identity().record(), encoder.prefixes.model_dump(), *([] if stored == "float32" else [stored])])
    folder.mkdir(parents=True, exist_ok=True)

    def file_of(part: Sequence[str]) -> Path:
        return folder / f"{hashlib.sha256(json.dumps([maker, *part]).encode()).hexdigest()[:32]}.npy"

    def lacking() -> Iterator[Part]:
        for at in range(0, len(texts), PART):
            part = texts[at : at + PART]
            if _kept(file_of(part), len(part)) is None:
                yield at, part

    with Encoding(encoder, procs) as others:
        left = lacking()
        for at in range(0, len(texts), PART):
            part = texts[at : at + PART]
            file = file_of(part)
            while (vectors := _kept(file, len(part))) is None:
                made = others.some(left) if procs > 1 else [(at, encoder.encode(part, "passage"))]
                for start, of_part in made:
                    _keep(file if start == at else file_of(texts[start : start + PART]), of_part.astype(stored, copy=False))
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
