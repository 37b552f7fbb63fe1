"""`rolecast judge serve`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Serve a judge.")


@app.callback()
def _group() -> None:
    """Serve a judge."""


@app.command()
def serve(
    judge_backend: Annotated[str | None, typer.Option(help="lexical or openai (lexical).")] = None,
    judge_openai_url: Annotated[str | None, typer.Option(metavar="URL", help="The endpoint's address up to and with /v1.")] = None,
    judge_openai_model: Annotated[str | None, typer.Option(help="The model's name at the endpoint.")] = None,
    judge_openai_concurrency: Annotated[str | None, typer.Option(help="Requests at the endpoint at once (16).")] = None,
    judge_openai_timeout: Annotated[str | None, typer.Option(help="Seconds of one try (30).")] = None,
    judge_openai_patience: Annotated[str | None, typer.Option(help="Seconds of trying before an action stays unscored (60).")] = None,
    judge_openai_max_tokens: Annotated[str | None, typer.Option(help="Tokens of a reply (512).")] = None,
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
    """Judge over HTTP: /v1/judge, /healthz, /readyz, /metrics.

    Every option can be given as ROLECAST_<NAME> instead. The endpoint's key is read from OPENAI_API_KEY alone.
    """
    flags = dict(locals())
    from rolecast.judge.app import JudgeSettings, make_judge
    from rolecast.service.server import serve as serve_app
    from rolecast.service.settings import read_settings

    settings = read_settings(JudgeSettings, flags)
    serve_app(*make_judge(settings), settings)
