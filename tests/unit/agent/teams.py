"""Small teams for the service's tests: an engine that says one line, at once or when it is let."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from scripted import MENTOR as FACT
from scripted import TableRetriever, passage

from rolecast.agent.app import AgentSettings
from rolecast.agent.core import Agent
from rolecast.methods.base import Method
from rolecast.methods.baselines import Direct, DirectConfig, NaiveRag, NaiveRagConfig
from rolecast.methods.tags import tagged
from rolecast.ports import Completion, GenerateRequest, Retriever
from rolecast.rollout.render import Renderer


@dataclass
class OneLine:
    """Says `line` to every request, once `gate` is open. A step fails if `broken` is set, and blocks until `step_gate` is open."""

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

    waiting = 0

    @property
    def busy(self) -> bool:
        return self.at_once > 0

    def step(self, admit: bool = True) -> None:
        if self.step_gate is not None:
            self.step_gate.wait(10)
        if self.broken:
            raise ValueError("no such kernel")

    def drain(self) -> None: ...

    async def generate(self, request: GenerateRequest) -> Completion:
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            while not self.gate.is_set():
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
