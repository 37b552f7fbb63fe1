"""A language model as judge, behind any OpenAI-compatible endpoint.

The prompt of each kind is package data, and its `parse` reads the reply; what cannot be read exactly is unscored, with the reason.
So is a request that fails: a made-up score would train.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from jinja2 import Environment, StrictUndefined, Template, UndefinedError

from rolecast.errors import InputError, RolecastError
from rolecast.judge.kinds import JudgeKind
from rolecast.methods.registry import judge_kind, judge_prompts
from rolecast.ports import JudgeInfo, Verdict
from rolecast.service.client import JsonClient


class OpenAIJudge:
    """`Judge`. `url` ends before /chat/completions. At most `concurrency` requests at once, each tried for `patience` seconds.

    A verdict takes at most `patience + timeout` seconds, waiting for a turn included: who asks over HTTP waits with a limit too.
    """

    def __init__(
        self, url: str, model: str, api_key: str = "", *, concurrency: int = 16, timeout: float = 30.0, patience: float = 60.0,
        max_tokens: int = 512,
    ) -> None:  # fmt: skip
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = JsonClient(
            "judge model", url, timeout=timeout, patience=patience, headers=lambda: headers, variable="ROLECAST_JUDGE_OPENAI_URL",
            concurrency=concurrency, outside=True,
        )  # fmt: skip
        self._model, self._max_tokens, self._api_key = model, max_tokens, api_key
        self._limit = patience + timeout

    async def info(self) -> JudgeInfo:
        return JudgeInfo(self._model, judge_prompts())

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        asked = judge_kind(kind)
        if asked is None:
            return Verdict(None, f"there is no judge prompt for {kind!r}")
        try:
            prompt = _template(asked).render(dict(asked.read(inputs)))
        except UndefinedError as error:
            raise InputError(f"the judge prompt of {kind!r} needs more inputs: {error}") from None
        body = {"model": self._model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": self._max_tokens}
        try:
            async with asyncio.timeout(self._limit):
                reply = await self._client.post("/chat/completions", body)
        except TimeoutError:
            return Verdict(None, f"the judge model gave no verdict within {self._limit:g} s, waiting for its turn included")
        except RolecastError as error:
            return Verdict(None, self._without_key(str(error)))
        return replace(self._read(asked, reply), tokens=_tokens(reply))

    def _read(self, kind: JudgeKind, reply: Any) -> Verdict:
        try:
            choice = reply["choices"][0]
            text, finish = choice["message"]["content"], choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError):
            return Verdict(None, "the judge model answered in another shape than chat completions have")
        if not isinstance(text, str):
            return Verdict(None, "the judge model gave no text")
        if finish == "length":
            return Verdict(None, f"the judge model's reply was cut at {self._max_tokens} tokens")
        return kind.parse(self._without_key(text))

    def _without_key(self, text: str) -> str:
        """Some endpoints quote the key that they refuse."""
        return text.replace(self._api_key, "[OPENAI_API_KEY]") if self._api_key else text

    async def close(self) -> None:
        await self._client.close()


def _tokens(reply: Any) -> int:
    """What the endpoint says that the reply cost; 0 where it does not."""
    usage = reply.get("usage") if isinstance(reply, Mapping) else None
    total = usage.get("total_tokens") if isinstance(usage, Mapping) else None
    return total if isinstance(total, int) and total > 0 else 0


@cache
def _template(kind: JudgeKind) -> Template:
    # What a policy wrote is quoted as a JSON string, so that it cannot pass for a part of the prompt.
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False, default=str)  # str of an undefined one raises
    return environment.from_string(kind.prompt.read_text())
