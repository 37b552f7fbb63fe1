"""Why there are no keys to a store."""

from __future__ import annotations


class CredentialsFault(Exception):
    """Keys cannot be had. `again`: that may pass."""

    def __init__(self, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.again = again
