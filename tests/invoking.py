"""A command line of ours in the tests' own process."""

from __future__ import annotations

from typer.testing import CliRunner

from rolecast.cli.main import app


def command(*words: object) -> str:
    """What a command says that ends well; what it raises is raised."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output
