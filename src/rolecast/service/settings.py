"""Settings of a service: a closed pydantic model, filled from flags, then from ROLECAST_* variables of the same name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rolecast.errors import InputError

PREFIX = "ROLECAST_"


class ServiceSettings(BaseModel):
    """What every service has. Field `max_body_bytes` is the flag `--max-body-bytes` and the variable ROLECAST_MAX_BODY_BYTES."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field("::", description="Address to listen on; :: is all, of IPv6 and IPv4 where the machine has both.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port of /metrics and /openapi.json; by default that of the other routes."
    )
    tokens_file: str = Field("", description="File of bearer tokens, one a line; without it everybody may ask.")
    max_body_bytes: int = Field(8 * 2**20, ge=1024, description="Larger requests are refused.")
    drain_seconds: float = Field(30.0, ge=0, description="How long what is in flight may take after SIGTERM.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Less than that is not logged.")


S = TypeVar("S", bound=BaseModel)


def read_settings(model: type[S], flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> S:
    """A flag wins over its variable; None and the empty string are unset. `InputError` names flag and variable."""
    values: dict[str, Any] = {}
    for name in model.model_fields:
        given = flags.get(name)
        value = environ.get(variable(name), "") if given is None else given
        if value != "":
            values[name] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        if not name:  # of the whole model
            raise InputError(first["msg"].removeprefix("Value error, ")) from None
        if first["type"] == "missing":
            raise InputError(f"{flag(name)} is missing; give it or set {variable(name)}") from None
        raise InputError(f"{flag(name)} ({variable(name)}) is {values[name]!r}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    return PREFIX + name.upper()
