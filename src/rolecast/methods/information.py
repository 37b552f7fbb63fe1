"""What a role's own transcript shows of a search: passages in a frame, within a limit of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from rolecast.methods.base import PromptStyle
from rolecast.rollout.env import Env
from rolecast.types import Passage

SOURCES = ("documents",)


def information(passages: Sequence[Passage], style: PromptStyle, frame: tuple[str, str], limit: int, env: Env) -> str:
    """The passages between the two parts of `frame`, cut inside to `limit` tokens so that the closing part stays.

    A limit that the frame alone passes leaves no room. A cut inside a character drops the character, and where the text that is
    left takes more tokens than it had in the whole, the cut moves on towards the front.
    """
    before, after = frame
    if style == "compact":
        lines = [f" {passage.text}" for passage in passages]
    else:
        lines = [f"Doc {rank} (Title: {passage.title}) {passage.text}" for rank, passage in enumerate(passages, 1)]
    text = env.renderer.plain("\n".join(lines))
    ids = env.renderer.encode(text)
    kept = limit - env.tokens(before + after)
    if len(ids) > kept:
        text = _beginning(ids, kept, env)
    while text and env.tokens(before + text + after) > limit:
        kept -= 1
        text = _beginning(ids, kept, env)
    return before + text + after


def _beginning(ids: Sequence[int], count: int, env: Env) -> str:
    """What the first `count` tokens say, without the character that the cut goes through."""
    return env.renderer.decode(ids[: max(0, count)]).rstrip("\ufffd")
