"""Keys of a store: `runs/demo/index`."""

from __future__ import annotations

from rolecast.errors import ArtifactError, InputError
from rolecast.store.artifact import MANIFEST, parse_manifest


def checked(key: str, prefix: bool = False) -> str:
    """The key itself. Hidden parts are the stores' own: claims, and folders that are being written. A prefix may be empty."""
    parts = key.split("/")
    if (prefix and not key) or all(part and not part.startswith(".") for part in parts):
        return key
    raise InputError(f"{key!r} is no key of a store; write name/name/…, no part empty or starting with a dot")


def below(key: str, prefix: str) -> bool:
    """Whether `key` is `prefix` or lies under it: runs/ab is not under runs/a."""
    return not prefix or key == prefix or key.startswith(f"{prefix}/")


def require_same(present: bytes, mine: bytes, where: str) -> None:
    """An artifact is the one that is already there, or a key would be written twice."""
    if present != mine:
        kind = parse_manifest(present, where)["kind"]
        raise ArtifactError(f"{where} holds another artifact (a {kind}); publish under another key, or delete this one first")


def missing(where: str) -> ArtifactError:
    return ArtifactError(f"{where} is no committed artifact: it has no {MANIFEST}; run the stage that publishes it, or check the key")
