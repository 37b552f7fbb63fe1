"""`rolecast job …`: training jobs on a cluster, by their run or name."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rolecast.launching.cluster import Cluster
    from rolecast.launching.patience import Patience

app = typer.Typer(help="Training jobs on a cluster, which the kubeconfig or the pod's account leads to.")
Namespace = Annotated[str, typer.Option(envvar="ROLECAST_NAMESPACE", help="Where the jobs are.")]
Wanted = Annotated[str, typer.Argument(metavar="RUN|NAME", help="A run's address or the last part of it, or a job's name.")]
Stage = Annotated[str, typer.Option(help="Of the run's jobs, this stage's.")]


@app.command("list")
def list_jobs(
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="A run's address or the last part of it; all runs without it.")] = "",
    namespace: Namespace = "rolecast",
) -> None:
    """Jobs with their stage, state, age and run, oldest first."""
    from rolecast.launching.jobs import find_jobs, table

    cluster, patience = _reached()
    jobs = find_jobs(cluster, patience, namespace, run)
    for line in table(cluster, jobs, datetime.now(UTC)) if jobs else [f"no jobs in namespace {namespace}"]:
        typer.echo(line)


@app.command()
def logs(
    wanted: Wanted,
    stage: Stage = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    namespace: Namespace = "rolecast",
) -> None:
    """What a job's pods say, each line with its pod's name."""
    from rolecast.launching.jobs import one_job, print_logs

    cluster, patience = _reached()
    print_logs(cluster, patience, one_job(cluster, patience, namespace, wanted, stage), follow)


@app.command()
def cancel(wanted: Wanted, stage: Stage = "", namespace: Namespace = "rolecast") -> None:
    """End a job that has not ended. It saves a checkpoint; the stage goes on from there when it is submitted again."""
    from rolecast.launching import jobs

    cluster, patience = _reached()
    job = jobs.one_job(cluster, patience, namespace, wanted, stage)
    typer.echo(f"ending job {job.name}: its pods save first")
    jobs.cancel(cluster, patience, job)
    typer.echo(f"job {job.name} is gone")


@app.command()
def delete(wanted: Wanted, stage: Stage = "", namespace: Namespace = "rolecast") -> None:
    """Delete what is left of a job that has ended, with its logs. The run stays."""
    from rolecast.launching import jobs

    cluster, patience = _reached()
    job = jobs.one_job(cluster, patience, namespace, wanted, stage)
    jobs.delete(cluster, patience, job)
    typer.echo(f"deleted job {job.name}")


def _reached() -> tuple[Cluster, Patience]:
    from rolecast.launching.cluster import connect
    from rolecast.launching.patience import Patience

    return connect(), Patience(typer.echo, time.monotonic, time.sleep)
