"""Endpoints that are no part of a team: what a config says of one, and where its key comes from. A key stands in no config."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, field_validator, model_validator

from rolecast.errors import InputError
from rolecast.identity import HOW
from rolecast.reading import describe, read_mapping

EndpointName = Annotated[str, Field(pattern="^[a-z][a-z0-9_-]*$")]
OURS = ("model", "messages", "stream", "stop", "n")  # keys of a request that are not the config's to change


class ExternalConfig(BaseModel):
    """An OpenAI-compatible endpoint: roles whose slot is external:NAME speak through it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    url: str = Field(json_schema_extra=HOW)  # its address up to and with /v1
    model: str = Field(min_length=1)  # the model's name there
    # keys of a request's body that this endpoint wants otherwise ({max_tokens: null, max_completion_tokens: 800}); null leaves one out
    request: dict[str, Any] = {}
    key_env: str | None = Field(None, min_length=1, json_schema_extra=HOW)  # the environment variable that holds its key
    key_file: str | None = Field(None, min_length=1, json_schema_extra=HOW)  # or the file that does
    concurrency: int = Field(16, ge=1, json_schema_extra=HOW)  # requests at once
    timeout: float = Field(60.0, gt=0, json_schema_extra=HOW)  # seconds of one try
    patience: float = Field(120.0, ge=0, json_schema_extra=HOW)  # seconds of trying before an episode is given up

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        return plain_address(url, "up to and with /v1", "key_env, or a file in key_file")

    @field_validator("request")
    @classmethod
    def _not_ours(cls, request: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(set(request) & set(OURS)):
            raise ValueError(f"{taken[0]} is set for each request; leave it out")
        return request

    @model_validator(mode="after")
    def _one_key(self) -> ExternalConfig:
        if self.key_env and self.key_file:
            raise ValueError("key_env and key_file both say where the key is; give one")
        return self

    def key(self, name: str) -> str:
        """The key as it is now; "" where the endpoint takes none. `InputError` where it is not to be had."""
        return key_of(f"externals.{name}", self.key_env, self.key_file)


def plain_address(url: str, form: str, keys: str) -> str:
    """Without its last slash. ValueError for what is no http(s) address, or holds more. `form` of one; `keys`: where a key may be named."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"give an http(s) address, {form}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError(f"an address holds no user, key or query; name a variable with the key in {keys}")
    return url.rstrip("/")


def key_of(setting: str, variable: str | None, file: str | None = None) -> str:
    """The key as it is now; "" where none is named. `InputError` with the name of the `setting` where it is not to be had."""
    if variable:
        where, key = f"the environment variable {variable}", os.environ.get(variable, "")
    elif file:
        where, key = file, _read(file, setting)
    else:
        return ""
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(f"{setting}: {where} holds {'no key' if not key else 'what is no key'}; put the endpoint's key there")
    return key


class _Externals(RootModel[dict[EndpointName, ExternalConfig]]):
    """What a file of endpoints holds."""


def read_externals(file: str) -> dict[str, ExternalConfig]:
    """The endpoints of a YAML file, by name; none without a file. `InputError` for what is no such file."""
    if not file:
        return {}
    try:
        return _Externals.model_validate(read_mapping(Path(file), (), "file of endpoints")).root
    except ValidationError as error:
        raise InputError(f"{file}: {describe(error)}") from None


def _read(file: str, setting: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{setting}: its key file {file} cannot be read ({type(error).__name__}); see that it is there") from None
