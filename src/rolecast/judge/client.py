"""`Judge` over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rolecast.errors import RolecastError
from rolecast.ports import Verdict
from rolecast.service.client import JsonClient
from rolecast.wire.judge import JudgeReply, judge_request


class HttpJudge:
    """A judge that cannot be reached is an error, not an unscored action: the step is done again when it is back.

    `timeout` is longer than the judge's own patience with a model behind it.
    """

    def __init__(self, url: str, *, timeout: float = 120.0, patience: float = 240.0) -> None:
        self._client = JsonClient("judge", url, timeout=timeout, patience=patience, concurrency=64)

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        data = await self._client.post("/v1/judge", judge_request(kind, inputs))
        try:
            return JudgeReply.model_validate(data).to_verdict()
        except ValidationError:
            raise RolecastError(f"{self._client.url}/v1/judge answered in another shape; is it the judge?") from None

    async def close(self) -> None:
        await self._client.close()
