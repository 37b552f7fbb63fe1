"""The `rolecast` command. Bad input is one line on stderr and exit code 2; a run that stops for a named reason exits with 1."""

from __future__ import annotations

import sys

import typer

from rolecast.cli import data, demo, deploy, doctor, judge, mcp, pipeline, retriever, rollout, runs, serving
from rolecast.errors import RolecastError
from rolecast.processes import prepare_process

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(data.app, name="data")
app.add_typer(data.index_app, name="index")
app.add_typer(runs.app, name="run")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(deploy.app, name="deploy")
app.add_typer(serving.app, name="agent")
app.add_typer(retriever.app, name="retriever")
app.add_typer(judge.app, name="judge")
app.add_typer(rollout.app, name="rollout")
app.command("train")(runs.train)
app.command("sft")(runs.sft)
app.command("rl")(runs.rl)
app.command("eval")(runs.evaluate)
app.command("report")(runs.report)
app.command("ask")(serving.ask)
app.command("mcp")(mcp.mcp)
app.command("methods")(runs.methods)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)


@app.callback()
def _main() -> None:
    """Train and serve role-decomposed search agents."""


def main() -> None:
    prepare_process()
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], standalone_mode=False) or 0)
    except typer.TyperException as error:  # unknown command or option, wrong type
        _fail(error.format_message(), 2)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except RolecastError as error:
        _fail(str(error), error.exit_code)


def _fail(message: str, code: int) -> None:
    print(f"rolecast: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
