"""Which words texts have, and what a query of them finds."""

from __future__ import annotations

import asyncio
import hashlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rolecast.cli.main import app
from rolecast.errors import InputError
from rolecast.retriever.analysis import PLAIN, Analysis, analysis_of, make_analyser
from rolecast.retriever.index import LocalRetriever, build_index
from rolecast.store.artifact import MANIFEST, digest_of
from rolecast.types import Passage
from rolecast.world.counterfactual import build_world

PASSAGES = [
    Passage("who", "The Who", "The Who are an English rock band; it was formed in London in 1964."),
    Passage("says-it", "Weather", "it rains, and it pours, and it is what it is, for it is April, and it will"),
    Passage("it", "It (novel)", "It is a horror novel of 1986 by Stephen King, whose enemy lives under Derry."),
    Passage("asks", "Owls", "Who is it that hoots in the woods? The owl, who is the one who sees."),
    Passage("zh", "杭州", "西湖是杭州最著名的旅游景点之一。"),
    Passage("zh2", "北京", "北京是中国的首都。"),
    Passage("najera", "N\u00e1jera", "A town in Spain."),
    Passage("hindi", "हिन्दी", "हिन्दी भाषा"),
    Passage("running", "Races", "She was running two races in Zürich."),
]


def ids(path: Path, query: str, k: int = 3) -> list[str]:
    return [p.id for p in asyncio.run(LocalRetriever.open(path).search([query], k))[0]]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("analysis") / "index"
    build_index(PASSAGES, path, "bm25", analysis=Analysis(stemmer="english"))
    return path


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("The Who", "who"),
        ("the who?", "who"),
        ("It", "it"),
        ("旅游景点", "zh"),
        ("旅游", "zh"),
        ("湖", "zh"),
        ("北京", "zh2"),
        ("Nájera", "najera"),
        ("Na\u0301jera", "najera"),
        ("NAJERA", "najera"),
        ("ｎａｊｅｒａ", "najera"),
        ("Zu\u0308rich", "running"),
        ("हिन्दी", "hindi"),
        ("ran runs a race", "running"),
    ],
)
def test_what_was_not_found_before_is_found_first(index: Path, query: str, first: str) -> None:
    assert ids(index, query)[:1] == [first]


def test_stop_words_are_not_searched_beside_others(index: Path) -> None:
    assert ids(index, "it and the derry", 9) == ["it"]


def test_a_query_that_is_nothing_finds_nothing(index: Path) -> None:
    assert [ids(index, query) for query in ("", "?!", "\0", "\0it", "🦉")] == [[], [], [], ids(index, "it"), []]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The CAFÉ's café", ["the", "cafe", "s", "cafe"]),
        ("STRASSE straße", ["strasse", "strasse"]),
        ("ﬁne ①", ["fine", "1"]),
        ("日本語abc", ["日", "本", "語", "日本", "本語", "abc"]),
        ("か\u3099", ["が"]),
        ("йод", ["иод"]),
        ("한국어", ["한", "국", "어", "한국", "국어"]),
        ("ngày", ["ngay"]),
        ("snake_case", ["snake", "case"]),
    ],
)
def test_words_of_a_passage(text: str, words: list[str]) -> None:
    for form in ("NFC", "NFD"):
        assert make_analyser(Analysis()).passage(unicodedata.normalize(form, text), "") == words


def test_a_query_asks_for_pairs_and_for_one_character_only_where_it_has_one() -> None:
    query = make_analyser(Analysis()).query
    assert [query("旅游景点"), query("湖"), query("the 湖 and")] == [["旅游", "游景", "景点"], ["湖"], ["湖"]]


def test_stems_are_of_their_language() -> None:
    assert make_analyser(Analysis(stemmer="german")).query("die Häuser") == make_analyser(Analysis(stemmer="german")).query("die Haus")
    assert make_analyser(Analysis(stemmer="english")).query("races") == ["race"]


def test_what_an_index_was_built_with_lies_in_it(tmp_path: Path) -> None:
    build_index(PASSAGES, tmp_path / "new", "bm25", analysis=Analysis(stemmer="english", k1=1.2))
    build_index(PASSAGES, tmp_path / "old", "bm25")
    about = json.loads((tmp_path / "new" / "index.json").read_text())
    assert about["analysis"] == {"words": "unicode", "stemmer": "english", "k1": 1.2, "b": 0.4}
    assert json.loads((tmp_path / "old" / "index.json").read_text()) == {"kind": "bm25", "encoder": "minilm"}  # as ever
    assert (ids(tmp_path / "new", "It"), ids(tmp_path / "old", "It")) == (ids(tmp_path / "new", "it"), [])


def test_k1_and_b_weigh_words(tmp_path: Path) -> None:
    passages = [Passage("often", "", "dog dog dog dog cat owl fox bee"), Passage("short", "", "dog"), Passage("none", "", "cow")]
    for k1, b, first in ((0.9, 0.0, "often"), (0.9, 1.0, "short"), (0.0, 1.0, "often")):
        build_index(passages, tmp_path / f"{k1}-{b}", "bm25", analysis=Analysis(k1=k1, b=b))
        assert ids(tmp_path / f"{k1}-{b}", "dog", 1) == [first]


def test_a_drawn_world_is_searched_as_ever_bit_for_bit(tmp_path: Path) -> None:
    """The bytes of the index that the demo builds, scores and order as they were when its figures were measured."""
    world = build_world(0, {"train": 60, "dev": 40, "test": 40}, {"train": 10, "dev": 10, "test": 10})
    build_index(world.passages, tmp_path / "index", "bm25")
    assert digest_of((tmp_path / "index" / MANIFEST).read_bytes()) == "2f0054f5dc5e7483"
    queries = [*(hop.query for question in world.questions["test"] for hop in question.gold.chain), "The Who", "It", ""]
    found = asyncio.run(LocalRetriever.open(tmp_path / "index").search(queries, 5))
    shown = repr([[(passage.id, passage.score) for passage in hits] for hits in found])
    assert hashlib.sha256(shown.encode()).hexdigest()[:16] == "39f112c08a6e8452"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("unicode", "klingon", None, None), "there is no Snowball stemmer 'klingon'"),
        (("plain", "english", None, None), "a stemmer needs words: unicode"),
        (("unicode", None, -1.0, None), "--k1: "),
        (("unicode", None, None, 2.0), "--b: "),
    ],
)
def test_settings_that_cannot_be_are_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        analysis_of(*given)


def test_plain_words_keep_their_weights() -> None:
    assert analysis_of("plain", None, None, None) == PLAIN == Analysis(words="plain", k1=1.5, b=0.75)
    assert analysis_of("unicode", None, None, 0.5) == Analysis(b=0.5)


def test_the_command_takes_them(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in PASSAGES))
    out = tmp_path / "index"
    options = ["--kind", "bm25", "--stemmer", "english", "--b", "0.6"]
    done = CliRunner().invoke(app, ["index", "build", "--corpus", str(tmp_path / "corpus.jsonl"), "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    assert json.loads((out / "index.json").read_text())["analysis"] == {"words": "unicode", "stemmer": "english", "k1": 0.9, "b": 0.6}
