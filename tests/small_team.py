"""A team of one role on a tiny model, for services that are really asked: taught two answers in a few seconds, or nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import LlamaForCausalLM

from rolecast.agent.core import Agent
from rolecast.agent.settings import AgentSettings
from rolecast.methods.direct import Direct, DirectConfig
from rolecast.methods.one_answer import AnswerState
from rolecast.ports import Retriever
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.tags import tagged
from tests.tiny import RENDERER, tiny_model

METHOD = Direct(DirectConfig(prompts="compact", max_tokens=12))
ANSWERS = ("Kel Dax", "Vrek Stom")
QUESTION = "Who is the mentor of Brol Tan?"


def taught() -> LlamaForCausalLM:
    """A model that answers with one of the two names, each as likely as the other."""
    prompt = RENDERER.prompt(METHOD.messages(METHOD.roles["answerer"], AnswerState(QUESTION)))[0]
    rows = [[*prompt, *RENDERER.encode(tagged("answer", answer))] for answer in ANSWERS]
    model = tiny_model().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(80):
        for ids in rows:
            labels = [-100] * len(prompt) + ids[len(prompt) :]
            model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def small_team(model: LlamaForCausalLM) -> Callable[[AgentSettings, Retriever | None], Agent]:
    def open_team(settings: AgentSettings, retriever: Retriever | None) -> Agent:
        engine = TransformersEngine({"shared": model}, RENDERER, 4, 256)
        return Agent("team", METHOD, engine, retriever, RENDERER, 256)  # type: ignore[arg-type]  # `direct` never searches

    return open_team
