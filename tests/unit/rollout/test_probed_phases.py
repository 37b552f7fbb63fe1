"""In which phases a method's probe is called: in training, unless the method says otherwise; never without its saying so."""

from __future__ import annotations

import asyncio

import pytest
from scripted import ScriptedEngine, TableRetriever

from rolecast.methods.direct import Direct, DirectConfig
from rolecast.rollout.collect import play_episode
from rolecast.rollout.env import Env, Phase
from rolecast.rollout.render import Renderer
from rolecast.types import Gold, Question, Trajectory


class Probing(Direct):
    seen: list[tuple[Phase, bool]]

    async def probe(self, trajectory: Trajectory, env: Env) -> None:
        self.seen.append((env.phase, env.probing))


@pytest.mark.parametrize("probed", [("train",), ("train", "eval"), ()])
def test_a_probe_is_called_in_the_phases_that_the_method_names(renderer: Renderer, probed: tuple[Phase, ...]) -> None:
    kind = type("Named", (Probing,), {"probed": frozenset(probed)}) if probed != ("train",) else Probing  # which is the default
    method = kind(DirectConfig(prompts="compact"))
    method.seen = []
    for phase in ("train", "eval", "serve", "prepare"):
        t = Trajectory("t", Question("q", "Who?", Gold(("x",))), "g", 0, "direct", 0)
        method.prepare = lambda trajectory: {}  # type: ignore[method-assign]
        engine = ScriptedEngine(renderer, method, {"answerer": ["<answer> x</answer>"]})
        asyncio.run(play_episode(method, Env(engine, TableRetriever(), renderer, t, 512, phase=phase), None))
    assert method.seen == [(phase, True) for phase in ("train", "eval") if phase in probed]
