"""Bearer tokens: the file of those that a service takes, and the one that a client shows.

Both files are read again when they change, so tokens are rotated without a restart: add the new one, move the clients, drop the
old one.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path

from rolecast.errors import InputError

log = logging.getLogger(__name__)
TOKEN, TOKEN_FILE, TOKENS_FILE = "ROLECAST_TOKEN", "ROLECAST_TOKEN_FILE", "ROLECAST_TOKENS_FILE"
CALLER: ContextVar[bytes] = ContextVar("caller", default=b"")  # the hash of the token of the request, where there are tokens
_SHORTEST = 16  # characters
_Stamp = tuple[int, int, int]


class Tokens:
    """The tokens of a file, one a line; empty lines and lines that begin with # are none. `InputError` if it has none to begin with.

    Later on a file that is gone or holds no token lets nobody in, until it is mended: what was taken out of it must not count.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._known = _read(path)

    def caller(self, authorization: str) -> bytes | None:
        """The hash of the token that the header `Authorization` shows; None if it is none of them."""
        scheme, _, token = authorization.partition(" ")
        self._refresh()
        # Looked up by its hash: how long that takes tells nothing of the tokens that are there.
        shown = _hash(token.strip())
        return shown if scheme.lower() == "bearer" and shown in self._known else None

    def _refresh(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._known = _read(self._path)
            log.info("%d tokens read from %s", len(self._known), self._path)
        except InputError as error:
            self._known = frozenset()
            log.error("nobody is let in: %s", error)


class OwnToken:
    """What a client shows to our services: ROLECAST_TOKEN, or the first line of the file ROLECAST_TOKEN_FILE; nothing without them."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._fixed = environ.get(TOKEN, "").strip()
        self._path = Path(environ[TOKEN_FILE]) if environ.get(TOKEN_FILE) and not self._fixed else None
        self._stamp: _Stamp | None = None
        self._read = ""

    def headers(self) -> dict[str, str]:
        """`InputError` if there should be a token and is none."""
        token = self._fixed or self._of_file()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _of_file(self) -> str:
        if self._path is None:
            return ""
        stamp = _stamp(self._path)
        if stamp != self._stamp or stamp is None:
            self._read = _lines(self._path, f"; mend {TOKEN_FILE}")[0]
            self._stamp = stamp
        return self._read


def _read(path: Path) -> frozenset[bytes]:
    tokens = _lines(path, f"; mend --tokens-file ({TOKENS_FILE})")
    if any(len(token) < _SHORTEST for token in tokens):
        raise InputError(f"{path} holds a token of fewer than {_SHORTEST} characters; make tokens with `openssl rand -hex 32`")
    return frozenset(map(_hash, tokens))


def _lines(path: Path, advice: str) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"the file of tokens {path} cannot be read: {reason}{advice}") from None
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise InputError(f"the file of tokens {path} holds none; write one token a line, for example of `openssl rand -hex 32`")
    return tokens


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _stamp(path: Path) -> _Stamp | None:
    """What changes when the file does, also when it is replaced by another one; None while there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
