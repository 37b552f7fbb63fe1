"""`Engine` over Hugging Face models in this process: continuous batching on a static KV cache.

Coroutines call `generate` and wait; a task of the engine's own steps while there is work. Continuous: a waiting turn enters as
soon as a row is free, the most urgent first. Lockstep: the engine serves only when every live branch waits for it, in the order of the requests'
keys, so that the same run takes the same batches, bit for bit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Self

from transformers import PreTrainedModel

from rolecast.errors import SamplingError
from rolecast.ports import Aborted, Completion, GenerateRequest
from rolecast.rollout.engines.decoder import Decoder
from rolecast.rollout.render import Renderer
from rolecast.types import Slot

Models = Mapping[Slot, PreTrainedModel | Callable[[], PreTrainedModel]]


class TransformersEngine:
    """Generates with one model per slot, or what gives it for one forward pass. Slots are decoded in turns."""

    def __init__(
        self, models: Models, renderer: Renderer, max_batch: int, max_context: int, version: str = "", lockstep: bool = False
    ) -> None:
        self.version = version
        self.generated = 0  # tokens sampled since the start
        self._lockstep = lockstep
        self._branches = 0
        share = 1 / max(1, len(models))
        self._decoders = {slot: Decoder(_source(model), renderer, max_batch, max_context, share) for slot, model in models.items()}
        self._work = asyncio.Event()
        self._driver: asyncio.Task[None] | None = None
        self._failure: asyncio.Future[Exception] | None = None

    @property
    def branches(self) -> int:
        return self._branches

    @branches.setter
    def branches(self, count: int) -> None:
        self._branches = count
        self._work.set()  # the one that ended may have been the last that others waited for

    async def __aenter__(self) -> Self:
        if self._driver is not None:
            raise RuntimeError("the engine is entered already")
        self._work = asyncio.Event()
        self._work.set()
        self._failure = asyncio.get_running_loop().create_future()
        self._driver = asyncio.create_task(self._drive())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._driver is not None
        self._driver.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._driver
        self._driver = None
        for decoder in self._decoders.values():
            for promise in decoder.clear():
                promise.cancel()

    @property
    def failure(self) -> Exception | None:
        return self._failure.result() if self._failure is not None and self._failure.done() else None

    async def failed(self) -> Exception:
        """Waits until the engine fails; gives its error. After that no request is served."""
        assert self._failure is not None, "enter the engine first"
        return await asyncio.shield(self._failure)

    def close(self) -> None:
        """Its models are the caller's."""

    async def generate(self, request: GenerateRequest) -> Completion:
        if request.slot not in self._decoders:
            raise KeyError(f"no weights for slot {request.slot!r}; loaded: {', '.join(self._decoders)}")
        if self._driver is None:
            raise RuntimeError("the engine is not running: enter it first")
        if self.failure is not None:
            raise self.failure
        promise: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._decoders[request.slot].queue.append((request, promise))
        self._work.set()
        try:
            return await promise
        except asyncio.CancelledError:  # its row is given to another when the engine finds the promise cancelled
            kept = promise.done() and not promise.cancelled() and promise.exception() is None  # it was finished in this moment
            raise Aborted(promise.result().ids if kept else self._decoders[request.slot].sampled(promise)) from None

    async def _drive(self) -> None:
        """Serves while there is work and sleeps otherwise, which leaves the processor to whoever the episodes wait for."""
        try:
            while True:
                await self._work.wait()
                if self._lockstep:
                    self._work.clear()
                    if 0 < self._branches == sum(decoder.waiting for decoder in self._decoders.values()):
                        self._drain()
                elif any(decoder.queue or decoder.rows for decoder in self._decoders.values()):
                    self._step()
                else:
                    self._work.clear()
                await asyncio.sleep(0)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        assert self._failure is not None
        self._failure.set_result(error)
        for decoder in self._decoders.values():
            for promise in decoder.clear():
                promise.set_exception(error)

    def _step(self) -> None:
        """Admits what fits and decodes one token for every row of every slot."""
        for slot, decoder in self._decoders.items():
            with self._named(slot):
                decoder.hasten()
                self.generated += decoder.admit() + decoder.decode()

    def _drain(self) -> None:
        """Serves exactly what waits now, in fixed-size batches."""
        for slot, decoder in self._decoders.items():
            decoder.queue = deque(sorted(decoder.queue, key=lambda waiting: waiting[0].key))
            with self._named(slot):
                while decoder.queue:
                    self.generated += decoder.admit()
                    while decoder.rows:
                        self.generated += decoder.decode()

    @contextlib.contextmanager
    def _named(self, slot: Slot) -> Iterator[None]:
        try:
            yield
        except SamplingError as error:
            raise SamplingError(f"slot {slot!r}, version {self.version or 'without a name'}: {error}") from error


def _source(model: PreTrainedModel | Callable[[], PreTrainedModel]) -> Callable[[], PreTrainedModel]:
    return (lambda: model) if isinstance(model, PreTrainedModel) else model
