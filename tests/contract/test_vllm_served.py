"""Adapters and canaries at a real vLLM server."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rolecast.errors import EngineError
from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.engines.settings import VllmHttpConfig
from rolecast.rollout.engines.vllm_http import VllmHttpEngine
from rolecast.types import Slot
from rolecast.weights.team import FROZEN
from rolecast.weights.versions import CanaryError
from tests.tiny import RENDERER
from tests.vllm_engine import DTYPE, Version, close, needs_vllm, server

pytestmark = needs_vllm
PROMPT = RENDERER.encode("Who is the mentor of Bak Bam?")
SLOTS = ("planner", "answerer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with server(Version(folder, 0, 1).base, folder / "log") as url:
        yield url


def engine(url: str, **slots: str) -> VllmHttpEngine:
    return VllmHttpEngine(VllmHttpConfig(name="vllm_http", url=url, model="base", slots=slots), RENDERER, DTYPE)


def ask(engine: VllmHttpEngine, slot: Slot) -> Completion:
    return asyncio.run(engine.generate(GenerateRequest(PROMPT, slot, 8, (), Sampling(0.7), 3, slot)))


def agrees(of: Version, slot: Slot, completion: Completion) -> bool:
    everything = torch.tensor([[*PROMPT, *completion.ids]])
    with torch.no_grad():
        logprobs = torch.log_softmax(of.team.model(slot)(everything).logits[0].float() / 0.7, -1)[:-1]
    found = logprobs.gather(-1, everything[0, 1:, None]).squeeze(-1)[-len(completion.ids) :]
    return close(completion.logprobs, found)


def served(url: str) -> set[str]:
    with urllib.request.urlopen(f"{url}/v1/models") as reply:
        return {model["id"] for model in json.load(reply)["data"]}


def test_adapters_are_loaded_verified_and_taken_away_with_their_version(url: str, folder: Path) -> None:
    first, second = Version(folder, 0, 1), Version(folder, 0, 2)
    playing = engine(url)
    for version in (first, second):
        playing.load(version.placed())
        assert all(agrees(version, slot, ask(playing, slot)) for slot in (*SLOTS, FROZEN))
        names = {name.partition("#")[0] for name in served(url)}
        assert names == {"base", f"{version.name}:planner", f"{version.name}:answerer"}


def test_a_server_that_serves_other_weights_is_not_played(url: str, folder: Path) -> None:
    """By the names that a config gives: the base in a slot's place, or an adapter in another's."""
    placed = Version(folder, 0, 1).placed()
    for slots in ({"answerer": "base"}, {FROZEN: next(name for name in served(url) if ":" in name)}):
        playing = engine(url, **slots)
        with pytest.raises(CanaryError, match=f"slot {next(iter(slots))}"):
            playing.load(placed)
        with pytest.raises(EngineError, match="no version whose weights are verified"):
            ask(playing, "planner")


def test_a_name_that_is_not_served_is_told(url: str, folder: Path) -> None:
    with pytest.raises(EngineError, match="gave no log-probs of nobody"):
        engine(url, planner="nobody").load(Version(folder, 0, 1).placed())
