"""A real worker over two runs, one after the other: a tiny model of each, real services, and the loop that changes between them."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import generate_latest

from rolecast.config import RunConfig, make_config
from rolecast.coordinator.process import Served, child_coordinator
from rolecast.judge.app import make_judge
from rolecast.judge.settings import JudgeSettings
from rolecast.learner.backends import trained_weights
from rolecast.leasing import Group, TeamVersion
from rolecast.ports import Sampling
from rolecast.retriever.app import make_retriever
from rolecast.retriever.index import build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.rollout import app, search
from rolecast.rollout import loop as module
from rolecast.rollout.remote import RemoteTeam
from rolecast.rollout.settings import RolloutSettings
from rolecast.service.state import Service
from rolecast.stages.publish import rules
from rolecast.store.artifact import writing
from rolecast.store.local import LocalStore
from rolecast.types import Gold, Passage, Question, Version
from rolecast.weights.settings import LoraConfig
from rolecast.weights.versions import KIND, write_version
from rolecast.wire.coordinator import RunInfo
from tests.live import serving
from tests.tiny import TOKENIZER, tiny_model, tiny_team
from tests.weed import free_ports

KEY = "a secret of this release"
ASKED = Question("q", "Who is the mentor of Brol Tan?", Gold(("Vrek Stom",)))


def run_with_a_version(folder: Path, seed: int) -> tuple[LocalStore, TeamVersion]:
    """A base of its own and an adapter over it, under the same keys as every run's."""
    store = LocalStore(folder / "store")
    with writing(folder / "base", "model", {}) as partial:
        tiny_model(seed=seed, scale=5.0).save_pretrained(partial)
        TOKENIZER.save_pretrained(partial)
    store.publish(folder / "base", "sft/model")
    lora = LoraConfig(rank=2)
    team, mirror = (tiny_team(seed=seed, lora=lora, scale=5.0) for _ in range(2))
    with torch.no_grad():
        for name, parameter in team.trained("shared"):
            if "lora_B" in name:
                parameter += 0.05
    version = Version("demo", 1, 1, "sft/model", {"shared": "shared"})
    with writing(folder / "version", KIND, {"version": str(version)}) as partial:
        write_version(team, ["shared"], version, trained_weights(team), partial, mirror)
    store.publish(folder / "version", "versions/rl/0001.000001")
    return store, TeamVersion(str(version), "versions/rl/0001.000001")


def test_each_run_is_played_with_its_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAP", 0.05)
    monkeypatch.setattr(search, "AWAY", (0.05, 0.2))
    monkeypatch.setenv("ROLECAST_RELEASE_KEY", KEY)
    monkeypatch.setenv("ROLECAST_COORDINATORS", str(tmp_path / "coordinators"))
    build_index([Passage("p", "", "The mentor of Brol Tan is Vrek Stom.")], tmp_path / "index", "bm25")
    decor: dict[str, Any] = {"name": "decor", "prompts": "compact", "condenser": "extractive", "max_tokens": 8}
    config = make_config({"method": decor, "name": "demo", "threads": 1}, "here")
    with (
        serving(*make_retriever(RetrieverSettings(index=str(tmp_path / "index"), topk=1))) as retriever,
        serving(*make_judge(JudgeSettings())) as judge,
    ):
        settings = RolloutSettings(
            coordinators=str(tmp_path / "coordinators"), retriever_url=retriever, judge_url=judge, workdir=str(tmp_path / "work"), name="w"
        )
        loop = app.make_loop(settings, Service("rollout"), KEY)
        loop.service.status = "ready"
        thread = threading.Thread(target=loop.run, daemon=True)
        thread.start()
        for seed in (1, 2):
            sampled = played(config, tmp_path / f"run-{seed}", seed, (retriever, judge), monkeypatch)
            assert sampled == {"demo/1.1"}
            assert len(list((tmp_path / "work" / "w").iterdir())) == 1
        assert loop.service.failure is None
        told = generate_latest(loop.service.registry).decode()
        spent = {kind: float(re.findall(rf'rolecast_rollout_wait_seconds{{on="{kind}"}} (.*)', told)[0]) for kind in ("sample", "search")}
        assert spent["sample"] > 0
        assert f"rolecast_rollout_search_share {loop.waits.searching}" in told
        loop.over.set()
        thread.join(20)
        assert not thread.is_alive()


def played(config: RunConfig, folder: Path, seed: int, services: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Opens the coordinator of a run, has two groups played, and says by which versions. Its worker has verified their canaries."""
    store, version = run_with_a_version(folder, seed)
    info = RunInfo(run="demo", attempt=1, config=config.model_dump_json(), stage="rl", store=str(store.root), version=version)
    own = RemoteTeam.of(info, *services, folder / "own")
    own.meet()
    own.load(version)
    [port] = free_ports(1)
    monkeypatch.setenv("ROLECAST_COORDINATOR_PORT", str(port))
    monkeypatch.setenv("ROLECAST_COORDINATOR_URL", f"http://127.0.0.1:{port}")
    served = Served("demo", 1, info.config, "rl", info.store, 10.0, 2)
    with child_coordinator(served, own.handshake, rules(own.method, tiny_team(seed=seed))) as child:
        child.control.publish(version)
        child.control.add([Group(f"g{number}", replace(ASKED, id=f"q{number}"), (0, 1), "train", Sampling(1.0)) for number in range(2)])
        done: dict[str, Any] = {}
        deadline = time.monotonic() + 60
        while len(done) < 2:
            assert time.monotonic() < deadline, "the groups are not played"
            found, abandoned = child.control.collected(list(done))
            assert not abandoned
            done |= found
        return {action.version for group in done.values() for t in group for thread in t.threads for action in thread.actions}
