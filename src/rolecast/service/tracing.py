"""Switches spans on for a process: `ROLECAST_TRACING=otlp`, with the extra `otel`."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rolecast import spans
from rolecast.errors import InputError
from rolecast.installed import needing

TRACING = "ROLECAST_TRACING"


def start(service: str, environ: Mapping[str, str] = os.environ) -> None:
    """`service`: how its spans name it. `InputError` for another value than otlp and off, or without the extra."""
    wanted = environ.get(TRACING, "").strip()
    if wanted in ("", "off"):
        return
    if wanted != "otlp":
        raise InputError(f"{TRACING}={wanted}: there are otlp and off")
    with needing("otel"):
        from rolecast.opentelemetry_spans import OpenTelemetry

        spans.use(OpenTelemetry.exporting(service))
