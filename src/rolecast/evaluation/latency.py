"""How long questions took, and how large contexts became, by role.

Times stand beside an evaluation's result, in a file of their own: the result is the same whenever it is made again, and times never are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rolecast.rollout.clock import ANSWER, SEARCH

FILE = "latency.json"
PERCENTILES = {"p50": 50.0, "p95": 95.0}

Seconds = Mapping[str, float]  # of one question: to its answer, of each role, of its searches


def latency(spent: Sequence[Seconds], in_flight: int) -> dict[str, Any]:
    """Percentiles of the seconds to an answer, and of what each role and the searches took of a question in which they occur, linear between
    neighbours. `in_flight`: episodes at once, which wait for each other: a question that is asked alone is answered sooner. Of branches that
    are played at once roles may take more than the question.
    """
    parts = dict.fromkeys(name for one in spent for name in one)
    found = {part: _percentiles([one[part] for one in spent if part in one]) for part in parts}
    roles = {name: found[name] for name in parts if name not in (ANSWER, SEARCH)}
    whole: dict[str, Any] = {name: found[name] for name in (ANSWER, SEARCH) if name in found}
    return {"in_flight": in_flight, **whole, "roles": roles}


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    return {"n": len(seconds), **{name: round(float(np.percentile(seconds, at)), 4) for name, at in PERCENTILES.items()}}


def read_result(folder: Path) -> dict[str, Any]:
    """An evaluation's result, with its times where they were kept."""
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    times = folder / FILE
    return {**result, **({"latency": json.loads(times.read_text())} if times.exists() else {})}


def parts_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for the question, each role and the searches: `p50` and `p95` in seconds, None where no times were kept, and `context`, the tokens
    of the role's longest thread."""
    times = result.get("latency") or {}
    contexts = (result.get("cost") or {}).get("context") or {}
    roles = dict.fromkeys([*contexts, *times.get("roles", {})])
    told = [("question", times.get(ANSWER)), *((role, times.get("roles", {}).get(role)) for role in roles), ("searches", times.get(SEARCH))]
    return [
        {"part": part, **{name: (found or {}).get(name) for name in PERCENTILES}, "context": contexts.get(part)}
        for part, found in told
        if found or part in contexts
    ]
