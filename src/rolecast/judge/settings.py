"""Settings of the judge service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rolecast.service.settings import ServiceSettings


class JudgeSettings(ServiceSettings):
    """The key of the endpoint is no setting: it is read from OPENAI_API_KEY, so that it cannot be given on a command line."""

    judge_backend: Literal["lexical", "openai", "ensemble"] = Field(
        "lexical", description="Rules, a language model behind an endpoint, or several."
    )
    judge_openai_url: str = Field("", description="The endpoint's address up to and with /v1.")
    judge_openai_model: str = Field("", description="The model's name at the endpoint; an ensemble's, with commas.")
    judge_openai_concurrency: int = Field(32, ge=1, description="Requests at the endpoint at once.")
    judge_openai_rate: float | None = Field(
        None, gt=0, description="Requests a second, tries included, of each model; no limit without it."
    )
    judge_openai_token_rate: float | None = Field(
        None, gt=0, description="Tokens a second, read and said, of each model; no limit without it."
    )
    judge_openai_timeout: float = Field(5.0, gt=0, description="Seconds of one try, to its last byte.")
    judge_openai_patience: float = Field(
        15.0, gt=0, description="Seconds of a request with all its tries, from its first sending, before it stays unscored."
    )
    judge_openai_queue: float = Field(
        60.0, gt=0, description="Seconds that a request waits for its turn before who asks is told to ask again."
    )
    judge_openai_max_tokens: int = Field(512, ge=16, description="Tokens of a reply.")
    judge_cache: str = Field("", description="A store, a folder or s3://bucket/prefix, in which replicas share verdicts; none without it.")

    @model_validator(mode="after")
    def _whole(self) -> JudgeSettings:
        if self.judge_backend != "lexical" and not (self.judge_openai_url and self.judge_openai_model):
            raise ValueError(f"the {self.judge_backend} backend needs ROLECAST_JUDGE_OPENAI_URL and ROLECAST_JUDGE_OPENAI_MODEL")
        return self
