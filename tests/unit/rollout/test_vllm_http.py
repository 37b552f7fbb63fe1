"""A vLLM server as an engine, over a stand-in: what it is asked, what is made of its answers, and what is not played."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from rolecast.errors import EngineError, ExternalError, InputError
from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.engines.settings import VllmHttpConfig
from rolecast.rollout.engines.vllm_http import VllmHttpEngine
from rolecast.service.state import Service
from rolecast.weights.canary import Canary
from rolecast.weights.placed import Placed
from rolecast.weights.versions import CanaryError
from tests.live import serving
from tests.tiny import RENDERER, TOKENIZER, tiny_model

CANARY = Canary((5, 6, 7), (-1.0, -2.0))


@dataclass
class Stand:
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=lambda: {"token_ids": [11, 12], "logprobs": {"token_logprobs": [-1.0, -0.5]}})
    off: float = 0.0
    status: int = 200

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append((request.url.path, body))
        self.headers = dict(request.headers)
        if request.url.path != "/v1/completions":
            return PlainTextResponse("Success", self.status)
        if body.get("prompt_logprobs") is not None:
            scored = [None, *({str(id): {"logprob": p + self.off}} for id, p in zip(CANARY.ids[1:], CANARY.logprobs, strict=True))]
            return JSONResponse({"choices": [{"prompt_logprobs": scored}]})
        return JSONResponse({"choices": [{"finish_reason": "length", **self.said}]}, self.status)


@pytest.fixture(scope="module")
def live() -> Iterator[tuple[str, list[Stand]]]:
    app, service, current = FastAPI(), Service("engine"), [Stand()]
    service.status = "ready"
    for path in ("/v1/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"):

        @app.post(path)
        async def answer(request: Request) -> Response:
            return await current[0].answer(request)

    with serving(app, service) as url:
        yield url, current


@pytest.fixture
def stand(live: tuple[str, list[Stand]]) -> Stand:
    live[1][0] = Stand()
    return live[1][0]


@pytest.fixture
def config(live: tuple[str, list[Stand]]) -> VllmHttpConfig:
    return VllmHttpConfig(name="vllm_http", url=live[0], model="base", patience=0)


@pytest.fixture
def placed(tmp_path: Path) -> Placed:
    tiny_model().save_pretrained(tmp_path / "base")
    slots = {"planner": tmp_path / "planner", "frozen": None}
    return Placed("run/1.0", tmp_path / "base", tmp_path / "base", slots, dict.fromkeys(slots, CANARY))


def loaded(config: VllmHttpConfig, placed: Placed) -> VllmHttpEngine:
    engine = VllmHttpEngine(config, RENDERER, "float32")
    engine.load(placed)
    return engine


def ask(engine: VllmHttpEngine, slot: str = "planner") -> Completion:
    async def run() -> Completion:
        async with engine:
            return await engine.generate(GenerateRequest((1, 2), slot, 8, ("stop",), Sampling(0.7, 0.9), 2**31 + 4, "t#0"))

    return asyncio.run(run())


def test_ids_go_in_and_out_and_every_parameter_is_set(stand: Stand, config: VllmHttpConfig, placed: Placed) -> None:
    completion = ask(loaded(config, placed), "frozen")
    assert (completion.ids, completion.logprobs, completion.finish) == ((11, 12), (-1.0, -0.5), "length")
    assert completion.text == RENDERER.decode((11, 12))
    path, body = stand.bodies[-1]
    assert (path, body["model"], body["prompt"]) == ("/v1/completions", "base", [1, 2])
    assert (body["temperature"], body["top_p"], body["seed"], body["max_tokens"]) == (0.7, 0.9, 4, 8)
    assert (body["stop"], body["stop_token_ids"]) == (["stop"], [TOKENIZER.eos_token_id])
    assert (body["top_k"], body["min_p"], body["repetition_penalty"], body["return_token_ids"]) == (0, 0.0, 1.0, True)


def test_adapters_are_loaded_by_a_name_of_their_own_and_the_old_ones_taken_away(
    stand: Stand, config: VllmHttpConfig, placed: Placed
) -> None:
    engine = loaded(config, placed)
    engine.load(placed)
    names = [body["lora_name"] for path, body in stand.bodies if path == "/v1/load_lora_adapter"]
    assert len(set(names)) == 2
    assert all(name.startswith("run/1.0:planner#") for name in names)
    assert stand.bodies[-1] == ("/v1/unload_lora_adapter", {"lora_name": names[0]})
    ask(engine)
    assert stand.bodies[-1][1]["model"] == names[1]


def test_an_adapter_that_is_served_is_named_and_not_loaded(stand: Stand, config: VllmHttpConfig, placed: Placed) -> None:
    ask(loaded(config.model_copy(update={"slots": {"planner": "ours"}}), placed))
    assert stand.bodies[-1][1]["model"] == "ours"
    assert {path for path, _ in stand.bodies} == {"/v1/completions"}


def test_other_weights_are_not_played(stand: Stand, config: VllmHttpConfig, placed: Placed) -> None:
    engine = loaded(config, placed)
    stand.off = 0.1
    with pytest.raises(CanaryError, match=r"slot planner: .* differ by 1.0e-01 from those of the run's weights"):
        engine.load(placed)
    with pytest.raises(EngineError, match="no version whose weights are verified"):
        ask(engine)
    narrow = VllmHttpEngine(config.model_copy(update={"dtype": "bfloat16"}), RENDERER, "float32")
    stand.off = 0.05
    narrow.load(placed)


def test_a_server_that_loads_no_adapters_is_told_how_to(stand: Stand, config: VllmHttpConfig, placed: Placed) -> None:
    stand.status = 404
    with pytest.raises(EngineError, match=r"start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING, or name it in engine\.slots"):
        loaded(config, placed)


@pytest.mark.parametrize(
    "said",
    [
        {"text": "hello"}, {"token_ids": [11], "logprobs": None}, {"token_ids": [11, 12], "logprobs": {"token_logprobs": [-1.0]}},
        {"token_ids": [11], "logprobs": {"token_logprobs": [None]}},
    ],
)  # fmt: skip
def test_an_answer_of_another_shape_costs_its_episode(stand: Stand, config: VllmHttpConfig, placed: Placed, said: dict[str, Any]) -> None:
    engine = loaded(config, placed)
    stand.said = said
    with pytest.raises(ExternalError, match="t#0"):
        ask(engine)


def test_a_server_that_fails_costs_the_episode_and_may_come_back(stand: Stand, config: VllmHttpConfig, placed: Placed) -> None:
    engine = loaded(config, placed)
    stand.status = 503
    with pytest.raises(ExternalError, match="status 503"):
        ask(engine)
    assert engine.failure is None
    stand.status = 200
    assert ask(engine).ids == (11, 12)


def test_the_key_is_sent_and_one_that_is_missing_is_said_at_once(
    stand: Stand, config: VllmHttpConfig, placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed = config.model_copy(update={"key_env": "SERVER_KEY"})
    with pytest.raises(InputError, match="SERVER_KEY holds no key"):
        VllmHttpEngine(keyed, RENDERER, "float32")
    monkeypatch.setenv("SERVER_KEY", "sk-1")
    ask(loaded(keyed, replace(placed, adapters={"frozen": None})), "frozen")
    assert stand.headers["authorization"] == "Bearer sk-1"
