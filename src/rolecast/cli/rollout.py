"""`rolecast rollout serve`."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Play episodes for a learner.")


@app.callback()
def _group() -> None:
    """Play episodes for a learner."""


@app.command()
def serve(
    coordinator_url: Annotated[str | None, typer.Option(metavar="URL", help="The learner's coordinator.")] = None,
    retriever_url: Annotated[str | None, typer.Option(metavar="URL", help="The retriever to search.")] = None,
    judge_url: Annotated[str | None, typer.Option(metavar="URL", help="The judge that scores.")] = None,
    capacity: Annotated[str | None, typer.Option(help="Groups played at once (16).")] = None,
    name: Annotated[str | None, typer.Option(help="The worker's name; by default made from the host's.")] = None,
    workdir: Annotated[str | None, typer.Option(help="Where versions are kept; a temporary folder by default.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (::, which is all).")] = None,
    port: Annotated[str | None, typer.Option(help="Port of probes and metrics; 0 takes a free one (8080).")] = None,
    metrics_port: Annotated[str | None, typer.Option(help="Port of /metrics; by default that of the probes.")] = None,
    drain_seconds: Annotated[str | None, typer.Option(help="How long episodes may take after SIGTERM (30).")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error (info).")] = None,
) -> None:
    """Lease groups of episodes, play them with the version that the lease names, score and submit them.

    Every option can be given as ROLECAST_<NAME> instead. Versions come from the run's store: S3 takes ROLECAST_S3_ENDPOINT and
    AWS credentials from the environment.
    """
    flags = dict(locals())
    from rolecast.rollout.app import RolloutSettings, make_rollout
    from rolecast.service.server import serve as serve_app
    from rolecast.service.settings import read_settings

    settings = read_settings(RolloutSettings, flags)
    serve_app(*make_rollout(settings), settings)
