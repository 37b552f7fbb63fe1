"""Many requests at a rate, to an endpoint that fails in every way: each is scored rightly or unscored with a reason, and in good time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scripted import TWO_HOPS

from rolecast.judge.app import make_judge
from rolecast.judge.client import HttpJudge
from rolecast.judge.openai import OpenAIJudge
from rolecast.judge.pace import Pace
from rolecast.judge.settings import JudgeSettings
from rolecast.ports import Judge, Verdict
from tests.faulty import FAULTS, GARBAGE, Faulty, faulty
from tests.live import serving


def right(prompt: str) -> bool:
    return '"right ' in prompt


def inputs(number: int) -> dict[str, Any]:
    return {"question": TWO_HOPS.text, "gold": TWO_HOPS.gold, "prediction": f"{'right' if number % 3 else 'wrong'} {number}"}


async def judged(judge: Judge, count: int) -> list[Verdict]:
    return await asyncio.gather(*(judge.judge("answer", inputs(number)) for number in range(count)))


def require_sound(found: list[Verdict], stub: Faulty) -> Counter[str]:
    """None is wrong, none is without reason. Counts by outcome."""
    outcomes = Counter[str]()
    for number, verdict in enumerate(found):
        assert verdict.score in (None, float(number % 3 > 0)), (number, verdict)
        assert verdict.reason
        outcomes["unscored" if verdict.score is None else "scored"] += 1
    assert outcomes["unscored"] <= stub.given["garbage"] + 0.01 * len(found)  # what is left unscored is what nothing can mend
    return outcomes


def run(count: int, rate: float, timeout: float, patience: float, concurrency: int, faults: Mapping[str, float] = FAULTS) -> dict[str, Any]:
    stub = Faulty(right, faults=faults)
    with faulty(stub) as url:
        judge = OpenAIJudge(url, "m", timeout=timeout, patience=patience, concurrency=concurrency, pace=Pace(requests=rate))

        async def timed() -> tuple[list[Verdict], float]:
            begun = time.monotonic()
            found = await judged(judge, count)
            took = time.monotonic() - begun
            await judge.close()
            return found, took

        found, wall = asyncio.run(timed())
    outcomes = require_sound(found, stub)
    sent = judge.endpoint.sent
    assert sent == len(stub.arrived)
    arrived = np.asarray(stub.arrived)
    for seconds in (1, 10):  # what a process missed that was held up, it sends at once: as many as are under way, at most
        busiest = int(np.max(np.searchsorted(arrived, arrived + seconds) - np.arange(len(arrived))))
        assert busiest <= rate * seconds + concurrency, (seconds, busiest)
    return {"wall": wall, "sent": sent, "bound": 1.3 * sent / rate, "given": dict(stub.given), **outcomes}


def test_a_small_load_at_a_rate() -> None:
    told = run(500, 100.0, timeout=1.5, patience=5.0, concurrency=32, faults={**FAULTS, "garbage": 0.04})
    assert told["wall"] <= told["bound"] + 5.0, told  # a request that begins last may take its whole patience
    assert set(told["given"]) == {*FAULTS, "none"}, told
    assert told["given"]["garbage"] >= len(GARBAGE), told  # each kind once


def test_a_small_load_through_the_service() -> None:
    stub = Faulty(right)
    with faulty(stub) as url:
        model = OpenAIJudge(url, "m", timeout=1.5, patience=5.0, concurrency=32, pace=Pace(requests=100.0))
        with serving(*make_judge(JudgeSettings(), model)) as judge_url:

            async def all_of() -> list[Verdict]:
                judge = HttpJudge(judge_url, concurrency=64)
                found = await judged(judge, 300)
                await judge.close()
                return found

            require_sound(asyncio.run(all_of()), stub)


@pytest.mark.slow
def test_ten_thousand_requests_at_a_hundred_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    """5 % 429, 2 % 500, 1 % garbage, 1 % hangs, 1 % trickles; 5 s a try, 15 s a request."""
    told = run(10_000, 100.0, timeout=5.0, patience=15.0, concurrency=64)
    with capsys.disabled():
        print(f"\n{told}")
    assert told["scored"] + told["unscored"] == 10_000
    assert told["wall"] <= told["bound"], told
