"""Settings of the retriever service, and of a front over shards."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError, model_validator

from rolecast.retriever.live.settings import LiveConfig
from rolecast.service.settings import ServiceSettings


class SearchSettings(ServiceSettings):
    """What whoever takes searches has."""

    topk: int = Field(3, ge=1, description="Passages per query for requests that do not say.")
    max_text_characters: int = Field(2**15, ge=1, description="Longer queries and texts are refused.")
    max_results: int = Field(2**15, ge=1, description="Passages of one request, queries × k; more are refused.")
    max_batch: int = Field(64, ge=1, description="Queries of one search at most.")
    batch_milliseconds: float = Field(2.0, ge=0, description="How long a query waits for company.")


class FrontSettings(SearchSettings):
    shards: str = Field(description="Addresses of the services of all shards of an index, with commas between them.")
    patience: float = Field(20.0, ge=0, description="Seconds that a search waits for a shard that is away.")


class RetrieverSettings(SearchSettings):
    index: str = Field("", description="A folder or s3://bucket/prefix/key of a committed index; this or --live is required.")
    live: Literal["", "serper", "jina", "google", "searxng", "opensearch"] = Field(
        "",
        description="A search engine that is asked instead of an index. Its key is in the variable ENGINE_API_KEY, or the file ENGINE_API_KEY_FILE.",
    )
    live_url: str = Field("", description="Its address: of one of your own, or of a gateway before a hosted one.")
    live_collection: str = Field("", description="Of google the engine's id (cx), of opensearch the index.")
    live_title_field: str = Field("title", description="Of an opensearch index, the field of titles.")
    live_text_field: str = Field("text", description="Of an opensearch index, the field of texts.")
    live_budget: int | None = Field(None, ge=1, description="Requests that it may be sent in all; required of a hosted one.")
    live_cache_seconds: float = Field(
        86_400.0, ge=0, description="How long an answer of it, or a page, is taken for what it would say now."
    )
    live_record: str = Field(
        "", description="Folder or s3://bucket/prefix in which answers and what was spent are kept, for all replicas; by default memory."
    )
    swaps_from: str = Field(
        "",
        description="Folder or s3://bucket/prefix of the indexes that POST /v1/index may put in the place of the one served; none by default.",
    )
    kind: Literal["bm25", "dense", "hybrid"] | None = Field(
        None, description="Which of the index's rankers; by default what it was built as."
    )
    encoder: str | None = Field(None, description="Directory of the index's encoder; by default where it was when the index was built.")
    held: Literal["memory", "disk"] = Field(
        "memory", description="Where passages and vectors stay: disk for an index that is larger than memory."
    )
    searched_by: Literal["auto", "faiss", "torch"] = Field(
        "auto", description="Who compares vectors: torch on all GPUs, faiss on the CPU, or torch for a flat index where a GPU is there."
    )
    reranker: str = Field("", description="Directory of a model that reads what was found again; none by default.")
    reranker_form: Literal["cross_encoder", "yes_no"] = Field(
        "cross_encoder", description="How it is asked: a cross-encoder of sentence-transformers, or a language model that says yes or no."
    )
    rerank_depth: int = Field(50, ge=1, description="Passages of a query that it reads.")

    @model_validator(mode="after")
    def _index_or_engine(self) -> RetrieverSettings:
        if not self.index and not self.live:
            raise ValueError("--index is missing; give it or set ROLECAST_INDEX (or --live, for a search engine)")
        if self.live and (other := next((name for name in ("index", "swaps_from", "kind") if getattr(self, name)), "")):
            raise ValueError(f"--live asks a search engine instead of an index; leave out --{other.replace('_', '-')}")
        try:
            self.live_config()
        except ValidationError as error:
            raise ValueError(f"--live {self.live}: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
        return self

    def live_config(self) -> LiveConfig | None:
        """`--live-NAME` is its `NAME`."""
        if not self.live:
            return None
        given = {name: getattr(self, f"live_{name}", None) for name in LiveConfig.model_fields}
        return LiveConfig.model_validate({"engine": self.live} | {name: value for name, value in given.items() if value not in (None, "")})
