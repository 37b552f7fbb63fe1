"""Independent random streams by name, so that an episode's randomness does not depend on what ran beside it."""

from __future__ import annotations

import hashlib
import random


def seed_of(*key: object) -> int:
    """A 63-bit seed from any printable key, stable across processes and machines."""
    digest = hashlib.blake2b("\x1f".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def stream(*key: object) -> random.Random:
    return random.Random(seed_of(*key))
