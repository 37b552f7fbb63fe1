"""Small teams for the service's tests: an engine that says one line, at once or when it is let."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from scripted import MENTOR as FACT
from scripted import TableRetriever, passage

from rolecast.agent.core import Agent
from rolecast.agent.settings import AgentSettings
from rolecast.methods.base import Method
from rolecast.methods.direct import Direct, DirectConfig
from rolecast.methods.naive_rag import NaiveRag, NaiveRagConfig
from rolecast.ports import Completion, GenerateRequest, Retriever
from rolecast.rollout.render import Renderer
from rolecast.tags import tagged


@dataclass
class OneLine:
    """Says `line` to every request, once `gate` is open. It fails if `broken` is set, and blocks its loop until `step_gate` is open."""

    renderer: Renderer
    line: str = tagged("answer", "Kel Dax")
    gate: threading.Event = field(default_factory=threading.Event)
    step_gate: threading.Event | None = None
    broken: bool = False
    version: str = "script/0.0"
    branches: int = 0
    asked: int = 0
    at_once: int = 0
    most_at_once: int = 0
    failure: Exception | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def failed(self) -> Exception:
        while self.failure is None:
            await asyncio.sleep(0.002)
        return self.failure

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            if self.broken:
                self.failure = ValueError("no such kernel")
                raise self.failure
            while not self.gate.is_set():
                if self.step_gate is not None:
                    self.step_gate.wait(10)
                await asyncio.sleep(0.002)
        finally:
            self.at_once -= 1
        ids = self.renderer.encode(self.line)
        return Completion(ids, (-0.5,) * len(ids), self.renderer.decode(ids), "stop")


def opened(engine: OneLine) -> Callable[[AgentSettings, Retriever | None], Agent]:
    """For `make_agent`: `direct`, or `naive_rag` over the retriever service that it is given."""

    def open_team(settings: AgentSettings, retriever: Retriever | None) -> Agent:
        method: Method = Direct(DirectConfig()) if retriever is None else NaiveRag(NaiveRagConfig(k=1))
        return Agent("team", method, engine, retriever or TableRetriever([passage(FACT)]), engine.renderer, 512)

    return open_team
