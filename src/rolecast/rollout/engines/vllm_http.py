"""`Engine` over a vLLM server: token ids in and out, adapters by the names of models. For agents and what is not trained.

What the server plays is held to the run's canaries before it answers, as in process. A server that serves other weights, or lost an
adapter, is refused. Its base is the one that it was started with: only adapters are loaded from here, where it can read their files and
allows it (VLLM_ALLOW_RUNTIME_LORA_UPDATING).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any, Literal, Self

from rolecast.errors import EngineError, ExternalError, RolecastError
from rolecast.externals import key_of
from rolecast.loops import LoopThread
from rolecast.ports import Completion, GenerateRequest
from rolecast.rollout.engines.external import SEEDS
from rolecast.rollout.engines.settings import VllmHttpConfig
from rolecast.rollout.engines.stops import cut
from rolecast.rollout.engines.vllm_api import PLAIN
from rolecast.rollout.render import Renderer
from rolecast.service.client import JsonClient
from rolecast.types import Slot
from rolecast.weights.canary import Canary, differs
from rolecast.weights.models import DTYPES, end_tokens
from rolecast.weights.placed import Placed
from rolecast.weights.versions import CanaryError

FIXED: Mapping[str, Any] = {**PLAIN, "return_token_ids": True}


class VllmHttpEngine:
    """`load` before anything is generated. A request that fails is an `ExternalError`: it costs its episode, and others go on."""

    def __init__(self, config: VllmHttpConfig, renderer: Renderer, dtype: str) -> None:
        self.version = ""
        self.branches = 0
        self.generated = 0
        self._config, self._renderer, self._dtype = config, renderer, DTYPES[config.dtype or dtype]
        self._headers()  # a key that is missing is said before anything is asked
        self._client = self._connected()
        self._ends: frozenset[int] = frozenset()
        self._speaking: dict[Slot, str] = {}  # by slot the name of a model there, of the verified version alone
        self._loaded: set[str] = set()  # names that were loaded from here

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    @property
    def failure(self) -> Exception | None:
        """None: a server that is away may come back."""
        return None

    async def failed(self) -> Exception:
        never: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        return await never

    def close(self) -> None:
        """The server is another's."""

    def _connected(self) -> JsonClient:
        c = self._config
        return JsonClient(
            "engine", c.url, timeout=c.timeout, patience=c.patience, headers=self._headers, variable="engine.url", concurrency=c.in_flight
        )

    def _headers(self) -> Mapping[str, str]:
        key = key_of("engine.key_env", self._config.key_env)
        return {"Authorization": f"Bearer {key}"} if key else {}

    async def generate(self, request: GenerateRequest) -> Completion:
        if not self._speaking:
            raise EngineError("the engine has no version whose weights are verified, so it plays none; load one")
        if request.slot not in self._speaking:
            raise KeyError(f"no weights for slot {request.slot!r}; loaded: {', '.join(self._speaking)}")
        body = {
            **FIXED, "model": self._speaking[request.slot], "prompt": list(request.ids), "max_tokens": request.max_tokens,
            "temperature": request.sampling.temperature, "top_p": request.sampling.top_p, "seed": request.seed % SEEDS,
            "stop": list(request.stop), "stop_token_ids": sorted(self._ends),
        }  # fmt: skip
        try:
            choice = (await self._client.post("/v1/completions", body))["choices"][0]
            sampled, said = tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])
        except RolecastError as error:
            raise ExternalError(str(error)) from error
        except (KeyError, IndexError, TypeError):
            raise ExternalError(
                f"engine at {self._config.url} answered {request.key} without token ids or log-probs; is it vLLM's?"
            ) from None
        return self._completion(request, sampled, said, str(choice.get("finish_reason")))

    def _completion(self, request: GenerateRequest, sampled: Sequence[int], said: Sequence[float], reason: str) -> Completion:
        count, text, stopped = cut(sampled, request.stop, self._ends, self._renderer.decode)
        self.generated += len(sampled)
        if len(said) != len(sampled) or not all(isinstance(one, int | float) and isfinite(one) for one in said):
            raise ExternalError(f"engine at {self._config.url} answered {request.key} with log-probs that are none; see its weights")
        finish: Literal["stop", "length"] = "stop" if stopped or reason == "stop" else "length"
        return Completion(tuple(sampled[:count]), tuple(said[:count]), text, finish)

    def load(self, placed: Placed) -> None:
        """These weights answer from now on, verified; if they cannot be, `RolecastError` is raised and none answer until some are."""
        thread = LoopThread("engine")
        try:
            thread.wait(self._load(placed))
        finally:
            thread.stop()

    async def _load(self, placed: Placed) -> None:
        self._speaking = {}
        self._ends = end_tokens(placed.base, self._renderer.tokenizer)
        client, named, new = self._connected(), dict[Slot, str](), set[str]()
        try:
            for slot, folder in placed.adapters.items():
                if slot in self._config.slots:
                    named[slot] = self._config.slots[slot]
                elif folder is None:
                    named[slot] = self._config.model
                else:
                    named[slot] = (
                        f"{placed.version}:{slot}#{secrets.token_hex(4)}"  # a name that is used again would find old keys and values
                    )
                    await self._ask(client, "/v1/load_lora_adapter", {"lora_name": named[slot], "lora_path": str(folder)})
                    new.add(named[slot])
            for slot, name in named.items():
                await self._verify(client, placed, slot, name)
            for old in self._loaded:
                await self._ask(client, "/v1/unload_lora_adapter", {"lora_name": old})
        finally:
            await client.close()
        self._loaded = new
        self.version, self._speaking = placed.version, named

    async def _ask(self, client: JsonClient, path: str, body: Mapping[str, Any]) -> None:
        """These two routes answer in plain text."""
        try:
            await client.post(path, dict(body))
        except RolecastError as error:
            if "without JSON" not in str(error):
                raise EngineError(
                    f"{body['lora_name']}: {error}; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING, or name it in engine.slots"
                ) from error

    async def _verify(self, client: JsonClient, placed: Placed, slot: Slot, name: str) -> None:
        published = placed.canaries[slot]
        body = {
            **FIXED,
            "model": name,
            "prompt": list(published.ids),
            "max_tokens": 1,
            "temperature": 0.0,
            "top_p": 1.0,
            "prompt_logprobs": 0,
        }
        try:
            scored = (await client.post("/v1/completions", body))["choices"][0]["prompt_logprobs"]
            anew = [(entry or {}).get(str(id), {}).get("logprob", -inf) for id, entry in zip(published.ids, scored, strict=True)][1:]
        except (RolecastError, KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"engine at {self._config.url} gave no log-probs of {name}: {' '.join(str(error).split())[:300]}") from error
        if off := differs(Canary(published.ids, tuple(anew)), published, self._dtype):
            raise CanaryError(
                f"version {placed.version}, slot {slot}: log-probs of the canary prompt by {name} at {self._config.url} differ by {off:.1e} from "
                "those of the run's weights; serve those"
            )
