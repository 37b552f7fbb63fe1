"""`rolecast retriever serve`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Serve an index.")


@app.callback()
def _group() -> None:
    """Serve an index."""


@app.command()
def serve(
    index: Annotated[str | None, typer.Option(metavar="URI", help="A folder or s3://bucket/prefix/key of a committed index.")] = None,
    kind: Annotated[str | None, typer.Option(help="bm25, dense or hybrid; by default what the index was built as.")] = None,
    topk: Annotated[str | None, typer.Option(help="Passages per query for requests that do not say (3).")] = None,
    max_text_characters: Annotated[str | None, typer.Option(help="Longer queries and texts are refused (32768).")] = None,
    max_results: Annotated[str | None, typer.Option(help="Passages of one request, queries × k; more are refused (32768).")] = None,
    max_batch: Annotated[str | None, typer.Option(help="Queries of one search at most (64).")] = None,
    batch_milliseconds: Annotated[str | None, typer.Option(help="How long a query waits for company (2).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (::, which is all).")] = None,
    port: Annotated[str | None, typer.Option(help="Port to listen on; 0 takes a free one (8080).")] = None,
    metrics_port: Annotated[
        str | None, typer.Option(help="Port of /metrics and /openapi.json; by default that of the other routes.")
    ] = None,
    tokens_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Bearer tokens, one a line; without it everybody may ask.")
    ] = None,
    max_body_bytes: Annotated[str | None, typer.Option(help="Larger requests are refused (8388608).")] = None,
    drain_seconds: Annotated[str | None, typer.Option(help="How long requests may take after SIGTERM (30).")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error (info).")] = None,
) -> None:
    """Search over HTTP: /retrieve, /search, /fetch, /v1/embeddings, /healthz, /readyz, /metrics.

    Every option can be given as ROLECAST_<NAME> instead. S3 takes ROLECAST_S3_ENDPOINT and AWS credentials from the environment.
    """
    flags = dict(locals())
    from rolecast.retriever.app import RetrieverSettings, make_retriever
    from rolecast.service.server import serve as serve_app
    from rolecast.service.settings import read_settings

    settings = read_settings(RetrieverSettings, flags)
    serve_app(*make_retriever(settings), settings)
