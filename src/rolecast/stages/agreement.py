"""Whether a model that comes from outside computes one and the same in the engine, in the learner and by itself.

The engine decodes with its own cache and masks, the learner on padded rows or on packs, and neither knows what a new architecture does
beside attention. A difference found here, before anything is trained, would end a run later, or spoil it.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from rolecast.errors import InputError, RolecastError
from rolecast.learner.batch import Padded, make_batch
from rolecast.learner.packed import Packed
from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.engines.decoder import Decoder
from rolecast.rollout.render import Renderer
from rolecast.types import Example
from rolecast.weights.attention import windows_of
from rolecast.weights.supported import check_supported
from rolecast.weights.team import FROZEN, Team

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3}  # of a log-prob; random models of 16 kinds differ by up to 3e-6 and 8e-2
SAMPLED = 6  # tokens of each row
TEXT = "who was the first one there, and what did the two of them find in 1907? "
Rows = Sequence[tuple[int, ...]]
Numbers = list[torch.Tensor]  # of each row: the log-probs of what was sampled


def check_model_agrees(model: PreTrainedModel, renderer: Renderer, max_context: int, packed: bool = False) -> None:
    """Raises InputError unless sampler, learner and `model` agree on the log-probs of sampled tokens, up to rounding.

    The probe is longer than any sliding window that a context of `max_context` tokens can pass, in rows of unequal lengths, which begin
    alike. `packed`: whether the learner packs its rows.
    """
    check_supported(model, max_context)
    name = type(model).__name__
    try:
        prompts = _prompts(model, renderer, max_context)
        done = _sampled(model, renderer, prompts)
        rows = [(*prompt, *completion.ids) for prompt, completion in zip(prompts, done, strict=True)]
        counts = [len(completion.ids) for completion in done]
        own = _plain(model, rows, counts)
        found = {"sampler": [torch.tensor(completion.logprobs) for completion in done], "learner": _learned(model, renderer, rows, counts)}
        if packed:
            found["learner with packing"] = _packed(model, renderer, rows, counts)
    except RolecastError as error:
        raise InputError(f"{name} is not supported: {error}") from error
    except Exception as error:  # of the model's code, on what every model here is given
        raise InputError(f"{name} is not supported: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
    for who, numbers in found.items():
        difference = max(float((a.cpu() - b.cpu()).abs().max()) for a, b in zip(numbers, own, strict=True))
        if not difference <= TOLERANCE[model.dtype]:
            raise InputError(
                f"{name} is not supported: {who} and model differ by {difference:.1e} in a log-prob, more than {TOLERANCE[model.dtype]:g}"
            )


def _prompts(model: PreTrainedModel, renderer: Renderer, max_context: int) -> Rows:
    passed = [window for window in windows_of(model.config).values() if window is not None and window < max_context]
    longest = min(max([24, *(window + 12 for window in passed)]), max_context) - SAMPLED
    text = renderer.encode(renderer.plain(TEXT))
    ids = (text * (longest // len(text) + 1))[:longest]
    return [ids[: longest // 3], ids, ids[: longest // 2]]


@torch.no_grad()
def _sampled(model: PreTrainedModel, renderer: Renderer, prompts: Rows) -> list[Completion]:
    decoder = Decoder(lambda: model, renderer, len(prompts), max(map(len, prompts)) + SAMPLED)
    promises: list[concurrent.futures.Future[Completion]] = [concurrent.futures.Future() for _ in prompts]
    for seed, (ids, promise) in enumerate(zip(prompts, promises, strict=True)):
        decoder.queue.append((GenerateRequest(ids, "", SAMPLED, (), Sampling(), seed), promise))
    decoder.admit()
    while decoder.rows:
        decoder.decode()
    return [promise.result() for promise in promises]


@torch.no_grad()
def _plain(model: PreTrainedModel, rows: Rows, counts: Sequence[int]) -> Numbers:
    numbers = []
    for row, count in zip(rows, counts, strict=True):
        ids = torch.tensor([row], device=model.device)
        logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0, -count - 1 : -1].float(), -1)
        numbers.append(logprobs.gather(-1, ids[0, -count:, None]).squeeze(-1))
    return numbers


@torch.no_grad()
def _learned(model: PreTrainedModel, renderer: Renderer, rows: Rows, counts: Sequence[int]) -> Numbers:
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
    places = [(number, column) for number, row in enumerate(rows) for column in range(len(row) - counts[number], len(row))]
    row_index, columns = torch.tensor(places, device=model.device).unbind(-1)
    chosen, _ = Team(model, renderer.tokenizer)(FROZEN, Padded(ids.to(model.device), row_index, columns, np.arange(len(places))))
    return list(chosen.split(list(counts)))


@torch.no_grad()
def _packed(model: PreTrainedModel, renderer: Renderer, rows: Rows, counts: Sequence[int]) -> Numbers:
    examples = [Example(row, tuple(at >= len(row) - count for at in range(len(row)))) for row, count in zip(rows, counts, strict=True)]
    batch = make_batch(FROZEN, [], [], examples)
    pack = Packed.of(batch, range(batch.rows), True, model.device)
    chosen, _ = Team(model, renderer.tokenizer)(FROZEN, pack)
    numbers = torch.empty(len(batch.ids), device=chosen.device)
    numbers[torch.from_numpy(pack.flat)] = chosen
    return list(torch.split(numbers[torch.from_numpy(batch.trained)], list(counts)))
