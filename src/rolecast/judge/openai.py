"""A language model as judge, behind any OpenAI-compatible endpoint.

The prompt of each kind is package data, and its `parse` reads the reply; what cannot be read exactly is unscored, with the reason.
So is a request that fails: a made-up score would train.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from httpx import AsyncClient

from rolecast.judge.certainty import yes_share
from rolecast.judge.endpoint import Endpoint, NoReply
from rolecast.judge.kinds import JudgeKind
from rolecast.judge.pace import Pace
from rolecast.judge.prompting import Prompt, ask_of, verdict_of
from rolecast.methods.registry import judge_kind, judge_prompts
from rolecast.ports import JudgeInfo, Verdict

ALTERNATIVES: Final = 10  # to the verdict's token, of which YES and NO are two
REASONED: Final = 150  # tokens that a reply is guessed to have, before any is known
_UNREADABLE: Final = "the judge model answered in another shape than chat completions have"


class OpenAIJudge:
    """`Judge`. `url` ends before /chat/completions. Limits are those of `Endpoint`: a verdict takes `patience` seconds at most once its
    request is sent. Requests are greedy."""

    def __init__(
        self, url: str, model: str, api_key: str = "", *, concurrency: int = 32, timeout: float = 5.0, patience: float = 15.0,
        max_tokens: int = 512, pace: Pace | None = None, queue: float | None = None,
    ) -> None:  # fmt: skip
        self.endpoint = Endpoint(url, api_key, timeout=timeout, patience=patience, concurrency=concurrency, pace=pace, queue=queue)
        self._model, self._max_tokens = model, max_tokens
        self._logprobs = True  # until the endpoint refuses to tell them

    async def info(self) -> JudgeInfo:
        return JudgeInfo(self._model, judge_prompts())

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        asked = judge_kind(kind)
        if asked is None:
            return Verdict(None, f"there is no judge prompt for {kind!r}")
        async with self.endpoint.turn() as line:
            return await self._judged(line, asked, inputs)

    async def _judged(self, line: AsyncClient, asked: JudgeKind, inputs: Mapping[str, Any]) -> Verdict:
        prompt = ask_of(asked, dict(asked.read(inputs)))
        guessed = len(prompt.text) // 3 + REASONED
        try:
            reply = await self._asked(line, asked, prompt, guessed)
        except NoReply as error:
            return Verdict(None, str(error))
        tokens = _tokens(reply)
        self.endpoint.took(guessed, tokens)
        return replace(self._read(asked, reply, prompt.mark), tokens=tokens)

    async def _asked(self, line: AsyncClient, kind: JudgeKind, prompt: Prompt, guessed: int) -> Any:
        body = {
            "model": self._model, "messages": [{"role": "user", "content": prompt.text}], "temperature": 0, "max_tokens": self._max_tokens,
        }  # fmt: skip
        if not (kind.yes_no and self._logprobs):
            return await self.endpoint.ask(line, body, guessed)
        try:
            return await self.endpoint.ask(line, {**body, "logprobs": True, "top_logprobs": ALTERNATIVES}, guessed)
        except NoReply as error:
            if error.status not in (400, 422) or "logprobs" not in str(error):
                raise
        self._logprobs = False
        return await self.endpoint.ask(line, body, guessed)

    def _read(self, kind: JudgeKind, reply: Any, mark: str) -> Verdict:
        try:
            choice = reply["choices"][0]
            message, finish = choice["message"], choice.get("finish_reason")
            text, refusal = message["content"], message.get("refusal")
        except (KeyError, IndexError, TypeError, AttributeError):
            return Verdict(None, _UNREADABLE)
        if finish == "content_filter":
            return Verdict(None, "the judge model's reply was held back by a content filter")
        if not isinstance(text, str):
            return Verdict(None, f"the judge model gave no text{f': {self.endpoint.unkeyed(str(refusal))[:200]}' if refusal else ''}")
        if finish == "length":
            return Verdict(None, f"the judge model's reply was cut at {self._max_tokens} tokens")
        verdict = verdict_of(kind, self.endpoint.unkeyed(text), mark)
        share = yes_share(choice, mark) if kind.yes_no and verdict.score in (0.0, 1.0) else None
        # A share that contradicts the word that was said is of another token, or of a sample that is not greedy.
        return replace(verdict, score=share) if share is not None and (share >= 0.5) == (verdict.score == 1.0) else verdict

    async def close(self) -> None:
        await self.endpoint.close()


def _tokens(reply: Any) -> int:
    """What the endpoint says that the reply cost; 0 where it does not."""
    usage = reply.get("usage") if isinstance(reply, Mapping) else None
    total = usage.get("total_tokens") if isinstance(usage, Mapping) else None
    return total if isinstance(total, int) and total > 0 else 0
