"""OpenAI's chat completions as the agent reads them: what it honours, what changes nothing, and what it refuses by name.

Source: https://platform.openai.com/docs/api-reference/chat/create, and what the packages `openai` and `langchain-openai` send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rolecast.service.errors import BadRequest
from rolecast.types import Message

Neutral = Callable[[Any], bool]  # whether a value changes no answer
MOST_STOPS = 16


def _one_of(*values: object) -> Neutral:
    return lambda value: value in values


def _anything(value: object) -> bool:
    return True


# Keys that are not read, with the values that leave the answer as it is; null is one for each of them.
NEUTRAL: Mapping[str, Neutral] = {
    "n": _one_of(1),
    "presence_penalty": _one_of(0),
    "frequency_penalty": _one_of(0),
    "logit_bias": _one_of({}),
    "logprobs": _one_of(False),
    "top_logprobs": _one_of(0),
    "tools": _one_of([]),
    "tool_choice": _one_of("none", "auto"),
    "functions": _one_of([]),
    "function_call": _one_of("none", "auto"),
    "response_format": _one_of({"type": "text"}),
    "modalities": _one_of(["text"]),
    "verbosity": _one_of("medium"),
    **dict.fromkeys(
        (
            "metadata", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
            "safety_identifier", "service_tier", "store", "user",
        ),
        _anything,
    ),
}  # fmt: skip
OFFERS = {"tools": "tool_choice", "functions": "function_call"}  # nothing is offered where the choice is "none"


class Part(BaseModel):
    """One part of a message. Others than text (images, sounds, files) are refused where they are in a turn that is read."""

    model_config = ConfigDict(extra="ignore")

    type: str
    text: str = ""
    refusal: str = ""


class ChatMessage(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None

    def read(self, place: str) -> str:
        """Its text; parts are lines of it. `place` names it in a `BadRequest`."""
        if not isinstance(self.content, list):
            return self.content or ""
        for number, part in enumerate(self.content):
            if part.type not in ("text", "refusal"):
                raise BadRequest(f"{place}.content.{number} is of type {part.type!r}; the team reads text alone", f"{place}.content")
        return "\n".join(part.text or part.refusal for part in self.content)


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None


Limit = Annotated[int, Field(ge=1)]
Stop = Annotated[str, Field(min_length=1)]


class ChatRequest(BaseModel):
    """`temperature`, `top_p` and `seed` are for all roles of the team; `stop` and the limits of tokens are for its answer."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    messages: list[ChatMessage] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1, allow_inf_nan=False)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None

    @model_validator(mode="after")
    def _honoured(self) -> ChatRequest:
        more = self.model_extra or {}
        for key, value in more.items():
            if value is None or NEUTRAL.get(key, _never)(value) or more.get(OFFERS.get(key, "")) == "none":
                continue
            if key in NEUTRAL:
                raise BadRequest(f"this value of {key!r} would change the answer, and the team cannot honour it; leave it out", key)
            raise BadRequest(f"{key!r} is no option of this server; leave it out", key)
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def limit(self) -> int | None:
        """Tokens of the answer at most. The two names are one option, of which the smaller value is kept."""
        return min((limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None), default=None)

    @property
    def users_turns(self) -> list[int]:
        """The places of what the user said."""
        turns = [place for place, message in enumerate(self.messages) if message.role == "user"]
        if not turns:
            raise BadRequest("no message is of role 'user'; the last one of them is the question", "messages")
        return turns

    def question(self) -> str:
        """The last user's turn."""
        place = self.users_turns[-1]
        return self.messages[place].read(f"messages.{place}")

    def conversation(self) -> tuple[Message, ...]:
        """Every turn with a text, in order."""
        read = [(message.role, message.read(f"messages.{place}")) for place, message in enumerate(self.messages)]
        return tuple({"role": role, "content": text} for role, text in read if text.strip())


def _never(value: object) -> bool:
    return False
