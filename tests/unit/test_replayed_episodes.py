"""What benchmarks replay: `benchmarks/recorded.py`, through the rollout of `benchmarks/rollout.py`."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from rolecast.data.records import write_corpus
from rolecast.errors import RolecastError
from rolecast.methods.decor import Decor, DecorConfig
from rolecast.ports import Sampling
from rolecast.rollout.render import Renderer
from rolecast.wire.coordinator import pack
from rolecast.world.tokenizer import demo_tokenizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
METHOD = Decor(DecorConfig(prompts="compact", max_tokens=512, condenser="extractive"))
RENDERER = Renderer(demo_tokenizer(tags=METHOD.tags), METHOD.tags)
ARGS = argparse.Namespace(context=1024, in_flight=4)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("recorded")


@pytest.fixture
def rollout(recorded: ModuleType) -> ModuleType:
    return importlib.import_module("rollout")


def test_our_rollout_makes_the_recorded_calls_with_their_lengths(recorded: ModuleType, rollout: ModuleType) -> None:
    record = recorded.from_teacher(METHOD, RENDERER, 3, 2, 7, 1024)
    done = rollout.rollouts_of(ARGS, METHOD, RENDERER, record, rollout.Instant()).collect(record.episodes, Sampling(), "train")
    assert record.turns > 2 * len(record.episodes)
    assert {len(action.ids) for t in done for action in t.actions} == {7}
    assert [[action.text for action in t.actions] for t in done] == [[call.text for call in calls] for calls in record.calls]
    assert [t.status for t in done] == ["ok"] * 6


def test_a_prompt_that_is_not_the_recorded_one_is_an_error(recorded: ModuleType, rollout: ModuleType) -> None:
    record = recorded.from_teacher(METHOD, RENDERER, 1, 2, 0, 1024)
    record.calls[0][0] = replace(record.calls[0][0], ids=(1, 2))
    record.calls[1][0] = replace(record.calls[1][0], ids=(1, 2))
    with pytest.raises(RolecastError, match="was asked otherwise than it is recorded"):
        rollout.rollouts_of(ARGS, METHOD, RENDERER, record, rollout.Instant()).collect(record.episodes, Sampling(), "train")


def test_episodes_that_a_stage_kept_are_replayed_with_their_own_lengths(recorded: ModuleType, rollout: ModuleType, tmp_path: Path) -> None:
    record = recorded.from_teacher(METHOD, RENDERER, 3, 2, 9, 1024)
    done = rollout.rollouts_of(ARGS, METHOD, RENDERER, record, rollout.Instant()).collect(record.episodes, Sampling(), "train")
    (tmp_path / "step-000001").mkdir()
    (tmp_path / "step-000001" / "trajectories.json.gz").write_bytes(pack(done))
    found = {passage.id: passage for passages in record.found.values() for passage in passages}
    write_corpus(tmp_path / "corpus.jsonl", found.values())
    kept = sum(len(t.retrieved) == t.searches * METHOD.k for t in done)
    again = recorded.from_shards(METHOD, RENDERER, [tmp_path], tmp_path, 0, 1024)
    assert 0 < kept == len(again.calls)
    asked = [[(call.ids, call.text, call.length) for call in calls] for calls in record.calls]
    assert all([(call.ids, call.text, call.length) for call in calls] in asked for calls in again.calls)
