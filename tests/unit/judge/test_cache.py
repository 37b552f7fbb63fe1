"""Verdicts that are paid for once, whoever of the replicas paid; nobody waits for the store that they share."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted import TWO_HOPS

from rolecast.errors import InputError, StoreError
from rolecast.judge.app import make_judge, open_judge
from rolecast.judge.cache import PREFIX, Cache, CachedJudge, key_of
from rolecast.judge.client import HttpJudge
from rolecast.judge.kinds import ANSWER
from rolecast.judge.settings import JudgeSettings
from rolecast.ports import JudgeInfo, Verdict
from rolecast.store.local import LocalStore
from rolecast.types import Gold
from tests.endpoint import answering
from tests.live import serving

INPUTS: dict[str, Any] = {"question": TWO_HOPS.text, "gold": TWO_HOPS.gold, "prediction": "Kel Dax"}


class Paid:
    """Counts what it is asked, and says something else each time."""

    def __init__(self, scores: list[float | None]) -> None:
        self.scores, self.asked = scores, 0

    async def info(self) -> JudgeInfo:
        return JudgeInfo("paid")

    async def judge(self, kind: str, inputs: Mapping[str, Any]) -> Verdict:
        self.asked += 1
        return Verdict(self.scores[min(self.asked, len(self.scores)) - 1], "because", 7)


def replica(place: Path, *scores: float | None) -> CachedJudge:
    return CachedJudge(Paid(list(scores)), Cache(LocalStore(place), "paid"), seconds=0.02)


def judged(judge: CachedJudge, **inputs: Any) -> Verdict:
    return asyncio.run(judge.judge("answer", {**INPUTS, **inputs}))


def asked(judge: CachedJudge) -> int:
    assert isinstance(judge.asked, Paid)
    return judge.asked.asked


def test_what_is_known_is_not_asked_again_and_costs_nothing(tmp_path: Path) -> None:
    judge = replica(tmp_path, 1.0, 0.0)
    assert [judged(judge), judged(judge)] == [Verdict(1.0, "because", 7), Verdict(1.0, "because", 0)]
    assert (asked(judge), judge.hits) == (1, 1)


@pytest.mark.parametrize("other", [{"prediction": "kel dax"}, {"question": "?"}, {"gold": Gold(("Kel Dax", "x"))}, {"prediction": None}])
def test_other_inputs_are_another_question(tmp_path: Path, other: dict[str, Any]) -> None:
    judge = replica(tmp_path, 1.0, 0.0)
    assert (judged(judge).score, judged(judge, **other).score) == (1.0, 0.0)


def test_what_the_kind_does_not_read_is_no_part_of_the_question(tmp_path: Path) -> None:
    judge = replica(tmp_path, 1.0, 0.0)
    assert [judged(judge).score, judged(judge, memory="m", future=[1]).score] == [1.0, 1.0]


def test_model_and_prompt_are_a_part_of_the_question(tmp_path: Path) -> None:
    prompt = tmp_path / "other.jinja"
    prompt.write_text("Is it?\nScore {{ mark }}: NO")
    keys = {key_of(model, kind, INPUTS) for model in ("a", "b") for kind in (ANSWER, replace(ANSWER, prompt=prompt))}
    assert len(keys) == 4


def test_unscored_is_asked_again(tmp_path: Path) -> None:
    judge = replica(tmp_path, None, 1.0)
    assert [judged(judge).score, judged(judge).score] == [None, 1.0]


def test_replicas_share_what_is_written_and_pay_twice_for_what_is_not(tmp_path: Path) -> None:
    first, second = replica(tmp_path, 1.0), replica(tmp_path, 0.0)
    assert [judged(first).score, judged(second).score] == [1.0, 0.0]  # a miss: nobody has written yet
    assert judged(first, prediction="x").score == 1.0
    first.cache.sync()
    second.cache.sync()
    assert judged(second, prediction="x").score == 1.0
    assert judged(second).score == 0.0  # what it found itself stays
    assert asked(second) == 1
    third = replica(tmp_path)
    third.cache.sync()
    assert (judged(third, prediction="x").score, asked(third)) == (1.0, 0)


def test_shards_are_appended_and_never_written_again(tmp_path: Path) -> None:
    judge = replica(tmp_path, 1.0)
    for prediction in ("a", "b", "c"):
        judged(judge, prediction=prediction)
        judge.cache.sync()
    judge.cache.sync()
    shards = [tmp_path / key for key in LocalStore(tmp_path).keys(PREFIX)]
    assert [len(shard.read_text().splitlines()) for shard in shards] == [1, 1, 1]


def test_another_models_verdicts_are_not_read(tmp_path: Path) -> None:
    judge = replica(tmp_path, 1.0)
    judged(judge)
    judge.cache.sync()
    other = CachedJudge(Paid([0.0]), Cache(LocalStore(tmp_path), "other"))
    other.cache.sync()
    assert judged(other).score == 0.0


def test_what_is_no_verdict_in_a_shard_is_left_out_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    judge = replica(tmp_path, 1.0)
    judged(judge)
    judge.cache.sync()
    [shard] = (tmp_path / key for key in LocalStore(tmp_path).keys(PREFIX))
    key = json.loads(shard.read_text())["key"]
    bad = ["{", "[]", "null", '{"key": 1, "score": 1, "reason": ""}', f'{{"key": "{key}", "score": 7, "reason": ""}}']
    bad += [f'{{"key": "{key}", "score": NaN, "reason": ""}}', f'{{"key": "{key}", "reason": ""}}']
    shard.write_text("\n".join(bad))
    other = replica(tmp_path, 0.0)
    other.cache.sync()
    assert judged(other).score == 0.0
    assert "7 lines are no verdicts" in caplog.text


class Away(LocalStore):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.away = True

    def put(self, key: str, data: bytes, *, absent: bool = False) -> bool:
        if self.away:
            raise StoreError("the store is away")
        return super().put(key, data, absent=absent)


def test_a_store_that_is_away_makes_verdicts_dearer_and_loses_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Away(tmp_path)
    judge = CachedJudge(Paid([1.0]), Cache(store, "paid"))
    with caplog.at_level(logging.WARNING):
        for prediction in ("a", "b"):
            assert judged(judge, prediction=prediction).score == 1.0
            judge.cache.sync()
    assert caplog.text.count("verdicts are not shared") == 1
    store.away = False
    judge.cache.sync()
    other = replica(tmp_path)
    other.cache.sync()
    assert [judged(other, prediction=prediction).score for prediction in ("a", "b")] == [1.0, 1.0]


def test_nobody_waits_for_a_store_that_hangs(tmp_path: Path) -> None:
    free = threading.Event()

    class Hanging(LocalStore):
        def keys(self, prefix: str) -> list[str]:
            free.wait(10)
            return super().keys(prefix)

    async def asked_meanwhile() -> float:
        judge = CachedJudge(Paid([1.0]), Cache(Hanging(tmp_path), "paid"), seconds=0.01)
        begun = time.monotonic()
        async with judge:
            await asyncio.sleep(0.05)
            await asyncio.gather(*(judge.judge("answer", {**INPUTS, "prediction": str(at)}) for at in range(20)))
            took = time.monotonic() - begun
            free.set()
        return took

    assert asyncio.run(asked_meanwhile()) < 2.0


def test_memory_is_bounded(tmp_path: Path) -> None:
    judge = CachedJudge(Paid([1.0]), Cache(LocalStore(tmp_path), "paid", most=3))
    for at in range(9):
        judged(judge, prediction=str(at))
    for at in (8, 7, 6):
        judged(judge, prediction=str(at))
    assert asked(judge) == 9
    judged(judge, prediction="0")
    assert asked(judge) == 10


def test_services_share_a_store(tmp_path: Path) -> None:
    with answering() as (endpoint_url, endpoint):
        settings = JudgeSettings(
            judge_backend="openai", judge_openai_url=endpoint_url, judge_openai_model="m", judge_cache=str(tmp_path / "store")
        )
        with serving(*make_judge(settings)) as url:
            assert asyncio.run(HttpJudge(url).judge("answer", INPUTS)).score == 1.0
            assert asyncio.run(HttpJudge(url).judge("answer", INPUTS)).score == 1.0
            assert "rolecast_judge_cached 1.0" in httpx.get(f"{url}/metrics").text
        with serving(*make_judge(settings)) as url:  # another process, as it were: what was new is written at the end
            deadline = time.monotonic() + 10
            while len(endpoint.bodies) == 1 and "rolecast_judge_cached 1.0" not in httpx.get(f"{url}/metrics").text:
                assert time.monotonic() < deadline
                time.sleep(0.3)
                asyncio.run(HttpJudge(url).judge("answer", INPUTS))
    assert len(endpoint.bodies) == 1


def test_a_store_that_cannot_be_is_refused_at_the_start() -> None:
    settings = JudgeSettings(
        judge_backend="openai", judge_openai_url="http://127.0.0.1:9/v1", judge_openai_model="m", judge_cache="ftp://x"
    )
    with pytest.raises(InputError, match="a store is a folder or s3"):
        open_judge(settings, {})
