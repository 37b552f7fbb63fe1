"""Reading a role's reply. A reply is a sequence of tagged blocks with nothing but white space around them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache


def blocks(text: str, *tags: str) -> dict[str, str] | None:
    """The stripped content of each tag, if `text` is exactly these blocks in this order; else None.

    A block that holds one of the tags again is a fault, so a reply has one reading.
    """
    whole, tag = _patterns(tags)
    match = whole.fullmatch(text)
    if match is None:
        return None
    contents = [content.strip() for content in match.groups()]
    if any(tag.search(content) for content in contents):
        return None
    return dict(zip(tags, contents, strict=True))


@cache
def _patterns(tags: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of the blocks in this order, each content a group, and of any of the tags. A method reads every reply with the same few."""
    pattern = r"\s*".join(rf"<{tag}>(.*?)</{tag}>" for tag in tags)
    return re.compile(rf"\s*{pattern}\s*", re.DOTALL), re.compile(rf"</?(?:{'|'.join(tags)})>")


def tagged(tag: str, content: str) -> str:
    """`content` in its tags, with the one space after the opening tag that word tokenizers expect."""
    return f"<{tag}> {content}</{tag}>" if content else f"<{tag}></{tag}>"


def trim(text: str, stops: Sequence[str]) -> str:
    """`text` without what a token carried past the stop string that ended it."""
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    return text[: min(ends)] if ends else text


def left_open(prompt: str) -> str:
    """The thinking tag that a chat template wrote at the end of a prompt, with white space after it; "" if there is none.

    What the role then says goes on inside that block.
    """
    match = re.search(r"<think>\s*\Z", prompt)
    return match.group() if match else ""
