"""What an index takes in memory once it is open, told by its files before they are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rolecast.room import require_memory
from rolecast.store.artifact import MANIFEST, parse_manifest

if TYPE_CHECKING:
    from rolecast.retriever.dense import Held

OBJECT = 260  # bytes of a passage as Python keeps it, beside its letters
PLACE = 40  # of one that stays on the disk: where its line begins and ends, its id's digest twice and its row, while they are sorted


def footprint(path: Path, held: Held = "memory") -> int:
    """Bytes of the committed index at `path`. Pages of a file that is mapped count for nothing: they go when memory is wanted."""
    manifest = parse_manifest((path / MANIFEST).read_bytes(), str(path))
    passages = int(manifest.get("provenance", {}).get("passages", 0))
    sizes = {name: int(entry["bytes"]) for name, entry in manifest["files"].items()}
    if held == "memory":
        return sum(sizes.values()) + OBJECT * passages
    return sum(size for name, size in sizes.items() if name.startswith("bm25/")) + PLACE * passages


def needs_memory(path: Path, held: Held = "memory", beside: str = "") -> None:
    """`InputError` if there is no room for the index; `beside`: what stays open meanwhile."""
    step = "open it with its passages and vectors on the disk (--held disk)" if held == "memory" else "take a larger machine"
    require_memory(f"opening {path}{beside}", footprint(path, held), step if not beside else f"{step}, or restart with the new one")
