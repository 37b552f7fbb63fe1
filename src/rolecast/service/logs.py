"""Logs of a service: one JSON object a line, with the id of the request that caused it, and no secret."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
SECRETS = (  # variables whose values never reach a log
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "OPENAI_API_KEY",
    "ROLECAST_COORDINATOR_TOKEN",
    "ROLECAST_KFP_TOKEN",
    "ROLECAST_RELEASE_KEY",
    "ROLECAST_TOKEN",
)


class JsonFormatter(logging.Formatter):
    """`extra={"fields": {…}}` adds keys to the object."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if request_id := REQUEST_ID.get():
            entry["request_id"] = request_id
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return _without_secrets(json.dumps(entry, ensure_ascii=False, default=str))


def _without_secrets(line: str) -> str:
    for name in SECRETS:
        secret = os.environ.get(name)
        if secret:
            line = line.replace(json.dumps(secret, ensure_ascii=False)[1:-1], f"[{name}]")
    return line


def configure_logging(level: str, stream: TextIO | None = None) -> None:
    """Every logger of the process writes JSON to `stream` (stdout)."""
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("httpx", "httpcore", "urllib3"):  # a line for every request of a client
        logging.getLogger(name).setLevel(logging.WARNING)
