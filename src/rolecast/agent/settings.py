"""Settings of the agent service."""

from __future__ import annotations

from pydantic import Field, model_validator

from rolecast.service.settings import ServiceSettings


class AgentSettings(ServiceSettings):
    run: str = Field("", description="The run: a folder or s3://bucket/prefix/NAME.")
    stage: str | None = Field(None, description="Whose model; by default the last that was trained.")
    model_name: str = Field("", description="The model's id for clients; by default the run's name.")
    retriever_url: str = Field("", description="The retriever to search; else the run's own index.")
    retriever_patience: float = Field(20.0, ge=0, description="Seconds that a search waits for a retriever that is restarting.")
    max_live: int = Field(64, ge=1, description="Questions answered at once.")
    max_waiting: int = Field(256, ge=0, description="Questions that wait; more are refused with 429.")
    max_question_characters: int = Field(2**14, ge=1, description="Longer questions, and conversations, are refused.")
    traces: str = Field("", description="Where traces are kept: a folder or s3://bucket/prefix; else in this process, the last ones.")
    trace_days: float = Field(7.0, gt=0, le=3650, description="Days after which a trace, and the link to it, are gone.")
    keep_traces: int = Field(256, ge=0, description="How many of the last traces this process keeps.")
    rewriter: str = Field("", description="The slot whose model makes one question of several user turns; else they are refused.")
    externals: str = Field("", description="A YAML file of endpoints by name, as `externals` of a config; they go before the run's own.")
    engine: str = Field(
        "", description="A YAML file of the engine, as `engine` of a config; by default the one that the run was trained with."
    )
    log_questions: bool = Field(False, description="Whether questions and answers go to the log.")

    @model_validator(mode="after")
    def _named(self) -> AgentSettings:
        if not self.run:
            raise ValueError("which run? Name it: `rolecast agent serve RUN`, or set ROLECAST_RUN")
        return self
