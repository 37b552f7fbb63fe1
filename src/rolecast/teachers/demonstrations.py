"""Supervised rows from demonstrations: conversations that somebody wrote, and episodes that a teacher played (`rolecast data demonstrate`).

A line is one of

    {"role": "planner", "messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}
    {"renderer": "…", "threads": [{"role": "planner", "ids": [1, 2], "trained": [0, 1]}]}

Of a conversation every assistant's message is a row, with what stands before it as its prompt, rendered as the run renders. An episode is
in tokens already, so what was played is what is learned; its renderer must be the run's.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rolecast.data.jsonl import RowError, fault, json_lines
from rolecast.data.records import Filled, describe
from rolecast.errors import InputError
from rolecast.rollout.render import Renderer
from rolecast.types import Example

log = logging.getLogger(__name__)
TURNS = "turns.jsonl"  # in a folder that `rolecast data demonstrate` wrote
SHAPE = 'a line is {"role": "…", "messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Message(_Closed):
    role: Literal["system", "user", "assistant"]
    content: str


class _Conversation(_Closed):
    role: Filled
    messages: list[_Message] = Field(min_length=2)


class ThreadRow(_Closed):
    """One context of an episode, in tokens. `trained`: 1 where the role spoke."""

    role: Filled
    ids: list[int]
    trained: list[int]


class EpisodeRow(BaseModel):
    """An episode that was kept. Other keys say where it is from."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    renderer: Filled
    threads: list[ThreadRow] = Field(min_length=1)


def demonstrations_at(place: str) -> Path:
    """The file: itself, or the one in a folder that `rolecast data demonstrate` wrote. InputError where there is none."""
    path = Path(place)
    for file in (path, path / TURNS, path / "demonstrations" / TURNS):
        if file.is_file():
            return file
    raise InputError(f"{place}: no demonstrations; name a file of conversations, or a folder that `rolecast data demonstrate` wrote")


def read_demonstrations(place: str, renderer: Renderer, roles: Collection[str], max_context: int) -> list[Example]:
    """All rows of a file. Rows that are longer than a role's context are left out, and a warning counts them.

    InputError: no row; a role that the method has not; an episode that was rendered otherwise.
    """
    file = demonstrations_at(place)
    rows, long = [], 0
    fingerprint = renderer.fingerprint()
    for number, raw in json_lines(file):
        try:
            for row in _rows(raw, renderer, fingerprint):
                if row.tag not in roles:
                    raise RowError(f"role {row.tag!r} is none of the method's, which are {', '.join(roles)}; mend or remove the line")
                if len(row.ids) > max_context:
                    long += 1
                else:
                    rows.append(row)
        except ValidationError as error:
            raise fault(f"{file}, line {number}", describe(error, SHAPE)) from None
        except RowError as error:
            raise fault(f"{file}, line {number}", str(error)) from None
    if long:
        log.warning("%s: %d turns are longer than model.max_context (%d) and are left out", file, long, max_context)
    if not rows:
        raise fault(file, f"no turn to learn from; {SHAPE}")
    return rows


def digest_of_file(place: str) -> str:
    with demonstrations_at(place).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _rows(raw: Mapping[str, Any], renderer: Renderer, fingerprint: str) -> Iterator[Example]:
    if "threads" not in raw:
        yield from _turns(_Conversation.model_validate(raw), renderer)
        return
    episode = EpisodeRow.model_validate(raw)
    if episode.renderer != fingerprint:
        raise RowError(
            "the episode was rendered with another tokenizer or chat template than the run's; play it anew with the run's model as --tokenizer"
        )
    for thread in episode.threads:
        if len(thread.ids) != len(thread.trained) or not any(thread.trained):
            raise RowError(
                f"the thread of {thread.role} has {len(thread.ids)} tokens and {len(thread.trained)} marks, {sum(map(bool, thread.trained))} of them "
                "set; play it anew"
            )
        yield Example(tuple(thread.ids), tuple(map(bool, thread.trained)), tag=thread.role)


def _turns(conversation: _Conversation, renderer: Renderer) -> Iterator[Example]:
    messages = [{"role": message.role, "content": message.content} for message in conversation.messages]
    replies = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    if not replies or replies[0] == 0:
        raise RowError(f"no assistant's message with something before it; {SHAPE}")
    for at in replies:
        prompt, _ = renderer.prompt(messages[:at])
        said = renderer.encode(renderer.plain(messages[at]["content"].removeprefix(renderer.opening.strip())))
        if not said:
            raise RowError(f"message {at + 1} says nothing; {SHAPE}")
        yield Example((*prompt, *said), (False,) * len(prompt) + (True,) * len(said), tag=conversation.role)
