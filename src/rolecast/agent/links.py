"""Links to traces, signed with a key of the service: they open in a browser, which sends no token, until they expire.

The key is shared by all replicas and outlives them in the store of the traces: whoever may read it there may read the traces too.
Without a store both end with the process.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from dataclasses import dataclass

from rolecast.ports import Store

KEY = "link-key"  # where it lies in the store
KEY_BYTES = 32


def shared_key(store: Store) -> bytes:
    """The store's key; the first replica makes it."""
    store.put(KEY, secrets.token_bytes(KEY_BYTES), absent=True)
    key = store.get(KEY) or b""
    assert len(key) == KEY_BYTES, f"{KEY} holds {len(key)} bytes"
    return key


@dataclass(frozen=True, slots=True)
class Links:
    key: bytes

    def link(self, trace_id: str, expires: int) -> str:
        """The address of a trace's page from the server's root on, good until `expires` (seconds since 1970)."""
        return f"/traces/{trace_id}?expires={expires}&signature={self._signature(trace_id, expires)}"

    def opens(self, trace_id: str, expires: str, signature: str, now: float) -> bool:
        """Whether the link is one of ours and has not expired."""
        return self.signed(trace_id, expires, signature) and int(expires) > now

    def signed(self, trace_id: str, expires: str, signature: str) -> bool:
        """Whether the link is one of ours, expired or not."""
        if not (expires.isascii() and expires.isdecimal() and len(expires) < 16):
            return False
        return hmac.compare_digest(self._signature(trace_id, int(expires)).encode(), signature.encode("utf-8", "surrogatepass"))

    def owner(self, caller: bytes) -> str:
        """Who asked, as it stands in the store: from it nobody finds the token. Without tokens all are one."""
        return self._mac(b"owner", caller).hex()[:32] if caller else "everyone"

    def _signature(self, trace_id: str, expires: int) -> str:
        return base64.urlsafe_b64encode(self._mac(b"link", f"{trace_id} {expires}".encode())).decode().rstrip("=")

    def _mac(self, use: bytes, text: bytes) -> bytes:
        return hmac.digest(self.key, use + b"\0" + text, "sha256")
