"""`rolecast retriever serve` and `rolecast retriever front`."""

from __future__ import annotations

import typer

from rolecast.cli.flags import takes_settings
from rolecast.retriever.settings import FrontSettings, RetrieverSettings

app = typer.Typer(help="Serve an index.")


@app.callback()
def _group() -> None:
    """Serve an index."""


@app.command()
@takes_settings(RetrieverSettings)
def serve(settings: RetrieverSettings) -> None:
    """Search over HTTP: /retrieve, /search, /fetch, /v1/embeddings, /healthz, /readyz, /metrics.

    S3 takes ROLECAST_S3_ENDPOINT and AWS credentials from the environment.
    """
    from rolecast.retriever.app import make_retriever
    from rolecast.service.server import serve as serve_app

    serve_app(*make_retriever(settings), settings)


@app.command()
@takes_settings(FrontSettings)
def front(settings: FrontSettings) -> None:
    """Search over the shards of an index, served by `retriever serve` each: the same routes, and the answers of the whole index."""
    from rolecast.retriever.front import make_front
    from rolecast.service.server import serve as serve_app

    serve_app(*make_front(settings), settings)
