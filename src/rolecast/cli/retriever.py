"""`rolecast retriever serve`."""

from __future__ import annotations

import typer

from rolecast.cli.flags import takes_settings
from rolecast.retriever.settings import RetrieverSettings

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
