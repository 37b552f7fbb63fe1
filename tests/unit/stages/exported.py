"""Runs whose stages have ended, made without training: weights moved by hand, in every form that a model of ours has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rolecast.config import RunConfig
from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.rollout.render import Renderer
from rolecast.schedule import find
from rolecast.stages.run import Run, create
from rolecast.stages.team import Speakers, finished_team, training_team, write_model
from rolecast.store.artifact import writing
from rolecast.types import Message
from rolecast.weights.models import CPU
from rolecast.weights.team import FROZEN
from tests.tiny import TOKENIZER

DECOR = {"name": "decor", "prompts": "compact", "condenser": "model", "max_tokens": 12}
DAC = {"name": "dac", "prompts": "compact"}


def talkative(seed: int = 1) -> LlamaForCausalLM:
    """A random model that says one thing after another, where one that is close to uniform repeats the last token."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, initializer_range=0.3, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=TOKENIZER.eos_token_id, pad_token_id=TOKENIZER.pad_token_id,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def new_run(place: Path | str, method: dict[str, Any], dtype: str = "float32", lora: bool = True, **model: Any) -> Run:
    model |= {"max_context": 512, "dtype": dtype, "lora": {"rank": 4, "alpha": 8} if lora else None}
    data = {"world": {"entities": {"train": 30, "dev": 30, "test": 30}, "questions": {"train": 4, "dev": 2, "test": 2}}}
    return create(place, RunConfig.model_validate({"name": "small", "method": method, "model": model, "data": data}))


def begun(run: Run, stage: str = "sft", seed: int = 1) -> Run:
    """With a first stage that has ended in a whole model."""
    with writing(run.model(stage), "model", {**run.made, "stage": stage}) as partial:
        dtype = torch.bfloat16 if run.config.model.dtype == "bfloat16" else torch.float32
        talkative(seed).to(dtype).save_pretrained(partial)
        TOKENIZER.save_pretrained(partial)
    return run


def ended(run: Run, stage: str = "rl") -> Run:
    """With another stage that has ended, whose slots have moved each its own way."""
    of = find(run.config.schedule, stage)
    team = training_team(run, run.config.method_in(of), of, None, CPU)
    with torch.no_grad():
        for number, slot in enumerate(sorted(slot for slot in team.place if slot != FROZEN), 1):
            torch.manual_seed(number)
            for name, parameter in team.trained(slot):
                if "lora_A" not in name:
                    parameter += 0.1 * torch.randn_like(parameter)
    trained = run.stage(stage) / "trained"
    team.save((*of.trained, *of.critics), trained)
    with writing(run.model(stage), "model", {**run.made, "stage": stage}) as partial:
        write_model(run, of, trained, partial)
    return run


def greedy(
    run: Run, stage: str, messages: Sequence[Message], new: int
) -> tuple[Speakers, Renderer, tuple[int, ...], dict[str, Completion]]:
    """The team, the prompt's tokens, and what our engine says for each slot."""
    of = find(run.config.schedule, stage)
    method = run.config.method_in(of).whole()
    team, speakers = finished_team(run, method, of)
    renderer = Renderer(team.tokenizer, method.tags)
    ids, _ = renderer.prompt(messages)

    async def said() -> dict[str, Completion]:
        async with TransformersEngine(speakers, renderer, 4, 256) as engine:
            return {slot: await engine.generate(GenerateRequest(ids, slot, new, (), Sampling(0.0), 0)) for slot in sorted(method.spoken)}

    return speakers, renderer, ids, asyncio.run(said())
