"""A worker's team: adapters come over one base, which also plays the frozen roles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rolecast.config import RunConfig, make_config
from rolecast.errors import InputError
from rolecast.judge.app import make_judge
from rolecast.judge.settings import JudgeSettings
from rolecast.learner.backends import trained_weights
from rolecast.leasing import TeamVersion
from rolecast.loops import OwnLoop
from rolecast.methods.decor import DecorConfig
from rolecast.methods.registry import judge_prompts
from rolecast.retriever.app import make_retriever
from rolecast.retriever.index import build_index
from rolecast.retriever.settings import RetrieverSettings
from rolecast.rollout import remote
from rolecast.rollout.remote import RemoteTeam
from rolecast.store.artifact import digest_of, writing
from rolecast.store.local import LocalStore
from rolecast.types import Passage, Version
from rolecast.weights.adapters import is_adapter
from rolecast.weights.canary import Canary, canary
from rolecast.weights.placed import Placed
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import Team
from rolecast.weights.versions import KIND, CanaryError, write_version
from rolecast.wire.coordinator import RunInfo
from tests.live import serving
from tests.tiny import TOKENIZER, tiny_model, tiny_team

BASE = "sft/model"


def published(store: LocalStore, folder: Path, step: int, lora: bool, claim: float | None = None) -> tuple[TeamVersion, Team]:
    """A version whose weights are moved by its step; `claim` writes another step's canary."""
    settings = LoraConfig(rank=2) if lora else None
    team = tiny_team(lora=settings, scale=5.0)
    with torch.no_grad():
        for name, parameter in team.trained("shared"):
            if "lora_B" in name or (not lora and "down_proj" in name):
                parameter += 0.05 * step
    version = Version("run", 1, step, BASE, {"shared": "shared" if lora else None})
    made, key = folder / str(version).replace("/", "-"), f"versions/rl/0001.{step:06d}"
    with writing(made, KIND, {"version": str(version)}) as partial:
        write_version(team, ["shared"], version, trained_weights(team), partial, tiny_team(lora=settings, scale=5.0))
        if claim is not None:
            text = (partial / "team.json").read_text()
            first = str(of(team).logprobs[0])
            assert first in text
            (partial / "team.json").write_text(text.replace(first, str(claim)))
    store.publish(made, key)
    return TeamVersion(str(version), key), team


def of(team: Team) -> Canary:
    return canary(team.model("shared"), TOKENIZER)


def spoken(team: RemoteTeam, slot: str) -> Canary:
    """What answers for a slot in the engine, as it does before every forward pass."""
    speaker: Any = team.collector.engine._decoders[slot]._model  # type: ignore[attr-defined]
    return canary(speaker(), TOKENIZER)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    with writing(tmp_path / "base", "model", {}) as partial:
        tiny_model(scale=5.0).save_pretrained(partial)
        TOKENIZER.save_pretrained(partial)
    made = LocalStore(tmp_path / "store")
    made.publish(tmp_path / "base", BASE)
    return made


def team_of(store: LocalStore, work: Path, condenser: str) -> RemoteTeam:
    config = RunConfig(method=DecorConfig(prompts="compact", condenser=condenser, max_tokens=8))  # type: ignore[arg-type]
    info = RunInfo(run="run", attempt=1, config=config.model_dump_json(), stage="rl", store=str(store.root), version=None)
    return RemoteTeam.of(info, "http://127.0.0.1:9", "http://127.0.0.1:9", work)


@pytest.mark.parametrize("lora", [True, False])
def test_every_version_answers_with_its_own_weights(store: LocalStore, tmp_path: Path, lora: bool) -> None:
    team = team_of(store, tmp_path / "work", "extractive")
    for step in (1, 2):
        version, model = published(store, tmp_path, step, lora)
        team.load(version)
        folder = tmp_path / "work" / version.artifact
        assert is_adapter(folder / "slots" / "shared") == lora
        assert spoken(team, "shared").logprobs == pytest.approx(of(model).logprobs, abs=1e-5)
        assert team.collector.engine.version == version.name
        assert (tmp_path / "work" / BASE).exists() == lora  # whole models need no base
    assert not (tmp_path / "work" / "versions" / "rl" / "0001.000001").exists()


@pytest.mark.parametrize("lora", [True, False])
def test_the_base_plays_the_frozen_roles(store: LocalStore, tmp_path: Path, lora: bool) -> None:
    team = team_of(store, tmp_path / "work", "model")
    for step in (1, 2):
        version, model = published(store, tmp_path, step, lora)
        team.load(version)
        assert set(team.collector.engine._decoders) == {"shared", "frozen"}  # type: ignore[attr-defined]
        assert spoken(team, "frozen").logprobs == pytest.approx(canary(tiny_model(scale=5.0), TOKENIZER).logprobs)
        assert spoken(team, "shared").logprobs == pytest.approx(of(model).logprobs, abs=1e-5)
        assert spoken(team, "shared").logprobs != pytest.approx(spoken(team, "frozen").logprobs)


def test_an_adapter_that_computes_something_else_is_refused(store: LocalStore, tmp_path: Path) -> None:
    team = team_of(store, tmp_path / "work", "extractive")
    good, model = published(store, tmp_path, 1, lora=True)
    team.load(good)
    bad, _ = published(store, tmp_path, 2, lora=True, claim=-0.123)
    with pytest.raises(CanaryError, match="differ by"):
        team.load(bad)
    team.load(good)  # its weights are gone from memory by then
    assert spoken(team, "shared").logprobs == pytest.approx(of(model).logprobs, abs=1e-5)


@pytest.mark.parametrize("kind", ["bm25", "external"])
def test_a_worker_says_what_its_services_are(store: LocalStore, tmp_path: Path, kind: str) -> None:
    build_index([Passage("p", "", "text")], tmp_path / "index", "bm25")
    config = make_config({"retriever": {"kind": kind, "patience": 7}, "judge": {"patience": 9}}, "here")
    version, _ = published(store, tmp_path, 1, lora=False)
    info = RunInfo(run="run", attempt=1, config=config.model_dump_json(), stage="rl", store=str(store.root), version=version)
    settings = JudgeSettings(judge_backend="openai", judge_openai_url="http://127.0.0.1:9/v1", judge_openai_model="model-a")
    with (
        serving(*make_retriever(RetrieverSettings(index=str(tmp_path / "index"), topk=1))) as retriever,
        serving(*make_judge(settings)) as judge,
    ):
        team = RemoteTeam.of(info, retriever, judge, tmp_path / "work")
        team.meet()
        team.load(version)
    digest = digest_of((tmp_path / "index" / "manifest.json").read_bytes())
    assert team.handshake.index == ("external" if kind == "external" else f"bm25 {digest}")
    asked = ["answer", "decor.answerer", "decor.filter", "decor.planner"]
    assert team.handshake.judge == " ".join(["model-a", *(f"{name}:{judge_prompts()[name]}" for name in asked)])
    assert team.handshake.config == config.fingerprint
    assert (team.retriever._client._patience, team.judge._client._patience) == (7, 9)  # type: ignore[attr-defined]


class Disk:
    """An engine that reads weights itself, and refuses what it is told to."""

    def __init__(self) -> None:
        self.version, self.branches, self.closed = "", 0, 0
        self.given: list[Placed] = []
        self.refuses = False

    def load(self, placed: Placed) -> None:
        if self.refuses:
            raise CanaryError("its log-probs differ")
        assert all(folder is None or is_adapter(folder) for folder in placed.adapters.values())
        assert (placed.base / "config.json").is_file()
        self.given.append(placed)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("lora", [True, False])
def test_an_engine_that_reads_its_weights_is_given_every_version_as_files(
    store: LocalStore, tmp_path: Path, lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No model is loaded in this process: the engine's own log-probs are held to the published ones."""
    disk = Disk()
    homes: list[OwnLoop] = []
    monkeypatch.setattr(remote, "disk_engine", lambda config, renderer, home: (homes.append(home), disk)[1])
    team = team_of(store, tmp_path / "work", "extractive")
    for step in (1, 2):
        version, model = published(store, tmp_path, step, lora)
        team.load(version)
        assert team.collector.runner is homes[0].runner, "it is asked from another loop than it lives in"
        given = disk.given[-1]
        folder = tmp_path / "work" / version.artifact
        assert given.version == version.name == team.collector.engine.version
        assert given.adapters == {"shared": folder / "slots" / "shared" if lora else None}
        assert given.base == (tmp_path / "work" / BASE if lora else folder / "slots" / "shared")
        assert given.canaries["shared"].logprobs == pytest.approx(of(model).logprobs, abs=1e-5)
        team.load(version)
    assert len(disk.given) == 2
    assert team._team is None
    disk.refuses = True
    bad, _ = published(store, tmp_path, 3, lora)
    with pytest.raises(CanaryError):
        team.load(bad)
    disk.refuses = False
    team.load(version)  # what it had is not believed to be there
    assert len(disk.given) == 3
    loop = homes[0].runner.get_loop()
    team.close()
    assert disk.closed == 1
    assert loop.is_closed()


ONE_OFF: dict[str, Any] = {
    "model": {"lora": {"rank": 2}}, "engine": {"name": "vllm"}, "method": {"name": "decor", "condenser": "extractive"}, "stages": {"rl": {"staleness": 1}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("overlaps", "other"),
    [
        (True, {}),
        (False, {"stages": {"rl": {"staleness": 0}}}),
        (False, {"model": {"lora": None}}),
        (False, {"engine": {"name": "transformers"}}),
        (False, {"stages": {"rl": {"staleness": 1, "adapters": False}}}),
    ],
)
def test_versions_overlap_where_vllm_keeps_the_adapters_of_the_one_before(
    store: LocalStore, tmp_path: Path, overlaps: bool, other: dict[str, Any]
) -> None:
    config = make_config({**ONE_OFF, **other}, "here")
    info = RunInfo(run="run", attempt=1, config=config.model_dump_json(), stage="rl", store=str(store.root), version=None)
    assert RemoteTeam.of(info, "http://127.0.0.1:9", "http://127.0.0.1:9", tmp_path / "work").overlaps is overlaps


def test_files_of_a_version_stay_as_long_as_its_adapters_speak(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    monkeypatch.setattr(remote, "disk_engine", lambda config, renderer, home: disk)
    info = RunInfo(
        run="run", attempt=1, config=make_config(ONE_OFF, "here").model_dump_json(), stage="rl", store=str(store.root), version=None
    )
    team = RemoteTeam.of(info, "http://127.0.0.1:9", "http://127.0.0.1:9", tmp_path / "work")
    there = []
    for step in (1, 2, 3):
        version, _ = published(store, tmp_path, step, lora=True)
        team.load(version)
        there.append(sorted(path.name for path in (tmp_path / "work" / "versions" / "rl").iterdir()))
    assert there == [["0001.000001"], ["0001.000001", "0001.000002"], ["0001.000002", "0001.000003"]]


def test_a_frozen_role_is_held_to_the_base_s_own_canary(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    monkeypatch.setattr(remote, "disk_engine", lambda config, renderer, home: disk)
    version, _ = published(store, tmp_path, 1, lora=True)
    team_of(store, tmp_path / "work", "model").load(version)
    assert disk.given[0].adapters["frozen"] is None
    assert disk.given[0].canaries["frozen"].logprobs == pytest.approx(canary(tiny_model(scale=5.0), TOKENIZER).logprobs, abs=1e-5)


def test_whole_models_of_several_slots_are_refused(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "disk_engine", lambda config, renderer, home: Disk())
    version, _ = published(store, tmp_path, 1, lora=False)
    with pytest.raises(InputError, match=r"slot shared is a whole model, and so are others of frozen, shared; .* set model.lora"):
        team_of(store, tmp_path / "work", "model").load(version)
