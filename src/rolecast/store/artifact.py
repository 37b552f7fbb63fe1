"""Immutable artifacts on a local disk: hashed files under one folder, committed by a manifest that is written last.

A folder without `manifest.json` is not an artifact, however complete it looks. A reader finds the old artifact, the new one,
or, for the moment between two renames of a replacement, none; never parts of one or of both. A writer that is killed in that
moment leaves the old one beside `path`: `recover` puts it back.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rolecast.disk import writing_to
from rolecast.errors import ArtifactError
from rolecast.formats import KEY
from rolecast.formats import MANIFEST as MANIFEST_FORMAT

MANIFEST = "manifest.json"
_STALE = ".stale"


def being_written(path: Path) -> Path:
    """The folder in which `writing` makes the artifact `path`."""
    return path.with_name(f".{path.name}.partial")


@contextmanager
def writing(path: Path, kind: str, provenance: Mapping[str, Any]) -> Iterator[Path]:
    """Yields a folder to write into; on a clean exit it becomes the artifact `path`, on an error nothing remains.

    An artifact that is already there is replaced only after the new one is complete, and put back if that fails.
    """
    with writing_to(path):
        yield from _writing(path, kind, provenance)


def _writing(path: Path, kind: str, provenance: Mapping[str, Any]) -> Iterator[Path]:
    partial = being_written(path)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        files = {str(file.relative_to(partial)): entry_of(file) for file in sorted(partial.rglob("*")) if file.is_file()}
        manifest = {KEY: MANIFEST_FORMAT.current, "kind": kind, "files": files, "provenance": dict(provenance)}
        for name in files:
            _settle(partial / name)  # a manifest that outlives a power cut must not name what did not
        write_text(partial / MANIFEST, _bytes_of(manifest).decode())
        for folder in (partial, *(below for below in partial.rglob("*") if below.is_dir())):
            _settle(folder)
        _put(partial, path)
        _settle(path.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def receiving(path: Path, manifest: bytes, origin: str) -> Iterator[tuple[Path, Sequence[str]]]:
    """As `writing`, for a copy of an artifact: yields a folder and the names of the files that `manifest` wants in it.

    On a clean exit their sizes and hashes are compared before the copy is committed. `origin` names the source in errors.
    """
    files = parse_manifest(manifest, origin)["files"]
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")  # two processes may fetch the same
    with writing_to(path):
        yield from _receiving(path, partial, files, manifest, origin)


def _receiving(path: Path, partial: Path, files: Mapping[str, Any], manifest: bytes, origin: str) -> Iterator[tuple[Path, Sequence[str]]]:
    partial.mkdir(parents=True)
    try:
        yield partial, tuple(files)
        for name, expected in files.items():
            if not (partial / name).is_file() or entry_of(partial / name) != expected:
                raise ArtifactError(f"{origin}: {name} does not match the manifest; delete the artifact there and publish it again")
        write_text(partial / MANIFEST, manifest.decode())
        _put(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _put(partial: Path, path: Path) -> None:
    """A folder cannot be renamed onto another, so what is at `path` steps aside first, and comes back on a failure."""
    stale = path.with_name(f".{path.name}{_STALE}")
    try:
        if path.exists():
            shutil.rmtree(stale, ignore_errors=True)
            path.rename(stale)
        partial.rename(path)
    except BaseException:
        if stale.exists() and not path.exists():
            stale.rename(path)
        raise
    shutil.rmtree(stale, ignore_errors=True)


def recover(folder: Path) -> None:
    """Puts back what a killed writer left aside anywhere under `folder`. No one may be writing there."""
    for stale in list(folder.rglob(f".*{_STALE}")):
        path = stale.with_name(stale.name.removeprefix(".").removesuffix(_STALE))
        if path.exists():
            shutil.rmtree(stale, ignore_errors=True)
        else:
            stale.rename(path)


def committed(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def provenance(path: Path) -> dict[str, Any]:
    """What the artifact says of how it was made; nothing where there is none. Its files are not looked at."""
    return dict(parse_manifest((path / MANIFEST).read_bytes(), str(path)).get("provenance") or {}) if committed(path) else {}


def verify(path: Path, kind: str) -> dict[str, Any]:
    """The manifest, after every file's size and hash were compared with it."""
    if not committed(path):
        raise ArtifactError(f"{path} is no committed {kind}: it has no {MANIFEST}; run the stage that makes it")
    manifest = parse_manifest((path / MANIFEST).read_bytes(), str(path))
    if manifest["kind"] != kind:
        raise ArtifactError(f"{path} is a {manifest['kind']}, not a {kind}")
    for name, expected in manifest["files"].items():
        file = path / name
        if not file.is_file() or entry_of(file) != expected:
            raise ArtifactError(f"{file} is missing or does not match the manifest of its {kind}; delete {path} and make it again")
    return manifest


def verified(path: Path) -> bytes:
    """The bytes of the manifest, which are the artifact's identity, after a full check, whatever its kind."""
    if not committed(path):
        raise ArtifactError(f"{path} is no committed artifact: it has no {MANIFEST}; run the stage that makes it")
    data = (path / MANIFEST).read_bytes()
    verify(path, parse_manifest(data, str(path))["kind"])
    return data


def _bytes_of(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1, sort_keys=True).encode()


def digest_of(manifest: bytes) -> str:
    """A short name for what an artifact holds. The first format's number is no part of it: what was written before it was numbered is the same."""
    try:
        read = json.loads(manifest)
    except ValueError:  # broken, as whoever reads it will say
        read = None
    if isinstance(read, dict) and read.get(KEY) == MANIFEST_FORMAT.unnumbered:
        del read[KEY]
        manifest = _bytes_of(read)
    return hashlib.sha256(manifest).hexdigest()[:16]


def parse_manifest(data: bytes, origin: str) -> dict[str, Any]:
    """`ArtifactError` unless it names a kind and files, and every file lies inside the artifact; `FormatError` for one of another format."""
    try:
        manifest = json.loads(data)
    except ValueError:  # no JSON, or no text
        manifest = None
    if isinstance(manifest, dict):
        MANIFEST_FORMAT.check(manifest, f"{origin}/{MANIFEST}")
    if not (isinstance(manifest, dict) and isinstance(manifest.get("kind"), str) and isinstance(manifest.get("files"), dict)):
        raise ArtifactError(f"{origin}/{MANIFEST} is broken: it names no kind and files; delete {origin} and make it again")
    for name in manifest["files"]:
        if not name or name.startswith("/") or ".." in name.split("/") or name == MANIFEST:
            raise ArtifactError(f"{origin}/{MANIFEST} names {name!r}, which is no file of an artifact; delete {origin} and make it again")
    return manifest


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Writes a file whole or not at all. One that is not `durable`, since it can be made again, may be gone after the machine fails."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing_to(path):
        with temporary.open("w") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)


def _settle(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def entry_of(file: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"bytes": file.stat().st_size, "sha256": digest}
