"""Which search engine is asked, and how much of it."""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, model_validator

from rolecast.externals import key_of, plain_address
from rolecast.identity import HOW
from rolecast.reading import CLOSED

LIVE: Final = "live"  # the kind of a retriever that asks a search engine
Engine = Literal["serper", "jina", "google", "searxng", "opensearch"]
# Where those answer that are paid for by the request.
HOSTED: Final = {
    "serper": "https://google.serper.dev",
    "jina": "https://s.jina.ai",
    "google": "https://www.googleapis.com/customsearch",
}
FieldName = Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_.]*$")]


class LiveConfig(BaseModel):
    """A search engine that answers instead of an index. Its key stands in no config."""

    model_config = CLOSED

    engine: Engine  # serper, jina, google: hosted, paid for by the request; searxng, opensearch: one of your own
    url: str | None = Field(None, json_schema_extra=HOW)  # its address; null: the hosted one's own
    collection: str = Field("", pattern="^[A-Za-z0-9_.:*,-]*$")  # google: the engine's id (cx); opensearch: the index
    title_field: FieldName = "title"  # of an opensearch index
    text_field: FieldName = "text"  # of an opensearch index
    key_env: str | None = Field(
        None, min_length=1, json_schema_extra=HOW
    )  # the environment variable that holds its key; null: ENGINE_API_KEY
    key_file: str | None = Field(
        None, min_length=1, json_schema_extra=HOW
    )  # or the file that does; null: the one that ENGINE_API_KEY_FILE names
    budget: int | None = Field(None, ge=1, json_schema_extra=HOW)  # requests that it may be sent in all, tries among them
    cache_seconds: float = Field(86_400.0, ge=0)  # how long an answer, or a page, is taken for what the engine would say now
    concurrency: int = Field(16, ge=1, json_schema_extra=HOW)  # requests at once
    timeout: float = Field(10.0, gt=0, json_schema_extra=HOW)  # seconds of one try
    patience: float = Field(20.0, ge=0, json_schema_extra=HOW)  # seconds of trying a search
    page_seconds: float = Field(15.0, gt=0, json_schema_extra=HOW)  # seconds of fetching a page, with redirects and tries
    page_bytes: int = Field(2**20, ge=1024)  # larger pages are refused, also when they are that once they are unpacked
    page_characters: int = Field(20_000, ge=100)  # of a page's text; the rest is cut

    @model_validator(mode="after")
    def _whole(self) -> LiveConfig:
        if self.url is not None:
            plain_address(self.url, "of the search engine", "key_env, or a file in key_file")
        elif self.engine not in HOSTED:
            raise ValueError(f"{self.engine} is one of your own: give its address by url")
        if self.engine in ("google", "opensearch") and not self.collection:
            what = "the id of your Programmable Search Engine (cx)" if self.engine == "google" else "the index that is searched"
            raise ValueError(f"{self.engine} needs {what} in collection")
        if self.engine in HOSTED and self.budget is None:
            raise ValueError(f"{self.engine} is paid for by the request: say by budget how many it may be sent in all")
        if self.key_env and self.key_file:
            raise ValueError("key_env and key_file both say where the key is; give one")
        return self

    @property
    def address(self) -> str:
        return (self.url or HOSTED[self.engine]).rstrip("/")

    @property
    def name(self) -> str:
        """What two sides compare."""
        return f"{self.engine}:{self.collection}" if self.collection else self.engine

    def key(self) -> str:
        """As it is now; "" where the engine takes none. `InputError` where it is not to be had."""
        variable, file = self.key_env, self.key_file
        if not variable and not file:
            usual = f"{self.engine.upper()}_API_KEY"
            file = os.environ.get(f"{usual}_FILE")
            if self.engine in HOSTED or os.environ.get(usual):
                variable = None if file else usual
        return key_of("retriever.live", variable, file)
