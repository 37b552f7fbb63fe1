"""`Engine` over an OpenAI-compatible endpoint: a partner that is asked in text and is never trained.

Its model has a tokenizer of its own, so it is sent the thread as messages, and what it says comes back as text. The text is encoded once,
by our renderer, and the episode goes on with those ids: `text` is what they decode to, so what is parsed is what is recorded. There are
no log-probs. Ids of the other tokenizer are never asked for.

Stop strings are not sent: endpoints leave the one that they met out of the reply, and most do not say which it was or whether it was the
model's own end. A reply is cut here, after the first stop string that it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Literal, Protocol, Self

from rolecast.errors import ExternalError, RolecastError
from rolecast.externals import ExternalConfig
from rolecast.ports import Completion, Engine, GenerateRequest
from rolecast.rollout.render import Renderer
from rolecast.service.client import JsonClient
from rolecast.tags import trim
from rolecast.types import Slot

Finish = Literal["stop", "length"]
SEEDS = 2**31  # what every endpoint takes as a seed


class ExternalEngine:
    """One endpoint, as `externals.NAME` of the config. A request has its turn among `concurrency`; from then on it takes `patience` and
    one `timeout` at most. What it fails of is an `ExternalError`, which costs the episode and nothing else.
    """

    def __init__(self, name: str, config: ExternalConfig, renderer: Renderer) -> None:
        self.version = f"external:{name} {config.model}"
        self.branches = 0
        self._name, self._config, self._renderer = name, config, renderer
        config.key(name)  # a key that is missing is said before anything is asked
        self._client = JsonClient(
            f"external:{name}", config.url, timeout=config.timeout, patience=config.patience, headers=self._headers,
            variable=f"externals.{name}.url", concurrency=config.concurrency, outside=True,
        )  # fmt: skip
        self._turns = asyncio.Semaphore(config.concurrency)

    async def __aenter__(self) -> Self:
        self._turns = asyncio.Semaphore(self._config.concurrency)  # of this event loop
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()

    async def generate(self, request: GenerateRequest) -> Completion:
        limit = self._config.patience + self._config.timeout
        try:
            async with self._turns, asyncio.timeout(limit):
                reply = await self._client.post("/chat/completions", self._body(request))
        except TimeoutError:
            raise self._fault(f"gave no reply to {request.key} within {limit:g} s; raise its timeout or patience") from None
        except RolecastError as error:
            raise self._fault(str(error)) from error
        text, finish = self._read(reply)
        return self._completion(text, finish, request)

    def _headers(self) -> Mapping[str, str]:
        """The key is looked up anew: a file may have got another one."""
        key = self._config.key(self._name)
        return {"Authorization": f"Bearer {key}"} if key else {}

    def _body(self, request: GenerateRequest) -> dict[str, Any]:
        body = {
            "model": self._config.model, "messages": [dict(message) for message in request.messages], "max_tokens": request.max_tokens,
            "temperature": request.sampling.temperature, "top_p": request.sampling.top_p, "seed": request.seed % SEEDS,
            **self._config.request,
        }  # fmt: skip
        return {name: value for name, value in body.items() if value is not None}

    def _read(self, reply: Any) -> tuple[str, Finish]:
        """The text, and how it ended. A reply of another kind (a refusal by a filter, a tool's call) is none of the role's."""
        try:
            choice = reply["choices"][0]
            text, finish = choice["message"].get("content"), choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise self._fault(
                "answered in another shape than chat completions have; see that its url ends before /chat/completions"
            ) from None
        if finish not in ("stop", "length") or not isinstance(text, str | None):
            raise self._fault(f"ended its reply with {str(finish)[:40]!r}, without a text that a role could have said")
        return text or "", finish

    def _completion(self, text: str, finish: Finish, request: GenerateRequest) -> Completion:
        said = trim(text, request.stop)
        if any(stop in said for stop in request.stop):
            finish = "stop"
        ids = self._renderer.encode(self._renderer.plain(said))
        if len(ids) > request.max_tokens:  # in our tokens it may be longer
            ids, finish = ids[: request.max_tokens], "length"
        return Completion(ids, (), self._renderer.decode(ids), finish)

    def _fault(self, reason: str) -> ExternalError:
        """`reason`: of what happened, or what a client says who begins with the name."""
        return ExternalError(reason if reason.startswith(f"external:{self._name}") else f"external:{self._name} {reason}")


class OwnEngine(Engine, Protocol):
    """What plays a team's own slots."""

    @property
    def generated(self) -> int:
        """Tokens sampled since the start."""
        ...

    @property
    def failure(self) -> Exception | None: ...

    async def failed(self) -> Exception: ...

    def close(self) -> None:
        """Gives back what outlives its use: an engine in a process of its own."""
        ...


class Nobody:
    """`OwnEngine` of a team all of whose roles speak through endpoints."""

    generated = 0
    failure = None

    def __init__(self, version: str) -> None:
        self.version, self.branches = version, 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def failed(self) -> Exception:
        await asyncio.Event().wait()  # it never does
        raise AssertionError

    async def generate(self, request: GenerateRequest) -> Completion:
        raise RolecastError(f"slot {request.slot!r} of {request.key} has no model here; every role of this team speaks through an endpoint")

    def close(self) -> None: ...


class Router:
    """`Engine`: a request goes to who speaks for its slot, an endpoint or the team's own engine.

    All but that is the own engine's: its version, the tokens that it sampled, its failure, and the count of branches. One that waits for an
    endpoint is live like one that waits for a retriever.
    """

    def __init__(self, own: OwnEngine, others: Mapping[Slot, ExternalEngine]) -> None:
        self._own, self._others = own, others
        self._stack = AsyncExitStack()

    @property
    def version(self) -> str:
        return self._own.version

    @version.setter
    def version(self, version: str) -> None:
        self._own.version = version

    @property
    def branches(self) -> int:
        return self._own.branches

    @branches.setter
    def branches(self, count: int) -> None:
        self._own.branches = count

    @property
    def generated(self) -> int:
        return self._own.generated

    @property
    def failure(self) -> Exception | None:
        return self._own.failure

    async def failed(self) -> Exception:
        return await self._own.failed()

    def close(self) -> None:
        self._own.close()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._own)
            for other in self._others.values():
                await stack.enter_async_context(other)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def generate(self, request: GenerateRequest) -> Completion:
        return await self._others.get(request.slot, self._own).generate(request)
