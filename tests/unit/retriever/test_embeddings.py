"""A text is encoded once while it is kept, and has one vector however often it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from rolecast.retriever.embeddings import Embeddings


class Counting:
    """No two calls give one text the same vector, as batches of a real encoder differ in their last bits."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def encode(self, texts: Sequence[str], side: Literal["query", "passage"]) -> npt.NDArray[np.float32]:
        assert side == "passage"
        self.batches.append(list(texts))
        return np.array([[float(text), len(self.batches)] for text in texts], dtype=np.float32).reshape(len(texts), 2)


def test_a_text_is_encoded_once_and_keeps_its_vector() -> None:
    encoder = Counting()
    embeddings = Embeddings(encoder)
    first, again = embeddings.of(["1", "2", "1"]), embeddings.of(["3", "2", "1"])
    assert encoder.batches == [["1", "2"], ["3"]]
    assert first.tolist() == [[1, 1], [2, 1], [1, 1]]
    assert again.tolist() == [[3, 2], [2, 1], [1, 1]]


def test_those_that_were_not_asked_for_the_longest_are_given_up_first() -> None:
    encoder = Counting()
    embeddings = Embeddings(encoder, kept=2)
    for texts in (["1", "2"], ["1"], ["3"], ["1", "3"], ["2"]):
        embeddings.of(texts)
    assert encoder.batches == [["1", "2"], ["3"], ["2"]]
    assert len(embeddings.of(["1", "2", "3"])) == 3  # also of more than it keeps


def test_of_no_text_there_is_no_vector() -> None:
    assert Embeddings(Counting()).of([]).shape == (0, 2)
