"""A role that makes one question of a conversation. It is no part of a method: a team is trained on questions that stand alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template

from rolecast.rollout.env import Env, EpisodeEnd
from rolecast.tags import blocks
from rolecast.types import Message, Role, Slot

MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Conversation:
    turns: tuple[Message, ...]


def rewriter(slot: Slot) -> Role:
    """The role, spoken with the weights of `slot`."""
    return Role("rewriter", frozenset({"turns"}), ("</question>",), MAX_TOKENS, slot)


async def rewrite(env: Env, role: Role, turns: Sequence[Message]) -> str:
    """The question that the last turn asks, understandable without the turns before it.

    Ends the episode where the reply is no question (`format`), or the conversation does not fit into the context (`length`).
    """
    state = Conversation(tuple(turns))
    prompt: list[Message] = [{"role": "user", "content": _template().render(turns=state.turns)}]
    _, question = await env.open(role, prompt, state=state).act(_question)
    if question is None:
        raise EpisodeEnd("format", "the rewriter gave no question")
    return question


def _question(reply: str) -> str | None:
    found = blocks(reply, "question")
    return found["question"] or None if found else None


@cache
def _template() -> Template:
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    return environment.from_string((files(__package__) / "prompts" / "rewriter.jinja").read_text(encoding="utf-8"))
