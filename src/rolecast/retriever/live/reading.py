"""What a page says: its text, without what a browser would run, load or hide."""

from __future__ import annotations

import codecs
import re
import unicodedata
from html.parser import HTMLParser
from typing import Final

from rolecast.retriever.live.addresses import Refused

# What stands in these is run, loaded or drawn, or is no text of the page.
ACTIVE: Final = frozenset(
    [
        "script",
        "style",
        "noscript",
        "template",
        "iframe",
        "frame",
        "frameset",
        "object",
        "embed",
        "applet",
        "svg",
        "math",
        "canvas",
        "audio",
        "video",
        "select",
        "button",
        "textarea",
    ]
)
VOID: Final = frozenset(
    ["area", "base", "br", "col", "embed", "frame", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"]
)
BLOCKS: Final = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "br",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "head",
        "header",
        "hr",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "td",
        "th",
        "title",
        "tr",
        "ul",
    ]
)
HIDDEN: Final = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
TYPES: Final = ("application/xhtml+xml", "application/xml", "application/json")
RUN: Final = ("text/javascript", "text/ecmascript", "text/css", "text/vbscript")
CHARSET: Final = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)


def readable(text: str) -> str:
    """Without characters that are not seen: controls, and marks of direction and width, in which text can hide."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn")).strip()


def takes(content_type: str) -> bool:
    """Whether a body of this type is text."""
    kind = content_type.partition(";")[0].strip().lower()
    return (kind.startswith("text/") and kind not in RUN) or kind in TYPES or (kind.endswith(("+xml", "+json")) and kind != "image/svg+xml")


def decoded(body: bytes, content_type: str) -> str:
    """`Refused` for bytes that are no text, whatever their type says."""
    named = re.search(r"charset\s*=\s*\"?\s*([A-Za-z0-9_:.-]{1,40})", content_type, re.IGNORECASE)
    in_page = CHARSET.search(body[:2048])
    name = named[1] if named else in_page[1].decode() if in_page else "utf-8"
    try:
        codec = codecs.lookup(name)
    except LookupError:
        codec = codecs.lookup("utf-8")
    if not getattr(codec, "_is_text_encoding", True):  # zip, hex and the like: a bomb in the charset
        codec = codecs.lookup("utf-8")
    text = codec.decode(body, "replace")[0].lstrip("\ufeff")
    if "\0" in text or text.count("\ufffd") > len(text) // 20:
        raise Refused("the body is no text")
    return text


def title_and_text(text: str, content_type: str) -> tuple[str, str]:
    kind = content_type.partition(";")[0].strip().lower()
    if "html" not in kind and not kind.endswith("xml"):
        return "", readable(text)
    page = _Page()
    try:
        page.feed(text)  # without close: what was not closed by the end is not shown either, and closing takes the square of its length
    except AssertionError:  # of the parser, for markup that is none
        raise Refused("it cannot be read as HTML") from None
    lines = (" ".join(line.split()) for line in readable("".join(page.text)).split("\n"))
    return " ".join(readable("".join(page.title)).split()), "\n".join(line for line in lines if line)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text: list[str] = []
        self.title: list[str] = []
        self._hidden: list[str] = []  # what is open from the first element that is not shown
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in BLOCKS:
            self.text.append("\n")
        if tag in VOID:
            return
        if self._hidden:
            if tag == self._hidden[0]:
                self._hidden.append(tag)
        elif tag in ACTIVE or _is_hidden(dict(attrs)):
            self._hidden = [tag]
        elif tag == "title":
            self._in_title = True

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in BLOCKS:
            self.text.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._hidden:
            if tag == self._hidden[0]:
                self._hidden.pop()
        elif tag == "title":
            self._in_title = False
        if tag in BLOCKS:
            self.text.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            (self.title if self._in_title else self.text).append(data)


def _is_hidden(attributes: dict[str, str | None]) -> bool:
    return "hidden" in attributes or attributes.get("aria-hidden") == "true" or bool(HIDDEN.search(attributes.get("style") or ""))
