"""The wires of search engines: what each is asked, how it is shown a key, and where its answers have what.

Serper: POST /search. Jina: POST / (its answers have whole texts). Google's Custom Search JSON API: GET /v1, ten at a time. SearXNG: GET
/search?format=json, which its settings must allow. OpenSearch: POST /INDEX/_search, and /INDEX/_mget for whole documents.
Keys go into headers, never into addresses, which stand in logs.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final
from urllib.parse import urlencode

from rolecast.retriever.live.reading import readable
from rolecast.retriever.live.settings import Engine, LiveConfig
from rolecast.service.client import WrongPart
from rolecast.types import Passage


@dataclass(frozen=True, slots=True)
class Ask:
    method: str
    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Wire:
    """`most`: results of one request. `pages`: how many requests may be made for one search."""

    ask: Callable[[LiveConfig, str, int, int], Ask]  # query, results, page from 0
    read: Callable[[LiveConfig, Mapping[str, Any]], list[Passage]]
    shown: Callable[[str], dict[str, str]]  # the headers of a key
    most: int
    pages: int = 1


def _serper(c: LiveConfig, query: str, k: int, page: int) -> Ask:
    return Ask("POST", "/search", {"q": query, "num": k})


def _jina(c: LiveConfig, query: str, k: int, page: int) -> Ask:
    return Ask("POST", "/", {"q": query, "num": k})


def _google(c: LiveConfig, query: str, k: int, page: int) -> Ask:
    return Ask("GET", "/v1?" + urlencode({"cx": c.collection, "q": query, "num": k, "start": 1 + 10 * page}))


def _searxng(c: LiveConfig, query: str, k: int, page: int) -> Ask:
    return Ask("GET", "/search?" + urlencode({"q": query, "format": "json", "pageno": page + 1}))


def _opensearch(c: LiveConfig, query: str, k: int, page: int) -> Ask:
    match = {"multi_match": {"query": query, "fields": [c.title_field, c.text_field]}}
    return Ask("POST", f"/{c.collection}/_search", {"size": k, "query": match, "_source": [c.title_field, c.text_field]})


def _read_serper(c: LiveConfig, reply: Mapping[str, Any]) -> list[Passage]:
    return [_page(hit, "link", ("snippet",)) for hit in _list(c, reply, "organic")]


def _read_jina(c: LiveConfig, reply: Mapping[str, Any]) -> list[Passage]:
    return [_page(hit, "url", ("content", "description")) for hit in _list(c, reply, "data")]


def _read_google(c: LiveConfig, reply: Mapping[str, Any]) -> list[Passage]:
    return [_page(hit, "link", ("snippet",)) for hit in _list(c, reply, "items")]


def _read_searxng(c: LiveConfig, reply: Mapping[str, Any]) -> list[Passage]:
    return [_page(hit, "url", ("content",), _score(hit.get("score"))) for hit in _list(c, reply, "results")]


def _read_opensearch(c: LiveConfig, reply: Mapping[str, Any]) -> list[Passage]:
    found = reply.get("hits")
    return [_document(c, hit) for hit in _list(c, found if isinstance(found, Mapping) else {}, "hits", required=True)]


def ask_documents(c: LiveConfig, ids: Sequence[str]) -> Ask:
    return Ask("POST", f"/{c.collection}/_mget", {"ids": list(ids)})


def read_documents(c: LiveConfig, reply: Mapping[str, Any]) -> dict[str, Passage]:
    """By their ids; those that the index lacks are left out."""
    return {str(hit.get("_id")): _document(c, hit) for hit in _list(c, reply, "docs", required=True) if hit.get("found")}


def _header(name: str) -> Callable[[str], dict[str, str]]:
    return lambda key: {name: key}


def _authorization(key: str) -> dict[str, str]:
    """Of OpenSearch: USER:PASSWORD, or else a token."""
    if ":" in key:
        return {"Authorization": f"Basic {base64.b64encode(key.encode()).decode()}"}
    return {"Authorization": f"Bearer {key}"}


WIRES: Final[Mapping[Engine, Wire]] = {
    "serper": Wire(_serper, _read_serper, _header("X-API-KEY"), 100),
    "jina": Wire(_jina, _read_jina, _authorization, 20),
    "google": Wire(_google, _read_google, _header("X-Goog-Api-Key"), 10, pages=10),
    "searxng": Wire(_searxng, _read_searxng, _authorization, 10, pages=3),
    "opensearch": Wire(_opensearch, _read_opensearch, _authorization, 10_000),
}


def _list(c: LiveConfig, reply: Mapping[str, Any], key: str, required: bool = False) -> list[Mapping[str, Any]]:
    """What an engine found nothing for may lack the list."""
    found = reply.get(key, None if required else [])
    if not isinstance(found, list) or not all(isinstance(item, Mapping) for item in found):
        raise WrongPart(f"{c.address} answered without a list {key!r}; is it {c.engine}?")
    return found


def _page(hit: Mapping[str, Any], address: str, texts: Sequence[str], score: float = 0.0) -> Passage:
    text = next((found for name in texts if (found := _text(hit.get(name)))), "")
    return Passage(_text(hit.get(address)), " ".join(_text(hit.get("title")).split()), text, score)


def _document(c: LiveConfig, hit: Mapping[str, Any]) -> Passage:
    source = hit.get("_source")
    fields = source if isinstance(source, Mapping) else {}
    title, text = _text(_at(fields, c.title_field)), _text(_at(fields, c.text_field))
    return Passage(_text(hit.get("_id")), " ".join(title.split()), text, _score(hit.get("_score")))


def _at(fields: Mapping[str, Any], name: str) -> object:
    """A field by its name, with dots where it lies in others."""
    found: object = fields
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return fields.get(name, found)


def _text(found: object) -> str:
    return readable(found) if isinstance(found, str) else ""


def _score(found: object) -> float:
    number = float(found) if isinstance(found, int | float) else 0.0
    return number if isfinite(number) else 0.0
