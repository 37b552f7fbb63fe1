"""`Engine` over vLLM in this process: its engine core samples in a process of its own, adapters are named by each request.

Weights come from disk (`load`), as a version of the team, and nothing is played before vLLM itself gave the log-probs that were
published for the base and every slot. Names and numbers of adapters are never used twice: vLLM takes a number that it knows for
weights that it has, and finds keys and values by an adapter's name. Adapters of the last versions stay, for episodes that began with them.

There is no lockstep here: what vLLM puts into one batch depends on when requests arrive, and that moves the last bits.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal, Self

from rolecast.errors import EngineError, ExternalError, RolecastError, SamplingError
from rolecast.loops import LoopThread, OwnLoop
from rolecast.ports import Aborted, Completion, GenerateRequest
from rolecast.rollout.engines import vllm_api
from rolecast.rollout.engines.settings import VllmConfig
from rolecast.rollout.engines.stops import cut
from rolecast.rollout.engines.vllm_adapters import check_adapter, check_count, check_precision, check_ranks, room_for, silence
from rolecast.rollout.render import Renderer
from rolecast.scratch import kept
from rolecast.types import Slot
from rolecast.weights.canary import Canary, differs
from rolecast.weights.models import DTYPES, end_tokens
from rolecast.weights.placed import Placed
from rolecast.weights.versions import CanaryError

log = logging.getLogger(__name__)
ENDING = 10.0  # seconds that an engine core, or a request, has to end by itself
RETOLD = 0.2  # seconds after which a request that is to end is told again
TRIED = 4  # tokens: over several steps, so that slots meet in them
PROBED: Mapping[str, Any] = {  # greedy
    "temperature": 0.0, "top_p": 1.0, "seed": None, "stop": [], "stop_token_ids": [], "detokenize": False, "max_tokens": TRIED, "ignore_eos": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Room:
    """What the running engine was started with: a version that needs more is refused."""

    rank: int  # 0 where it plays no adapters
    count: int


class VllmEngine:
    """`load` before anything is generated, outside any coroutine. It may be called again: while requests are in flight, for other adapters over
    the same base.

    Entering and leaving only begins and ends a caller's turn: the engine lives until `close`, since it takes a minute to start. `versions`: how
    many a batch may hold side by side. `home`: where vLLM's front end works, by default a thread of its own; in the loop of all who ask, a
    request costs half of the CPU time.
    """

    def __init__(
        self, config: VllmConfig, renderer: Renderer, max_context: int, dtype: str, api: Any = vllm_api, versions: int = 1,
        home: LoopThread | OwnLoop | None = None,
    ) -> None:  # fmt: skip
        self.version = ""
        self.branches = 0
        self.generated = 0  # tokens sampled since the start
        self._config, self._renderer, self._max_context, self._api = config, renderer, max_context, api
        self._dtype, self._versions = config.dtype or dtype, versions
        self._home = home or LoopThread("vllm")
        self._scratch = kept("vllm")
        self._llm: Any = None
        self._base: Path | None = None  # whose weights the engine holds
        self._room = _Room(0, 0)
        self._ends: frozenset[int] = frozenset()
        self._speaking: dict[Slot, Any] = {}  # by slot its adapter, or None for the base; of the verified version alone
        self._older: dict[str, dict[Slot, Any]] = {}  # likewise of versions that were verified before, over the same base, the last ones
        self._held: set[int] = set()  # numbers of the adapters that the engine has
        self._numbers, self._keys = itertools.count(1), itertools.count()
        self._failure: Exception | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """What a caller still waited for was ended with its coroutine."""

    @property
    def failure(self) -> Exception | None:
        if self._failure is None and self._llm is not None and self._llm.errored:
            self._failure = EngineError("vLLM's engine core has ended; its last lines on stderr say why")
        return self._failure

    async def failed(self) -> Exception:
        """Waits until the engine fails; gives its error. After that no request is served."""
        return await self._home.run(self._watch())

    async def _watch(self) -> Exception:
        while (failure := self.failure) is None:
            await asyncio.sleep(1.0)
        return failure

    async def generate(self, request: GenerateRequest) -> Completion:
        if self.failure is not None:
            raise self.failure
        version, speaking = self._voices(request)
        if request.slot not in speaking:
            raise KeyError(f"no weights for slot {request.slot!r}; loaded: {', '.join(speaking)}")
        asked, key = parameters(request, self._ends, self._config.seeds), self._unique(request.key)
        asking = self._home.begin(self._answer(request.ids, asked, key, speaking[request.slot], request.urgency))
        try:
            output = await asyncio.shield(asking)
        except asyncio.CancelledError:
            raise Aborted(await self._aborted(key, asking)) from None
        return self._completion(request, output, version)

    def _voices(self, request: GenerateRequest) -> tuple[str, Mapping[Slot, Any]]:
        """The version that the request's episode speaks with, and its adapters."""
        if request.version in self._older and not (self._speaking and request.version == self.version):
            return request.version, self._older[request.version]
        if not self._speaking:
            raise EngineError("the engine has no version whose weights are verified, so it plays none; load one")
        if request.version not in ("", self.version):
            raise ExternalError(
                f"{request.key} began with version {request.version}, which has gone, and {self.version} answers; raise engine.staleness"
            )
        return self.version, self._speaking

    def _unique(self, key: str) -> str:
        """A key is made one of its own: a turn that is played again must not meet what is left of the first."""
        return f"{key}-{next(self._keys)}"

    async def _aborted(self, key: str, asking: asyncio.Future[Any]) -> tuple[int, ...]:
        """Ends a request that nobody waits for; what it sampled. It may not have arrived at vLLM yet, so it is told until it has ended."""
        try:
            async with asyncio.timeout(ENDING):
                while not asking.done():
                    await self._home.run(self._api.abort(self._llm, key))
                    await asyncio.wait([asking], timeout=RETOLD)
            ids = tuple(asking.result().outputs[0].token_ids)
        except Exception as error:
            log.warning("%s was ended, and what it sampled is not known: %s", key, error)
            asking.cancel()
            return ()
        self.generated += len(ids)
        return ids

    async def _ask(self, ids: Sequence[int], asked: Mapping[str, Any], key: str, lora: Any) -> Any:
        return await self._answer(ids, asked, self._unique(key), lora)

    async def _answer(self, ids: Sequence[int], asked: Mapping[str, Any], key: str, lora: Any, urgency: int = 0) -> Any:
        try:
            return await self._api.answer(self._llm, ids, asked, key, lora, urgency)
        except self._api.dead() as error:
            self._failure = EngineError("vLLM's engine core has ended; its last lines on stderr say why")
            raise self._failure from error
        except Exception as error:
            cause = error.__cause__ or error
            raise ExternalError(
                f"vLLM did not answer {key.rpartition('-')[0]}: {type(cause).__name__}: {' '.join(str(cause).split())[:300]}"
            ) from error

    def _completion(self, request: GenerateRequest, output: Any, version: str) -> Completion:
        reply = output.outputs[0]
        count, text, stopped = cut(tuple(reply.token_ids), request.stop, self._ends, self._renderer.decode)
        ids, logprobs = tuple(reply.token_ids[:count]), self._api.sampled_logprobs(output)[:count]
        self.generated += len(reply.token_ids)
        if bad := [logprob for logprob in logprobs if not isfinite(logprob)]:
            raise SamplingError(
                f"slot {request.slot!r}, version {version}: the log-prob of a sampled token is {bad[0]}; its weights diverged"
            )
        finish: Literal["stop", "length"] = "stop" if stopped or reply.finish_reason == "stop" else "length"
        return Completion(ids, logprobs, text, finish, version)

    def load(self, placed: Placed) -> None:
        """These weights answer from now on, verified; if they cannot be, `RolecastError` is raised and none answer until some are."""
        self._home.wait(self._load(placed))

    async def _load(self, placed: Placed) -> None:
        if self._speaking:
            self._older[self.version] = self._speaking
        if self._base != placed.base:
            self._older.clear()  # adapters over another base
        self._speaking = {}
        if unknown := sorted(set(placed.adapters) - set(placed.canaries)):
            raise CanaryError(f"version {placed.version} has no canary of slot {unknown[0]}, so its weights cannot be verified")
        adapters = self._numbered(placed.adapters)
        if adapters:
            check_precision(self._dtype)
        if self._llm is not None and adapters:
            check_ranks({slot: check_adapter(folder, slot) for slot, folder in adapters.items()}, self._room.rank)
            check_count(adapters, self._room.count)
        swapped = await self._place_base(placed, adapters)
        loaded: dict[Path, Any] = {}
        for slot, folder in adapters.items():
            if folder not in loaded:
                number = next(self._numbers)
                loaded[folder] = self._api.adapter(f"{placed.version}:{slot}#{number}", number, folder)
                await self._add(loaded[folder])
        speaking = {slot: loaded.get(adapters.get(slot, placed.base)) for slot in placed.adapters}
        await self._verify(placed, speaking, swapped)
        self._older.pop(placed.version, None)
        for name in list(self._older)[: max(0, len(self._older) - self._config.staleness)]:
            del self._older[name]
        kept = [lora for voices in (speaking, *self._older.values()) for lora in voices.values() if lora is not None]
        for old in self._held - {lora.lora_int_id for lora in kept}:
            await self._llm.remove_lora(old)
            self._held.discard(old)
        self.version, self._speaking = placed.version, speaking

    def _numbered(self, adapters: Mapping[Slot, Path | None]) -> dict[Slot, Path]:
        """Those that vLLM is to load: where it does not tell the base from an adapter, the base gets one that says nothing."""
        own = {slot: folder for slot, folder in adapters.items() if folder is not None}
        if not own or self._api.tells_base_apart():
            return own
        silent = self._scratch / "silent"
        return {slot: folder or silence(next(iter(own.values())), silent) for slot, folder in adapters.items()}

    async def _add(self, lora: Any) -> None:
        try:
            await self._llm.add_lora(lora)
        except Exception as error:
            raise EngineError(f"vLLM did not take the adapter in {lora.lora_path}: {' '.join(str(error).split())[:300]}") from error
        self._held.add(lora.lora_int_id)

    async def _place_base(self, placed: Placed, adapters: Mapping[Slot, Path]) -> bool:
        """Whether the base's weights are new ones."""
        if self._llm is not None and self._base == placed.base:
            return False
        if self._llm is not None and not self._api.swaps(self._llm, self._room.count > 0):
            self._shut()
        self._base = None
        if self._llm is None:
            self._room = _Room(*room_for(adapters, self._config)) if adapters else _Room(0, 0)
            self._ends = end_tokens(placed.base, self._renderer.tokenizer)
            log.info("vLLM starts with %s", placed.base)
            self._llm = await self._started(placed)
        elif not await self._api.swap(self._llm, placed.base):
            raise EngineError(f"version {placed.version} was loaded while requests were in flight, and its base takes the old one's place")
        self._base = placed.base
        return True

    async def _started(self, placed: Placed) -> Any:
        given = arguments(self._config, placed, self._room.rank, self._room.count, self._max_context, self._dtype, self._versions)
        try:
            return self._api.start(given)
        except RolecastError:
            raise
        except Exception as error:
            raise EngineError(
                f"vLLM did not start with {placed.base}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            ) from error

    async def _verify(self, placed: Placed, speaking: Mapping[Slot, Any], swapped: bool) -> None:
        """vLLM's own log-probs of every slot, as it samples them and as it computes them anew.

        All slots at once, since what a slot gets may be wrong in a batch with others alone. A prompt is read from the prefix cache in whole
        blocks, so the probe is repeated until it fills some; prompts that are scored are never read from it. Scored one by one: two at once,
        with adapters, end vLLM's engine core on CPUs.
        """
        probes = {slot: self._probe(placed.canaries[slot]) for slot in speaking}
        keys = {slot: f"canary:{placed.version}:{slot}" for slot in speaking}
        read = await asyncio.gather(*(self._ask(probes[slot], PROBED, keys[slot], lora) for slot, lora in speaking.items()))
        whole = [[*probe, *output.outputs[0].token_ids] for probe, output in zip(probes.values(), read, strict=True)]
        scored = [await self._score(ids, keys[slot], speaking[slot]) for slot, ids in zip(speaking, whole, strict=True)]
        for (slot, lora), sampled, anew in zip(speaking.items(), read, scored, strict=True):
            published, said = placed.canaries[slot], self._api.sampled_logprobs(sampled)
            about, dtype = f"version {placed.version}, slot {slot}", DTYPES[self._dtype]
            if off := differs(Canary(published.ids, anew[: len(published.ids) - 1]), published, dtype):
                raise CanaryError(f"{about}: log-probs of the canary prompt differ by {off:.1e} from those published")
            if (swapped or lora is not None) and sampled.num_cached_tokens:
                raise CanaryError(f"{about}: the prefix cache holds what earlier weights computed")
            if off := differs(Canary((), said), Canary((), anew[-len(said) :]), dtype):
                raise CanaryError(f"{about}: log-probs of what it samples differ by {off:.1e} from those of its weights")

    def _probe(self, published: Canary) -> list[int]:
        length: int = max(len(published.ids), min(2 * self._api.block_of(self._llm) + 1, self._max_context - TRIED - 1))
        return (list(published.ids) * (length // len(published.ids) + 1))[:length]

    async def _score(self, ids: Sequence[int], key: str, lora: Any) -> tuple[float, ...]:
        """Log-probs of all ids but the first, each given the ones before it, computed anew."""
        anew = {**PROBED, "max_tokens": 1, "prompt_logprobs": 0, "skip_reading_prefix_cache": True}
        return tuple(self._api.prompt_logprobs(await self._ask(ids, anew, key, lora)))

    def close(self) -> None:
        """Ends the engine core, which gives its memory back."""
        self._speaking = {}
        self._older.clear()
        self._shut()

    def _shut(self) -> None:
        if self._llm is not None:
            with contextlib.suppress(Exception):  # one that died already has nothing to end
                self._api.shutdown(self._llm, ENDING)
        self._llm = self._base = None
        self._held.clear()


def parameters(request: GenerateRequest, ends: frozenset[int], seeded: bool) -> dict[str, Any]:
    """What the request says of sampling, in vLLM's names. A seed of its own makes vLLM draw for each request apart."""
    return {
        "temperature": request.sampling.temperature, "top_p": request.sampling.top_p, "seed": request.seed % 2**63 if seeded else None,
        "stop": list(request.stop), "stop_token_ids": sorted(ends), "detokenize": bool(request.stop), "max_tokens": request.max_tokens,
    }  # fmt: skip


def arguments(config: VllmConfig, placed: Placed, rank: int, count: int, max_context: int, dtype: str, versions: int = 1) -> dict[str, Any]:
    """vLLM's arguments. Its engine draws what has no seed from one generator, so the engines of a run must not begin alike."""
    given = {
        "model": str(placed.base.resolve()), "tokenizer": str(placed.tokenizer.resolve()), "dtype": dtype, "max_model_len": max_context,
        "max_num_seqs": config.max_batch, "gpu_memory_utilization": config.memory, "enforce_eager": config.eager, "seed": secrets.randbits(31),
        "logprobs_mode": "processed_logprobs", "generation_config": "vllm", "enable_prefix_caching": True, "disable_log_stats": True,
        "enable_log_requests": False, "scheduling_policy": "priority",
    }  # fmt: skip
    if count:
        # The new adapters are loaded before the old ones go, and those of versions between may still answer.
        given |= {"enable_lora": True, "max_lora_rank": rank, "max_loras": count * versions}
        given["max_cpu_loras"] = count * max(config.staleness + 2, versions)
    return given
