"""Settings of the rollout service."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from rolecast.service.settings import ServiceSettings

Address = Annotated[str, Field(pattern="^https?://.")]


class RolloutSettings(ServiceSettings):
    """The release's key is no setting: it is read from ROLECAST_RELEASE_KEY, so that it cannot be given on a command line."""

    coordinators: str = Field("", description="Where learners announce their coordinators: a folder or s3://bucket/prefix.")
    coordinator_url: Annotated[str, Field(pattern="^(https?://.+)?$")] = Field(
        "", description="The one coordinator to work for, whatever is announced."
    )
    retriever_url: Address = Field(description="The retriever to search.")
    judge_url: Address = Field(description="The judge that scores.")
    capacity: int = Field(16, ge=1, description="Groups played at once.")
    idle_seconds: float = Field(60.0, gt=0, description="Without a lease for so long, another coordinator's groups are looked for.")
    name: str = Field("", description="The worker's name; by default the host's, and a number.")
    workdir: str = Field("", description="Where versions are kept; a temporary folder by default.")

    @model_validator(mode="after")
    def _has_somebody_to_work_for(self) -> RolloutSettings:
        if not self.coordinators and not self.coordinator_url:
            raise ValueError(
                "--coordinators is missing; give it or set ROLECAST_COORDINATORS, where learners announce themselves, or give the "
                "--coordinator-url of one"
            )
        return self
