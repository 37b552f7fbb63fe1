"""Settings of the judge service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rolecast.service.settings import ServiceSettings


class JudgeSettings(ServiceSettings):
    """The key of the endpoint is no setting: it is read from OPENAI_API_KEY, so that it cannot be given on a command line."""

    judge_backend: Literal["lexical", "openai"] = Field("lexical", description="Rules, or a language model behind an endpoint.")
    judge_openai_url: str = Field("", description="The endpoint's address up to and with /v1.")
    judge_openai_model: str = Field("", description="The model's name at the endpoint.")
    judge_openai_concurrency: int = Field(16, ge=1, description="Requests at the endpoint at once.")
    judge_openai_timeout: float = Field(30.0, gt=0, description="Seconds of one try.")
    judge_openai_patience: float = Field(60.0, ge=0, description="Seconds of trying before an action stays unscored.")
    judge_openai_max_tokens: int = Field(512, ge=16, description="Tokens of a reply.")

    @model_validator(mode="after")
    def _whole(self) -> JudgeSettings:
        if self.judge_backend == "openai" and not (self.judge_openai_url and self.judge_openai_model):
            raise ValueError("the openai backend needs ROLECAST_JUDGE_OPENAI_URL and ROLECAST_JUDGE_OPENAI_MODEL")
        return self
