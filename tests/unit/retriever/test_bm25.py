"""BM25 by hand: idf = ln(1 + (N − n + ½) / (n + ½)), tf / (tf + 1.5 · (¼ + ¾ · length / mean length))."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecast.errors import ArtifactError
from rolecast.retriever.analysis import STOPWORDS, tokenize
from rolecast.retriever.bm25 import BM25

CORPUS = ["red cat", "blue dog dog", "red dog"]
WORDS = st.lists(st.sampled_from("red cat blue dog owl the".split()), min_size=1, max_size=6).map(" ".join)  # noqa: SIM905


def by_hand(corpus: Sequence[str], query: str) -> list[float]:
    texts = [[word for word in text.split() if word != "the"] for text in corpus]
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        score = 0.0
        for word in query.split():
            n = sum(word in other for other in texts)
            tf = text.count(word)
            if tf:
                score += math.log(1 + (len(texts) - n + 0.5) / (n + 0.5)) * tf / (tf + 1.5 * (0.25 + 0.75 * len(text) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The mentor of Brol Tan is Vrek Stom.", ["mentor", "brol", "tan", "vrek", "stom"]),
        ("Who has the SAME mayor?", ["mayor"]),
        ("Örk-Zün's 3rd", ["örk", "zün", "s", "3rd"]),
        ("the of is", []),
        ("", []),
    ],
)
def test_tokenize(text: str, words: list[str]) -> None:
    assert tokenize(text) == words


def test_no_relation_or_entity_word_is_a_stop_word() -> None:
    assert not STOPWORDS & {"mentor", "rival", "mayor", "no", "yes", "not", "neighbour"}


def test_scores_by_hand() -> None:
    # "dog" is in two of three texts: idf ln 1.6 = .4700; twice among three words: 2 / (2 + 1.8214) = .5234; once among two: .4275
    rows, scores = BM25.build(CORPUS).rank("dog", 3)
    assert rows == [1, 2]
    assert scores == pytest.approx([0.2459832, 0.2009176], rel=1e-5)


def test_scores_of_words_add_up_and_rank() -> None:
    rows, scores = BM25.build(CORPUS).rank("red dog", 3)
    assert rows == [2, 1, 0]
    assert scores == pytest.approx([0.4018352, 0.2459832, 0.2009176], rel=1e-5)


def test_a_rare_word_beats_a_common_one() -> None:
    assert BM25.build(["red cat", "red owl", "red dog", "blue owl"]).rank("red owl", 4)[0] == [1, 3, 0, 2]


def test_only_texts_that_share_a_word_are_hits() -> None:
    assert BM25.build(CORPUS).rank("cat", 3)[0] == [0]


@pytest.mark.parametrize("query", ["", "owl", "the of", "?!", "owl fish"])
def test_a_query_without_known_words_has_no_hits(query: str) -> None:
    assert BM25.build(CORPUS).rank(query, 3) == ([], [])


def test_unknown_words_are_left_out() -> None:
    index = BM25.build(CORPUS)
    assert index.rank("owl dog", 3) == index.rank("dog", 3)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_ties_are_in_corpus_order_and_cut_there(k: int) -> None:
    rows, scores = BM25.build(["red dog", "blue cat", "dog red", "red dog"]).rank("dog", k)
    assert rows == [0, 2, 3][:k]
    assert len(set(scores)) == 1


@given(st.lists(WORDS, min_size=1, max_size=8), WORDS, st.integers(1, 8))
def test_ranking_is_that_of_the_formula(corpus: list[str], query: str, k: int) -> None:
    query = query.replace("the", "").strip()
    if all(set(text.split()) == {"the"} for text in corpus):
        return
    expected = by_hand(corpus, query)
    rows, scores = BM25.build(corpus).rank(query, min(k, len(corpus)))
    assert scores == pytest.approx(sorted((s for s in expected if s > 0), reverse=True)[: min(k, len(corpus))], rel=1e-4)
    assert [expected[row] for row in rows] == pytest.approx(scores, rel=1e-4)
    ties = Counter(round(score, 5) for score in scores)
    assert all(a < b for a, b, s, t in zip(rows, rows[1:], scores, scores[1:], strict=False) if s == t)
    assert sum(ties.values()) == len(rows) == len(set(rows))


def test_an_index_comes_back_from_disk(tmp_path: Path) -> None:
    index = BM25.build(CORPUS)
    index.save(tmp_path / "bm25")
    again = BM25.load(tmp_path / "bm25", len(CORPUS))
    for query in ("red dog", "cat", "owl", ""):
        assert again.rank(query, 3) == index.rank(query, 3)


def test_an_index_of_another_corpus_or_of_nothing_is_refused(tmp_path: Path) -> None:
    BM25.build(CORPUS).save(tmp_path / "bm25")
    with pytest.raises(ArtifactError, match="is of 3 passages and its corpus has 2; build the index again"):
        BM25.load(tmp_path / "bm25", 2)
    (tmp_path / "bm25" / "data.csc.index.npy").write_bytes(b"")
    with pytest.raises(ArtifactError, match=r"bm25 is no index of bm25s .*; build or fetch it again"):
        BM25.load(tmp_path / "bm25", 3)


def test_a_ranker_of_words_takes_no_gpu() -> None:
    """JAX, where it is installed, is told to stay away from it before bm25s imports it."""
    code = "import rolecast.retriever.bm25, os; print(os.environ['JAX_PLATFORMS'])"
    plain = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    for environment, expected in ((plain, "cpu"), ({**plain, "JAX_PLATFORMS": "cuda"}, "cuda")):
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


def test_an_index_of_the_same_texts_is_the_same_in_every_process(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from rolecast.retriever.bm25 import BM25
BM25.build(["red cat", "blue dog and red owl", "green fox, blue cat"]).save(Path(sys.argv[1]))
"""
    for seed in "12":
        subprocess.run([sys.executable, "-c", code, str(tmp_path / seed)], env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
    files = [{file.name: file.read_bytes() for file in (tmp_path / seed).iterdir()} for seed in "12"]
    assert files[0] == files[1] != {}
