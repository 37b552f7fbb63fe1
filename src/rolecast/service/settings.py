"""Settings of a service: a closed pydantic model, filled from flags, then from ROLECAST_* variables of the same name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rolecast.errors import InputError

PREFIX = "ROLECAST_"


class ServiceSettings(BaseModel):
    """Field `max_body_bytes` is the flag `--max-body-bytes` and the variable ROLECAST_MAX_BODY_BYTES.

    `host`: "::" is all addresses, of IPv6 and IPv4, where the machine has both. `metrics_port`: /metrics and /openapi.json are there,
    and not at `port`. `tokens_file`: only who shows one of its tokens is answered.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "::"
    port: int = Field(8080, ge=0, le=65535)
    metrics_port: int | None = Field(None, ge=0, le=65535)
    tokens_file: str = ""
    max_body_bytes: int = Field(8 * 2**20, ge=1024)
    drain_seconds: float = Field(30.0, ge=0)  # how long requests in flight may take after SIGTERM
    log_level: Literal["debug", "info", "warning", "error"] = "info"


S = TypeVar("S", bound=BaseModel)


def read_settings(model: type[S], flags: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> S:
    """A flag wins over its variable; None and the empty string are unset. `InputError` names flag and variable."""
    values: dict[str, Any] = {}
    for name in model.model_fields:
        flag = flags.get(name)
        value = environ.get(variable(name), "") if flag is None else flag
        if value != "":
            values[name] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        if not name:  # of the whole model
            raise InputError(first["msg"].removeprefix("Value error, ")) from None
        flag_name = f"--{name.replace('_', '-')}"
        if first["type"] == "missing":
            raise InputError(f"{flag_name} is missing; give it or set {variable(name)}") from None
        raise InputError(f"{flag_name} ({variable(name)}) is {values[name]!r}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


def variable(name: str) -> str:
    return PREFIX + name.upper()
