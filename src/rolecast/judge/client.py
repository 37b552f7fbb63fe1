"""`Judge` over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from rolecast.errors import RolecastError
from rolecast.ports import JudgeInfo, Verdict
from rolecast.service.client import JsonClient, NoAnswer
from rolecast.service.tokens import OwnToken
from rolecast.wire.judge import JudgeAbout, JudgeReply, judge_request


class HttpJudge:
    """A judge that is away, too slow or broken leaves what it was asked about unscored, with the reason.

    `timeout` is longer than the judge's own patience with a model behind it. At most `concurrency` requests are under way, as many
    as the judge asks its model: the others wait here, where no time runs.
    """

    def __init__(self, url: str, *, timeout: float = 120.0, patience: float = 240.0, concurrency: int = 32) -> None:
        self._client = JsonClient(
            "judge", url, timeout=timeout, patience=patience, concurrency=concurrency, headers=OwnToken().headers
        )  # fmt: skip

    async def info(self) -> JudgeInfo:
        data = await self._client.get("/v1/judge")
        try:
            return JudgeAbout.model_validate(data).to_info()
        except ValidationError:
            raise RolecastError(f"{self._client.url}/v1/judge does not say who judges; is it the judge?") from None

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        try:
            data = await self._client.post("/v1/judge", judge_request(kind, inputs))
        except NoAnswer as error:
            return Verdict(None, str(error))
        try:
            return JudgeReply.model_validate(data).to_verdict()
        except ValidationError:
            raise RolecastError(f"{self._client.url}/v1/judge answered in another shape; is it the judge?") from None

    async def close(self) -> None:
        await self._client.close()
