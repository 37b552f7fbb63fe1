"""`rolecast rollout serve`."""

from __future__ import annotations

import typer

from rolecast.cli.flags import takes_settings
from rolecast.rollout.settings import RolloutSettings

app = typer.Typer(help="Play episodes for a learner.")


@app.callback()
def _group() -> None:
    """Play episodes for a learner."""


@app.command()
@takes_settings(RolloutSettings)
def serve(settings: RolloutSettings) -> None:
    """Lease groups of episodes, play them with the version that the lease names, score and submit them.

    Versions come from the run's store: S3 takes ROLECAST_S3_ENDPOINT and AWS credentials from the environment. The release's key
    is read from ROLECAST_RELEASE_KEY alone.
    """
    from rolecast.rollout.app import make_rollout
    from rolecast.service.server import serve as serve_app

    serve_app(*make_rollout(settings), settings)
