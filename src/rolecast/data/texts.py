"""Long texts to passages: pages of a data set, and folders of plain text and Markdown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from rolecast.data.files import COMPRESSED, kind_of, opened
from rolecast.data.jsonl import fault
from rolecast.data.records import passage_of
from rolecast.types import Passage

WORDS = 100  # of a passage, as in the usual cuts of Wikipedia
SUFFIXES = (".txt", ".md", ".markdown")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")
_FENCE = re.compile(r"^\s*(```|~~~)")


def passages_of(title: str, text: str) -> Iterator[Passage]:
    """Paragraphs put together up to `WORDS` words; one that is longer is cut between words. Texts keep their characters."""
    waiting: list[str] = []
    count = 0
    for paragraph in re.split(r"\n\s*\n", text):
        for piece, words in _pieces(paragraph.strip()):
            if waiting and count + words > WORDS:
                yield passage_of(title, "\n\n".join(waiting))
                waiting, count = [], 0
            waiting.append(piece)
            count += words
    if waiting:
        yield passage_of(title, "\n\n".join(waiting))


def _pieces(paragraph: str) -> Iterator[tuple[str, int]]:
    words = list(re.finditer(r"\S+", paragraph))
    for at in range(0, len(words), WORDS):
        piece = words[at : at + WORDS]
        yield paragraph[piece[0].start() : piece[-1].end()], len(piece)


def is_text(path: Path) -> bool:
    return kind_of(path) in SUFFIXES


def text_files(path: Path) -> list[Path]:
    """The file itself, or every text under a folder, in the order of their names. Hidden files and folders are not read."""
    if not path.is_dir():
        return [path]
    found = sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and is_text(file) and not any(p.startswith(".") for p in file.relative_to(path).parts)
    )
    if not found:
        raise fault(path, f"a folder without a text ({', '.join(SUFFIXES)}, or {COMPRESSED[0]} of one); name a file, or a folder of texts")
    return found


def read_texts(path: Path) -> Iterator[tuple[Path, list[Passage]]]:
    """Each file with its passages; none where it is empty. Titles are a file's first heading and the heading above, or its name."""
    for file in text_files(path):
        try:
            with opened(file) as packed:
                text = packed.read().decode("utf-8-sig")
        except FileNotFoundError:
            raise fault(file, "no such file; check the path") from None
        except (OSError, EOFError, UnicodeDecodeError) as error:
            raise fault(file, f"cannot be read ({error}); save it as UTF-8 or leave it out") from None
        try:
            file.name.encode()  # it may be a title
        except UnicodeEncodeError:
            raise fault(os.fsencode(file).decode(errors="backslashreplace"), "its name is not UTF-8; rename it") from None
        name = file.with_suffix("") if file.suffix in COMPRESSED else file
        yield file, list(_sections(text.replace("\r\n", "\n"), name.stem, markdown=name.suffix != ".txt"))


def _sections(text: str, name: str, markdown: bool) -> Iterator[Passage]:
    if not markdown:
        yield from passages_of(name, text)
        return
    page, section, lines, fenced = "", "", list[str](), False
    for line in text.split("\n"):
        fenced ^= bool(_FENCE.match(line))
        heading = None if fenced else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        yield from passages_of(_title(page, section, name), "\n".join(lines))
        lines = []
        page, section = (page, heading[1]) if page else (heading[1], "")
    yield from passages_of(_title(page, section, name), "\n".join(lines))


def _title(page: str, section: str, name: str) -> str:
    return f"{page or name}: {section}" if section else page or name
