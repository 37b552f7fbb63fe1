"""Settings of the retriever service, and of a front over shards."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
    index: str = Field(description="A folder or s3://bucket/prefix/key of a committed index.")
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
