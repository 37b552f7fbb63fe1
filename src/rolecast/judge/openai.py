"""A language model as judge, behind any OpenAI-compatible endpoint.

The prompt of each kind is package data. The model ends its reply with one line, `Score: …`; what cannot be read exactly is
unscored, with the reason. So is a request that fails: a made-up score would train.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template, UndefinedError

from rolecast.errors import InputError, RolecastError
from rolecast.ports import Verdict
from rolecast.service.client import JsonClient

_SCORE = re.compile(r"Score:\s*(\S+)")
_SHARE = re.compile(r"0(\.\d+)?|1(\.0+)?")
_SIGN = {"1": 1.0, "+1": 1.0, "-1": -1.0}
SHOWN = 300  # characters of a reply that go into a reason


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
            "judge model", url, timeout=timeout, patience=patience, headers=headers, variable="ROLECAST_JUDGE_OPENAI_URL",
            concurrency=concurrency,
        )  # fmt: skip
        self._model, self._max_tokens, self._api_key = model, max_tokens, api_key
        self._limit = patience + timeout

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        template = _template(kind)
        if template is None:
            return Verdict(None, f"there is no judge prompt for {kind!r}")
        try:
            prompt = template.render(inputs)
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
        return self._read(kind, reply)

    def _read(self, kind: str, reply: Any) -> Verdict:
        try:
            choice = reply["choices"][0]
            text, finish = choice["message"]["content"], choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError):
            return Verdict(None, "the judge model answered in another shape than chat completions have")
        if not isinstance(text, str):
            return Verdict(None, "the judge model gave no text")
        if finish == "length":
            return Verdict(None, f"the judge model's reply was cut at {self._max_tokens} tokens")
        return verdict(kind, self._without_key(text))

    def _without_key(self, text: str) -> str:
        """Some endpoints quote the key that they refuse."""
        return text.replace(self._api_key, "[OPENAI_API_KEY]") if self._api_key else text

    async def close(self) -> None:
        await self._client.close()


def verdict(kind: str, text: str) -> Verdict:
    """Reads the last line: `answer` gives a number in [0, 1]; role kinds give 1, -1, or none for no verdict."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = _SCORE.fullmatch(lines[-1]) if lines else None
    reason = " ".join(lines[:-1])[-SHOWN:]
    if found is None:
        return Verdict(None, f"the judge model's reply does not end with a score line: {text.strip()[-SHOWN:]!r}")
    value = found[1]
    if kind == "answer":
        if _SHARE.fullmatch(value):
            return Verdict(float(value), reason)
    elif value in _SIGN:
        return Verdict(_SIGN[value], reason)
    elif value == "none":
        return Verdict(None, reason or "the judge model gave no verdict")
    return Verdict(None, f"the judge model's score {value!r} is none of this kind")


@cache
def _template(kind: str) -> Template | None:
    file = files("rolecast.judge") / "prompts" / f"{kind}.jinja"
    if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", kind) or not file.is_file():
        return None
    # What a policy wrote is quoted as a JSON string, so that it cannot pass for a part of the prompt.
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)
    environment.filters["quoted"] = lambda value: json.dumps(value, ensure_ascii=False, default=str)  # str of an undefined one raises
    return environment.from_string(file.read_text())
