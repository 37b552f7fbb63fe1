"""Settings of the rollout service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rolecast.service.settings import ServiceSettings

Address = Annotated[str, Field(pattern="^https?://.")]


class RolloutSettings(ServiceSettings):
    """The release's key is no setting: it is read from ROLECAST_RELEASE_KEY, so that it cannot be given on a command line."""

    coordinator_url: Address = Field(description="The learner's coordinator.")
    retriever_url: Address = Field(description="The retriever to search.")
    judge_url: Address = Field(description="The judge that scores.")
    capacity: int = Field(16, ge=1, description="Groups played at once.")
    name: str = Field("", description="The worker's name; by default the host's, and a number.")
    workdir: str = Field("", description="Where versions are kept; a temporary folder by default.")
