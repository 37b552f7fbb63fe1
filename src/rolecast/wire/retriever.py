"""The retriever's wire: Search-R1's /retrieve, M-ASK's /search, /fetch, and OpenAI's /v1/embeddings."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rolecast.ports import IndexInfo
from rolecast.types import Passage

MOST = 1024  # ids or texts of one request
MANY = 8192  # queries of one request: Search-R1's trainer sends those of a whole step, 2,560 and more


def _whole(text: str) -> str:
    text.encode()  # JSON can spell half a surrogate pair, on which encoders fail: UnicodeEncodeError is a ValueError
    return text


Text = Annotated[str, AfterValidator(_whole)]
Texts = Annotated[list[Text], Field(max_length=MOST)]
Queries = Annotated[list[Text], Field(max_length=MANY)]


def _counted(number: object) -> object:
    return int(number) if isinstance(number, float) and number.is_integer() else number  # 3.0, as clients write it that know one kind


Count = Annotated[int, BeforeValidator(_counted), Field(ge=0)]


class Request(BaseModel):
    """Keys that a client of another server also sends are left out."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class RetrieveRequest(Request):
    """`topk` null or 0 is the server's default."""

    queries: Queries
    topk: Count | None = None
    return_scores: bool = False


class SearchRequest(Request):
    questions: Queries
    N: Count | None = None


class FetchRequest(Request):
    ids: Texts


class EmbeddingsRequest(Request):
    input: Text | Texts
    model: str = ""
    encoding_format: Literal["float", "base64"] = "float"


class Document(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    contents: str

    def to_passage(self, score: float = 0.0) -> Passage:
        return Passage(self.id, *title_and_text(self.contents), score)


class Scored(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    document: Document
    score: float


class ScoredReply(BaseModel):
    result: list[list[Scored]]


class FetchReply(BaseModel):
    result: list[Document]


class SwapRequest(BaseModel):
    """POST /v1/index: the index that is to be served from now on."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    index: Annotated[Text, Field(min_length=1)]


class Shard(BaseModel):
    """Shard `number` (from 0) `of` so many; its first passage is passage `first` of the `passages` of the index whose digest is `whole`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    number: int = Field(ge=0)
    of: int = Field(ge=1)
    first: int = Field(ge=0)
    passages: int = Field(ge=1)
    whole: str


class RankingsRequest(Request):
    """What a front asks of its shards: the first `depth` hits of each ranker."""

    queries: Queries
    depth: Annotated[int, Field(ge=1)]


class RankingsReply(BaseModel):
    """`index`: the digest of the index that was searched. By query and ranker (words, then meaning): rows and scores, best first."""

    index: str
    rankings: list[list[list[tuple[int, float]]]]


class PassagesRequest(Request):
    """Passages by their rows in the index, then by their ids."""

    rows: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MANY)] = []
    ids: Texts = []

    @model_validator(mode="after")
    def _something_is_asked(self) -> PassagesRequest:
        if not self.model_fields_set:
            raise ValueError("say which passages: rows or ids")
        return self


class PassagesReply(BaseModel):
    """Null for an id that the index lacks."""

    index: str
    passages: list[Document | None]


class IndexReply(BaseModel):
    """/v1/index: as `IndexInfo`; then what a front must know of its shards. `shard`: which part of a whole it is. `encoder`: a digest of
    its vectors' encoder, empty where it does not say. `reranked`: whether a model reads again what it finds."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    kind: Annotated[str, Field(min_length=1)]
    digest: Annotated[str, Field(min_length=1)]
    passages: int = 0
    shard: Shard | None = None
    encoder: str = ""
    reranked: bool = False

    def to_info(self) -> IndexInfo:
        return IndexInfo(self.kind, self.digest)


class Embedding(BaseModel):
    index: int
    embedding: str


class EmbeddingsReply(BaseModel):
    """As our own client asks for it: base64 of little-endian float32."""

    data: list[Embedding]

    def vectors(self) -> npt.NDArray[np.float32]:
        """(texts, dim)."""
        rows = [np.frombuffer(base64.b64decode(item.embedding), "<f4") for item in sorted(self.data, key=lambda item: item.index)]
        return np.array(rows, dtype=np.float32)


def contents(title: str, text: str) -> str:
    r"""`"Title"\ntext`. A title that would not come back from this (it has a line break) is written as a JSON string."""
    line = f'"{title}"'
    if "\n" in title or _title(line) != title:
        line = json.dumps(title, ensure_ascii=False)
    return f"{line}\n{text}"


def title_and_text(contents: str) -> tuple[str, str]:
    line, _, text = contents.partition("\n")
    return _title(line), text


def _title(line: str) -> str:
    if "\\" in line:
        try:
            title = json.loads(line)
        except ValueError:
            pass
        else:
            if isinstance(title, str):
                return title
    quoted = len(line) > 1 and line[0] == line[-1] == '"'
    return line[1:-1] if quoted else line


def document(passage: Passage) -> dict[str, str]:
    return {"id": passage.id, "contents": contents(passage.title, passage.text)}


def retrieve_reply(results: Sequence[Sequence[Passage]], scores: bool) -> dict[str, Any]:
    if scores:
        return {"result": [[{"document": document(p), "score": p.score} for p in found] for found in results]}
    return {"result": [[document(p) for p in found] for found in results]}


def embeddings_reply(vectors: npt.NDArray[np.float32], request: EmbeddingsRequest) -> dict[str, Any]:
    def shown(vector: npt.NDArray[np.float32]) -> str | list[float]:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode() if request.encoding_format == "base64" else vector.tolist()

    data = [{"object": "embedding", "index": n, "embedding": shown(vector)} for n, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": request.model}
