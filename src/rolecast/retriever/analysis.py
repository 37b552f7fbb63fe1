"""Which words a text has, for rankers of words. What decides it lies in the index, so that queries are read as its passages were."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rolecast.errors import InputError
from rolecast.installed import needing

STOPWORDS = frozenset(
    "a an and are as at be by do for from has have in is it of on or same the to was were what which who with".split()  # noqa: SIM905
)


class Analysis(BaseModel):
    """How BM25 reads texts and weighs their words.

    `plain`: lower-cased words without stop words, each as it is spelt; indexes of before say nothing of themselves and are this.
    `unicode`: words of any script in one spelling (NFKC, case folded, without accents), Chinese, Japanese and Korean by
    characters and pairs of them; stop words are searched for where a query has no others. k1 and b default to Anserini's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    # plain: lower-cased words as they are spelt; unicode: in one spelling, of any script
    words: Literal["plain", "unicode"] = "unicode"
    stemmer: str | None = None  # a Snowball algorithm by its name, english
    k1: float = Field(0.9, ge=0, le=10)  # how soon a word that is said again counts no more
    b: float = Field(0.4, ge=0, le=1)  # how much a long passage is held back

    @model_validator(mode="before")
    @classmethod
    def _weights_of_the_words(cls, given: Any) -> Any:
        """Plain words have kept the weights that they had."""
        return {"k1": 1.5, "b": 0.75, **given} if isinstance(given, dict) and given.get("words") == "plain" else given

    @model_validator(mode="after")
    def _plain_words_have_no_stem(self) -> Analysis:
        if self.stemmer is not None and self.words == "plain":
            raise ValueError("a stemmer needs words: unicode")
        return self


PLAIN = Analysis(words="plain")


def analysis_of(words: Literal["plain", "unicode"], stemmer: str | None, k1: float | None, b: float | None) -> Analysis:
    """As a command's options say it; what they leave out is the default of these words. `InputError` names what is at fault."""
    given = {"words": words, "stemmer": stemmer, "k1": k1, "b": b}
    try:
        found = Analysis.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(": ".join([*(f"--{part}" for part in first["loc"]), first["msg"].removeprefix("Value error, ")])) from None
    make_analyser(found)  # there is such a stemmer
    return found


class Analyser(Protocol):
    def passage(self, text: str, title: str) -> list[str]:
        """The words of a passage whose searched text is `text`, title included."""
        ...

    def query(self, text: str) -> list[str]: ...


def make_analyser(analysis: Analysis) -> Analyser:
    """`InputError` if there is no such stemmer."""
    if analysis.words == "plain":
        return _Plain()
    return _Unicode(_stemmer(analysis.stemmer) if analysis.stemmer else list)


def tokenize(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text.lower()) if word not in STOPWORDS]


class _Plain:
    def passage(self, text: str, title: str) -> list[str]:
        return tokenize(text)

    def query(self, text: str) -> list[str]:
        return tokenize(text)


_ACCENTS = range(0x300, 0x370)  # marks over and under letters of alphabets; other scripts' vowel signs are part of their words
_BARE = dict.fromkeys(_ACCENTS)
_MARKS = "".join(f"{chr(code)}" for code in range(0x300, 0x10000) if unicodedata.category(chr(code)).startswith("M"))
_CJK = "\u1100-\u11ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
_RUNS = re.compile(rf"([{_CJK}]+)|((?:[^\W_{_CJK}][{_MARKS}]*)+)")
_TITLE = "\0"  # begins what stands for a whole title: no word does
_SUFFIX = re.compile(r"\s*\([^()]*\)\s*$")  # "It (novel)"


class _Unicode:
    """A title of stop words alone is a word of its own: of all passages that say "it", the one of that name comes first."""

    def __init__(self, stems: Callable[[list[str]], list[str]]) -> None:
        self._stems = stems

    def passage(self, text: str, title: str) -> list[str]:
        words = self._words(_normal(text), True)
        name = _spelt(_SUFFIX.sub("", title))
        return [*words, _TITLE + " ".join(name)] if name and STOPWORDS.issuperset(name) else words

    def query(self, text: str) -> list[str]:
        spelt = _normal(text)
        if words := self._words(spelt, False):
            return words
        name = _spelt(text)
        return [*self._words(spelt, True), _TITLE + " ".join(name)] if name else []

    def _words(self, text: str, stopwords: bool) -> list[str]:
        if text.isascii():  # most are
            words = re.findall(r"[^\W_]+", text)
            return self._stems(words if stopwords else [word for word in words if word not in STOPWORDS])
        found: list[str] = []
        for cjk, word in _RUNS.findall(text):
            if cjk:
                found += _pairs(cjk, alone=stopwords or len(cjk) == 1)
            elif stopwords or word not in STOPWORDS:
                found += self._stems([word])
        return [word if word.isascii() else _bare(word) for word in found]


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold() if not text.isascii() else text.lower()


def _spelt(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", _normal(text))


def _pairs(run: str, alone: bool) -> list[str]:
    """Neighbours of a run of characters that knows no spaces; in passages each of them `alone` too, for queries of one."""
    return [*(run if alone else ()), *(run[at : at + 2] for at in range(len(run) - 1))]


def _bare(word: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", word).translate(_BARE))


def _stemmer(name: str) -> Callable[[list[str]], list[str]]:
    with needing("retriever"):
        import Stemmer
    if name not in Stemmer.algorithms():
        raise InputError(f"there is no Snowball stemmer {name!r}; take one of {', '.join(Stemmer.algorithms())}")
    stems: Any = Stemmer.Stemmer(name)
    return lambda words: list(stems.stemWords(words))
