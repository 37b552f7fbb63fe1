"""`rolecast judge …`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rolecast.cli.flags import takes_settings
from rolecast.cli.places import path_argument, path_option
from rolecast.judge.settings import JudgeSettings

if TYPE_CHECKING:
    from rolecast.judge.calibration import Calibration

app = typer.Typer(help="Serve a judge, and compare one with people.")


@app.callback()
def _group() -> None:
    """Serve a judge, and compare one with people."""


@app.command()
@takes_settings(JudgeSettings)
def serve(settings: JudgeSettings) -> None:
    """Judge over HTTP: /v1/judge, /healthz, /readyz, /metrics.

    The endpoint's key is read from OPENAI_API_KEY alone.
    """
    from rolecast.judge.app import make_judge
    from rolecast.service.server import serve as serve_app

    serve_app(*make_judge(settings), settings)


@app.command()
def calibrate(
    file: Annotated[Path, path_argument('JSON lines: {"kind": …, "inputs": {…}, "expected": a score of people}.')],
    url: Annotated[
        str, typer.Option(metavar="URL", envvar="ROLECAST_JUDGE_URL", help="The judge service; by default what ROLECAST_JUDGE_* say.")
    ] = "",
    out: Annotated[Path | None, path_option("Write the figures here too, as JSON.")] = None,
) -> None:
    """Compare a judge with people: agreement, Cohen's kappa, and bias by length and by the order of lists.

    Rows with lists are asked twice. Without URL the judge is made here, by the variables that `judge serve` takes.
    """
    import asyncio
    import json
    from dataclasses import asdict

    from rolecast.judge.app import at_work, open_judge
    from rolecast.judge.calibration import calibrate as calibrated
    from rolecast.judge.calibration import read_rows
    from rolecast.judge.client import HttpJudge
    from rolecast.service.settings import read_settings
    from rolecast.store.artifact import write_text

    rows = read_rows(file)
    judge = HttpJudge(url) if url else open_judge(read_settings(JudgeSettings, {}))

    async def asked() -> tuple[str, list[Calibration]]:
        async with at_work(judge):
            return (await judge.info()).model, await calibrated(judge, rows)

    model, found = asyncio.run(asked())
    if out is not None:
        write_text(out, json.dumps({"judge": model, "file": str(file), "kinds": [asdict(one) for one in found]}, indent=1))
    print(f"judge {model}, {len(rows)} rows of {file}")
    for one in found:
        print("\n".join(_told(one)))


def _told(one: Calibration) -> list[str]:
    """For people."""
    low, high = one.ci95
    lines = [
        f"{one.kind}: {one.n} rows, {one.unscored} unscored",
        f"  agreement {one.agreement:.1%} [{low:.1%}, {high:.1%}], kappa {'none: one label alone' if one.kappa is None else f'{one.kappa:.2f}'}, "
        f"labels {one.lenient:+.3f} against people's",
    ]
    if one.length:
        lines.append(f"  by length: shorter half {one.length.short:+.3f}, longer half {one.length.long:+.3f}")
    if one.position:
        p = one.position
        lines.append(
            f"  by order: of {p.n} rows with lists {p.flipped:.1%} change their label when these are turned round, scores {p.shift:+.3f}"
        )
    return lines + [f"  unscored, {count} times: {reason[:200]}" for reason, count in one.reasons.items()]
