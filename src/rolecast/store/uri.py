"""Stores and artifacts by their address: a folder, or s3://bucket/prefix."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rolecast.errors import InputError
from rolecast.installed import needing
from rolecast.ports import Store
from rolecast.scratch import scratch
from rolecast.store.artifact import MANIFEST
from rolecast.store.local import LocalStore

if TYPE_CHECKING:
    from rolecast.store.s3 import S3Store

S3 = "s3://"


def open_store(uri: str, environ: Mapping[str, str] = os.environ) -> Store:
    """S3 takes endpoint, region and credentials from the environment; `InputError` names what is not set."""
    if not uri.startswith(S3):
        if "://" in uri:
            raise InputError(f"{uri!r}: a store is a folder or s3://bucket/prefix")
        return LocalStore(Path(uri))
    return _open_s3(uri, environ)


def _open_s3(uri: str, environ: Mapping[str, str]) -> S3Store:
    bucket, _, prefix = uri.removeprefix(S3).rstrip("/").partition("/")
    if not bucket:
        raise InputError(f"{uri!r} names no bucket; write s3://bucket/prefix")
    with needing("s3"):
        from rolecast.store.s3 import S3Store
    return S3Store.from_environment(bucket, prefix, environ)


def manifest_at(uri: str, environ: Mapping[str, str] = os.environ) -> bytes:
    """The manifest of what is committed at an address, without the rest. `InputError` if nothing is."""
    parent, key = place_of(uri)
    manifest = open_store(parent, environ).get(f"{key}/{MANIFEST}")
    if manifest is None:
        raise InputError(f"{uri} is no committed artifact: it has no {MANIFEST}; mend the address, or make it first")
    return manifest


def copy_record(uri: str, file: Path, environ: Mapping[str, str] = os.environ) -> bool:
    """Writes the object s3://bucket/prefix/NAME, which may be larger than memory, into a file; whether there is one."""
    parent, name = place_of(uri)
    return _open_s3(parent, environ).copy_to(name, file)


def fetch(uri: str, into: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """A verified copy at `into` of the artifact at an address."""
    parent, key = place_of(uri)
    return open_store(parent, environ).fetch(key, into)


@contextmanager
def making(uri: str, environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Yields where to write the artifact of an address, which then is published there. `InputError` if something is there already."""
    parent, key = place_of(uri)
    if not uri.startswith(S3):
        if Path(uri).exists():
            raise InputError(f"{uri} exists; name a new folder")
        yield Path(uri)
        return
    store = _open_s3(parent, environ)
    if store.committed(key):
        raise InputError(f"{uri} exists; name another key")
    store.require_conditional_puts()  # before what takes hours is made
    with scratch("artifact") as folder:
        made = folder / key
        yield made
        store.publish(made, key)


def place_of(uri: str) -> tuple[str, str]:
    """Store and key of an artifact."""
    if not uri.startswith(S3):
        if "://" in uri:
            raise InputError(f"{uri!r}: an artifact is a folder or s3://bucket/prefix/key")
        folder = Path(uri).resolve()
        return str(folder.parent), folder.name
    parent, _, key = uri.rstrip("/").rpartition("/")
    if len(parent) <= len(S3):
        raise InputError(f"{uri!r} names a bucket; write s3://bucket/prefix/key")
    return parent, key


def local_artifact(uri: str, into: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of a committed artifact: itself, or a verified copy at `into` of one in S3."""
    parent, key = place_of(uri)
    return fetch(uri, into, environ) if uri.startswith(S3) else Path(parent) / key
