"""What lies in a store, whether it is sound, and what of it may go."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rolecast.errors import ArtifactError, InputError
from rolecast.ports import Store
from rolecast.scratch import scratch
from rolecast.store.artifact import MANIFEST, parse_manifest, verified
from rolecast.store.local import LocalStore
from rolecast.store.uri import S3, open_store, place_of

BEST = "best"  # a folder of this name holds what a run may come back to
_NUMBERED = re.compile(r"(?P<name>.*?)(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class Held:
    """A committed artifact."""

    key: str
    kind: str
    files: int
    bytes: int


def artifacts_at(uri: str) -> tuple[Store, list[str]]:
    """A store and the keys in it: of the artifact that lies at the address, or of those below it. `InputError` if there is none."""
    if not uri.startswith(S3) or uri.removeprefix(S3).strip("/").count("/"):
        parent, key = place_of(uri)
        store = open_store(parent)
        if store.committed(key):
            return store, [key]
    store = open_store(uri)
    if keys := store.artifacts(""):
        return store, keys
    raise InputError(f"{uri} holds no committed artifact; check the address")


def held(store: Store, keys: Sequence[str]) -> list[Held]:
    """What the manifests say. One that went meanwhile is left out."""
    found = []
    for key in keys:
        data = store.get(f"{key}/{MANIFEST}")
        if data is not None:
            manifest = parse_manifest(data, key)
            sizes = [entry["bytes"] for entry in manifest["files"].values()]
            found.append(Held(key, manifest["kind"], len(sizes), sum(sizes)))
    return found


def fault_of(store: Store, key: str) -> str:
    """Why the artifact cannot be read whole; "" if it can. Every file is read and its size and hash compared."""
    try:
        if isinstance(store, LocalStore):
            verified(store.root / key)
        else:
            with scratch("artifact") as folder:
                store.fetch(key, folder / "copy")
    except ArtifactError as error:
        return str(error)
    return ""


def superfluous(keys: Sequence[str], keep: int, pinned: Collection[str]) -> list[str]:
    """Keys that may go: of those that differ in the number at their end alone all but the last `keep`, the best, and those that are `pinned`
    or lie below what is.

    What bears no number (an index, a model) is the only one of its kind and stays.
    """
    if keep < 1:
        raise InputError(f"keep = {keep}: keep at least the newest one, or delete the run")
    series: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for key in keys:
        parent, _, name = key.rpartition("/")
        if (numbered := _NUMBERED.fullmatch(name)) and BEST not in parent.split("/"):
            series[parent, numbered["name"]].append((int(numbered["number"]), key))
    old = [key for members in series.values() for _, key in sorted(members)[:-keep]]
    return sorted(key for key in old if not any(key == pin or key.startswith(f"{pin}/") for pin in pinned))


def copy(source: str, target: str) -> str:
    """Copies the artifact at one address to another, verified on the way; the key that it has there."""
    parent, key = place_of(source)
    into, name = place_of(target)
    with scratch("artifact") as folder:
        fetched = open_store(parent).fetch(key, folder / "copy")
        open_store(into).publish(fetched, name)
    return name
