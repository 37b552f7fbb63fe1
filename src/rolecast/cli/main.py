"""The `rolecast` command. What it cannot do is one line on stderr, and an exit code of the table in `exits`."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from rolecast.cli import (
    compare,
    data,
    demo,
    deploy,
    doctor,
    export,
    job,
    judge,
    mcp,
    pipeline,
    plan,
    retriever,
    review,
    rollout,
    runs,
    serving,
    store,
    studies,
)
from rolecast.disk import disk_fault
from rolecast.errors import Interrupted, RolecastError
from rolecast.installed import needing, version
from rolecast.origin import begin
from rolecast.processes import prepare_process, say_error
from rolecast.signals import Stopped, signals_raise
from rolecast.working_copies import told

RESUMED = (
    "demo",
    "compare",
    "stability",
    "long-context",
    "pipeline",
    "run",
    "train",
    "sft",
    "rl",
    "eval",
    "report",
)  # commands that find what they did before
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.add_typer(data.app, name="data")
app.add_typer(data.index_app, name="index")
app.add_typer(store.app, name="store")
app.add_typer(runs.app, name="run")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(deploy.app, name="deploy")
app.add_typer(job.app, name="job")
app.add_typer(serving.app, name="agent")
app.add_typer(retriever.app, name="retriever")
app.add_typer(judge.app, name="judge")
app.add_typer(rollout.app, name="rollout")
app.command("train")(runs.train)
app.command("sft")(runs.sft)
app.command("rl")(runs.rl)
app.command("eval")(runs.evaluate)
app.command("report")(runs.report)
app.command("rescore")(review.rescore)
app.command("diff")(review.diff)
app.command("export")(export.export)
app.command("plan")(plan.plan)
app.command("ask")(serving.ask)
app.command("mcp")(mcp.mcp)
app.command("methods")(runs.methods)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.command("compare")(compare.compare)
app.command("stability")(studies.stability)
app.command("long-context")(studies.long_context)

# The extra that has what a command needs, by the command or its group: where a package is missing, it is the one to install.
PARTS = {
    "agent": "agent",
    "ask": "agent",
    "compare": "local",
    "data": "convert",
    "data demonstrate": "train",
    "demo": "local",
    "deploy": "control",
    "eval": "train",
    "export": "train",
    "index": "retriever",
    "job": "control",
    "judge": "judge",
    "long-context": "train",
    "mcp": "mcp",
    "pipeline": "control",
    "pipeline run": "local",
    "plan": "train",
    "rescore": "train",
    "retriever": "retriever",
    "rl": "train",
    "rollout": "rollout",
    "run": "train",
    "sft": "train",
    "stability": "local",
    "store": "s3",
    "train": "train",
}


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"rolecast {version('rolecast')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """Train and serve role-decomposed search agents."""


def main() -> None:
    prepare_process()
    arguments = sys.argv[1:] or ["--help"]
    begin(arguments)
    with signals_raise():
        try:
            with needing(PARTS.get(" ".join(arguments[:2]), PARTS.get(arguments[0], ""))):
                sys.exit(app(arguments, standalone_mode=False) or 0)
        except typer.TyperException as error:  # unknown command or option, wrong type
            _fail(error.format_message(), 2)
        except typer.Abort:
            _fail("interrupted", 130)
        except Stopped as stopped:
            _fail(f"told to end{_going_on(sys.argv[1:])}", 128 + stopped.number)
        except Interrupted as interrupted:
            _fail(f"{interrupted}{_going_on(sys.argv[1:])}", interrupted.exit_code)
        except RolecastError as error:
            _fail(told(error), error.exit_code)
        except OSError as error:
            if (fault := disk_fault(error)) is None:
                raise
            _fail(str(fault), fault.exit_code)


def _going_on(arguments: Sequence[str]) -> str:
    """The command that goes on where this one ended: the same, but one that would delete what it did."""
    if not arguments or (arguments[0] not in RESUMED and list(arguments[:2]) != ["data", "demonstrate"]):
        return ""
    called = Path(sys.argv[0])
    program = [str(called)] if called.name == "rolecast" else [sys.executable, "-m", "rolecast.cli.main"]
    if called.name == "rolecast" and (found := shutil.which("rolecast")) and Path(found).samefile(called):
        program = ["rolecast"]
    return f"; go on with `{shlex.join([*program, *(word for word in arguments if word != '--fresh')])}`"


def _fail(message: str, code: int) -> NoReturn:
    say_error(message)
    sys.exit(code)


if __name__ == "__main__":
    main()
