"""Stores and artifacts by their address: a folder, or s3://bucket/prefix."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rolecast.errors import InputError
from rolecast.ports import Store
from rolecast.store.local import LocalStore

S3 = "s3://"


def open_store(uri: str, environ: Mapping[str, str] = os.environ) -> Store:
    """S3 takes endpoint, region and credentials from the environment; `InputError` names what is not set."""
    if not uri.startswith(S3):
        if "://" in uri:
            raise InputError(f"{uri!r}: a store is a folder or s3://bucket/prefix")
        return LocalStore(Path(uri))
    bucket, _, prefix = uri.removeprefix(S3).rstrip("/").partition("/")
    if not bucket:
        raise InputError(f"{uri!r} names no bucket; write s3://bucket/prefix")
    try:
        from rolecast.store.s3 import S3Store
    except ImportError:
        raise InputError("an s3:// store needs the minio client; pip install 'rolecast[s3]'") from None
    return S3Store.from_environment(bucket, prefix, environ)


def local_artifact(uri: str, into: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of a committed artifact: itself, or a verified copy at `into` of one in S3."""
    if not uri.startswith(S3):
        if "://" in uri:
            raise InputError(f"{uri!r}: an artifact is a folder or s3://bucket/prefix/key")
        return Path(uri)
    parent, _, key = uri.rstrip("/").rpartition("/")
    if len(parent) <= len(S3):
        raise InputError(f"{uri!r} names a bucket; write s3://bucket/prefix/key")
    return open_store(parent, environ).fetch(key, into)
