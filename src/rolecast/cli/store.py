"""`rolecast store …`."""

from __future__ import annotations

from typing import Annotated

import typer

from rolecast.errors import ArtifactError

app = typer.Typer(help="Artifacts in a folder or a bucket.")
Place = Annotated[str, typer.Argument(metavar="PLACE", help="A folder or s3://bucket/prefix: an artifact, or what holds some.")]


@app.command()
def ls(place: Place, unfinished: Annotated[bool, typer.Option(help="Also uploads that began and did not end.")] = False) -> None:
    """List committed artifacts: kind, files, size, key."""
    from rolecast.store.upkeep import artifacts_at, held

    store, keys = artifacts_at(place)
    for one in held(store, keys):
        print(f"{one.kind:<12} {one.files:>6} files {_size(one.bytes):>10}  {one.key}")
    for key in store.unfinished("") if unfinished else ():
        print(f"{'unfinished':<36}  {key}")


@app.command()
def verify(place: Place) -> None:
    """Read every file of the artifacts and compare its size and hash. Exit code 1 if one is damaged."""
    from rolecast.store.upkeep import artifacts_at, fault_of

    store, keys = artifacts_at(place)
    damaged = 0
    for key in keys:
        fault = fault_of(store, key)
        damaged += bool(fault)
        print(f"{'damaged' if fault else 'sound':<8} {key}{f': {fault}' if fault else ''}", flush=True)
    if damaged:
        raise ArtifactError(f"{damaged} of {len(keys)} artifacts are damaged; delete each and publish it again")


@app.command()
def gc(
    place: Place,
    keep: Annotated[int, typer.Option(min=1, help="How many of each series stay, those with the highest numbers.")],
    pin: Annotated[list[str] | None, typer.Option(metavar="KEY", help="What stays, with what is below it; may be given again.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete them; without it they are only named.")] = False,
) -> None:
    """Delete old artifacts of numbered series (step-100, step-200, …). Those in a folder `best`, and what bears no number, stay."""
    from rolecast.store.upkeep import artifacts_at, held, superfluous

    store, keys = artifacts_at(place)
    going = held(store, superfluous(keys, keep, pin or []))
    for one in going:
        if delete:
            store.delete(one.key)
        print(f"{'deleted' if delete else 'would go'} {one.kind:<12} {_size(one.bytes):>10}  {one.key}", flush=True)
    total = _size(sum(one.bytes for one in going))
    print(f"{len(going)} of {len(keys)} artifacts, {total}{'' if delete or not going else '; give --delete to delete them'}")


@app.command()
def cp(
    source: Annotated[str, typer.Argument(metavar="PLACE", help="An artifact: a folder or s3://bucket/prefix/key.")],
    target: Annotated[str, typer.Argument(metavar="PLACE", help="Where it is to lie; nothing else may lie there.")],
) -> None:
    """Copy an artifact to another place. It is verified on the way and committed there last."""
    from rolecast.store.upkeep import copy

    copy(source, target)
    print(target)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
