"""The logits of chosen positions are the model's own, whatever it does after its head."""

from __future__ import annotations

import numpy as np
import peft
import pytest
import torch

from rolecast.learner.batch import Padded
from rolecast.weights.forward import token_logits
from rolecast.weights.team import FROZEN, Team
from tests.architectures import random_model
from tests.tiny import TOKENIZER

IDS = torch.randint(10, 200, (3, 12), generator=torch.Generator().manual_seed(1))
ROW, COLUMN = torch.tensor([0, 0, 2, 1]), torch.tensor([3, 11, 0, 7])


@pytest.mark.parametrize("name", ["llama", "gemma2", "granite", "cohere"])
@torch.no_grad()
def test_chosen_positions_have_the_logits_of_the_whole_forward(name: str) -> None:
    model = random_model(name)
    whole = model(input_ids=IDS, use_cache=False).logits[ROW, COLUMN]
    seen = []
    handle = model.get_output_embeddings().register_forward_hook(lambda head, given, made: seen.append(made.shape[-2]))
    assert torch.allclose(token_logits(model, ROW, COLUMN, input_ids=IDS, use_cache=False), whole, atol=1e-5)
    assert seen == [len(ROW)]  # no other position went through the head
    handle.remove()
    assert torch.equal(model(input_ids=IDS, use_cache=False).logits[ROW, COLUMN], whole)  # nothing is left on the model


@pytest.mark.parametrize("name", ["gemma2", "granite"])
def test_the_policy_trains_on_the_model_s_own_log_probs(name: str) -> None:
    model = random_model(name)
    chosen, _ = Team(model, TOKENIZER)(FROZEN, Padded(IDS, ROW, COLUMN + 1 - (COLUMN == 11).long(), np.arange(4)), 0.7)
    columns = COLUMN - (COLUMN == 11).long()
    logprobs = torch.log_softmax(model(input_ids=IDS, use_cache=False).logits / 0.7, -1)
    assert torch.allclose(chosen, logprobs[ROW, columns, IDS[ROW, columns + 1]], atol=1e-4)
    chosen.sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for p in (model.get_output_embeddings().weight, model.get_input_embeddings().weight)
    )


def test_an_adapter_on_the_head_takes_part() -> None:
    model = random_model("qwen3", tie_word_embeddings=False)
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False), model, "shared")
    whole = model(input_ids=IDS, use_cache=False).logits[ROW, COLUMN]
    picked = token_logits(model, ROW, COLUMN, input_ids=IDS, use_cache=False)
    assert torch.allclose(picked, whole, atol=1e-5)
    picked.sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for name, p in model.named_parameters() if "lm_head.lora_" in name)


def test_a_head_that_is_not_called_is_an_error() -> None:
    model = random_model("llama")
    model.get_output_embeddings = lambda: torch.nn.Linear(1, 1)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="LlamaForCausalLM computes its logits without calling its output embedding"):
        token_logits(model, ROW, COLUMN, input_ids=IDS, use_cache=False)
