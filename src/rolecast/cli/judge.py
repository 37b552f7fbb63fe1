"""`rolecast judge serve`."""

from __future__ import annotations

import typer

from rolecast.cli.flags import takes_settings
from rolecast.judge.settings import JudgeSettings

app = typer.Typer(help="Serve a judge.")


@app.callback()
def _group() -> None:
    """Serve a judge."""


@app.command()
@takes_settings(JudgeSettings)
def serve(settings: JudgeSettings) -> None:
    """Judge over HTTP: /v1/judge, /healthz, /readyz, /metrics.

    The endpoint's key is read from OPENAI_API_KEY alone.
    """
    from rolecast.judge.app import make_judge
    from rolecast.service.server import serve as serve_app

    serve_app(*make_judge(settings), settings)
