"""Folders of this machine that hold what lives at an address. Whoever gave the address reads it in a message, not the folder's name, which
says nothing to them once the container is gone."""

from __future__ import annotations

from pathlib import Path

from rolecast.errors import DiskError, RolecastError

_ADDRESSES: dict[str, str] = {}


def working_copy(folder: Path, address: str) -> None:
    """From now on messages name `address` for `folder`."""
    _ADDRESSES[str(folder)] = address


def told(error: RolecastError) -> str:
    """The error's message. What is wrong with this machine's disk is told of this machine's disk."""
    message = str(error)
    if not isinstance(error, DiskError):
        for folder, address in _ADDRESSES.items():
            message = message.replace(folder, address)
    return message
