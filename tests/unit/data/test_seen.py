"""The table of passages against a dictionary, through its growth."""

from __future__ import annotations

import random
import sys

from rolecast.data.seen import SeenPassages
from rolecast.types import Passage


def test_it_says_what_a_dictionary_would() -> None:
    rng, seen, known = random.Random(5), SeenPassages(), dict[str, str]()
    for _ in range(20_000):
        passage = Passage(str(rng.randrange(9_000)), "T", str(rng.randrange(3)))
        expected = True if passage.id not in known else False if known[passage.id] == passage.text else None
        assert (passage.id in seen) == (passage.id in known)
        assert seen.add(passage) is expected
        known.setdefault(passage.id, passage.text)
    assert len(seen) == len(known)


def test_a_passage_takes_few_bytes() -> None:
    seen = SeenPassages()
    for n in range(50_000):
        seen.add(Passage(str(n), "T", "x" * 500))
    assert (sys.getsizeof(seen._ids) + sys.getsizeof(seen._digests)) / len(seen) < 50
