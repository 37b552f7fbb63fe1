from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import torch

from rolecast.ports import Completion, GenerateRequest, Sampling
from rolecast.rollout.engines.transformers import TransformersEngine
from rolecast.rollout.scheduler import play
from tests.tiny import RENDERER, TOKENIZER, tiny_model

PROMPTS = ["planner question: Who is the mentor of Bak Bam?", "filter query: twin", "answerer question: What?", "memory: a b c d e f g h"]


def request(
    text: str, seed: int = 0, temperature: float = 1.0, top_p: float = 1.0, max_tokens: int = 12, stop: Sequence[str] = ()
) -> GenerateRequest:
    return GenerateRequest(RENDERER.encode(text), "shared", max_tokens, tuple(stop), Sampling(temperature, top_p), seed)


def generate(requests: Sequence[GenerateRequest], max_batch: int = 8, lockstep: bool = False, **model: object) -> list[Completion]:
    engine = TransformersEngine({"shared": tiny_model(scale=8.0, **model)}, RENDERER, max_batch, 128, lockstep=lockstep)  # type: ignore[arg-type]
    jobs = [lambda r=r: engine.generate(r) for r in requests]
    return asyncio.run(play(jobs, engine, len(jobs)))


def recomputed(prompt: str, ids: Sequence[int], temperature: float = 1.0, **model: object) -> torch.Tensor:
    everything = torch.tensor([[*RENDERER.encode(prompt), *ids]])
    with torch.no_grad():
        logits = tiny_model(scale=8.0, **model)(everything).logits[0].float() / temperature  # type: ignore[arg-type]
    logprobs = torch.log_softmax(logits, -1)[:-1].gather(-1, everything[0, 1:, None]).squeeze(-1)
    return logprobs[-len(ids) :]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_of_sampled_tokens_equal_one_full_forward_pass(kv_heads: int, temperature: float) -> None:
    requests = [request(text, seed, temperature, max_tokens=5 + 3 * seed) for seed, text in enumerate(PROMPTS)]
    for text, completion in zip(PROMPTS, generate(requests, max_batch=3, kv_heads=kv_heads), strict=True):
        expected = recomputed(text, completion.ids, temperature, kv_heads=kv_heads)
        assert torch.allclose(torch.tensor(completion.logprobs), expected, atol=1e-4)


def test_greedy_equals_the_library_s_own_generation() -> None:
    model = tiny_model(scale=8.0)
    for text, completion in zip(PROMPTS, generate([request(t, temperature=0.0) for t in PROMPTS]), strict=True):
        ids = torch.tensor([RENDERER.encode(text)])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
        assert list(completion.ids) == expected.tolist()


def test_a_request_samples_the_same_tokens_in_any_company() -> None:
    alone = generate([request(PROMPTS[0], seed=7)])[0]
    among = generate([request(t, seed=s) for s, t in ((1, PROMPTS[3]), (7, PROMPTS[0]), (2, PROMPTS[1]))], max_batch=2)[1]
    assert alone.ids == among.ids


@pytest.mark.parametrize("max_batch", [1, 2, 8])
def test_lockstep_and_continuous_sample_the_same(max_batch: int) -> None:
    requests = [request(text, seed, max_tokens=4 + 2 * seed) for seed, text in enumerate(PROMPTS)]
    continuous, lockstep = generate(requests, max_batch), generate(requests, max_batch, lockstep=True)
    assert [c.ids for c in continuous] == [c.ids for c in lockstep]


def test_other_seeds_sample_other_tokens() -> None:
    assert len({c.ids for c in generate([request(PROMPTS[0], seed=s) for s in range(6)])}) > 1


def test_text_is_the_decoding_of_all_ids_and_a_stop_string_ends_the_row() -> None:
    free = generate([request(PROMPTS[0], seed=3, max_tokens=12)])[0]
    stop = RENDERER.decode(free.ids[4:6]).strip()
    stopped = generate([request(PROMPTS[0], seed=3, max_tokens=12, stop=[stop])])[0]
    assert stopped.finish == "stop"
    assert stop in stopped.text
    assert stopped.text == RENDERER.decode(stopped.ids)
    assert stopped.ids == free.ids[: len(stopped.ids)]
    assert stop not in RENDERER.decode(stopped.ids[:-1])


def test_a_stop_string_that_ends_inside_a_token_keeps_the_whole_token() -> None:
    free = generate([request(PROMPTS[0], seed=3, max_tokens=12)])[0]
    word = next(t for t in (TOKENIZER.decode([i]) for i in free.ids) if len(t.strip()) > 2)
    stopped = generate([request(PROMPTS[0], seed=3, max_tokens=12, stop=[word[:-1]])])[0]
    assert stopped.text.endswith(word)


def test_length_ends_a_row_without_a_stop() -> None:
    completion = generate([request(PROMPTS[0], max_tokens=3)])[0]
    assert (len(completion.ids), completion.finish) == (3, "length")


def test_top_p_records_the_log_probs_of_the_distribution_that_it_samples_from() -> None:
    for completion in generate([request(PROMPTS[0], seed=s, top_p=0.3) for s in range(4)]):
        full = recomputed(PROMPTS[0], completion.ids)
        assert (torch.tensor(completion.logprobs) >= full - 1e-4).all()  # mass outside the nucleus was given to it
        assert (torch.tensor(completion.logprobs) <= 1e-6).all()


def test_an_unknown_slot_is_named() -> None:
    engine = TransformersEngine({"shared": tiny_model()}, RENDERER, 2, 64)
    bad = GenerateRequest((1,), "planner", 1, (), Sampling(), 0)
    with pytest.raises(KeyError, match="planner"):
        asyncio.run(engine.generate(bad))
