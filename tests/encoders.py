"""What stands where a sentence encoder would: a real one takes seconds to load."""

from __future__ import annotations

from collections.abc import Sequence

from rolecast.retriever.encoder import Identity, Prefixes


class Fake:
    """A subclass says how texts are encoded. Tokens are words; it is known by its name."""

    window = 10**6

    def __init__(self, name: str, prefixes: Prefixes | None = None) -> None:
        self.name, self.prefixes = name, prefixes or Prefixes()

    def identity(self) -> Identity:
        return Identity(self.name, "", "", self.window)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(text.split()) for text in texts]

    def pieces(self, text: str, head: str) -> list[str]:
        words, room = text.removeprefix(head).split(), self.window - len(head.split())
        return [head + " ".join(words[at : at + room]) for at in range(0, len(words), room)]
