"""An adapter starts as nothing, is all that is trained and saved, and ends merged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from rolecast.errors import ArtifactError, InputError
from rolecast.learner.adapters import add_adapter, is_adapter, load_adapter, merge_adapter
from rolecast.learner.backends import PlainBackend, trained_weights
from rolecast.learner.checkpoint import save_model
from rolecast.learner.model import Policy
from rolecast.learner.optimizer import Optimizer
from rolecast.learner.ranks import ALONE
from rolecast.learner.settings import LoraConfig, OptimizerConfig
from tests.tiny import TOKENIZER, tiny_model

LORA = LoraConfig(rank=4, alpha=8)
IDS = torch.tensor([[5, 6, 7, 8]])


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


def adapted(shift: float = 0.1) -> PreTrainedModel:
    """A tiny model with an adapter that has been moved by `shift`."""
    model = tiny_model(scale=5.0)
    add_adapter(model, "shared", LORA, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter += shift
    return model


def test_a_new_adapter_changes_nothing_and_freezes_the_rest() -> None:
    model, plain = tiny_model(scale=5.0), tiny_model(scale=5.0)
    add_adapter(model, "shared", LORA, seed=3)
    assert torch.equal(logits(model), logits(plain))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == set(trained_weights(model))
    assert {name.split(".")[-3] for name in trained} == {"lora_A", "lora_B"}
    assert len(trained) == 2 * 7 * 2  # A and B of seven linear layers in two blocks: the head is left alone


def test_ranks_draw_the_same_adapter() -> None:
    one, two = tiny_model(), tiny_model()
    for rank, model in enumerate((one, two)):
        torch.manual_seed(rank)  # whatever each of them drew before
        add_adapter(model, "shared", LORA, seed=3)
    assert all(torch.equal(tensor, trained_weights(two)[name]) for name, tensor in trained_weights(one).items())


def test_what_is_saved_is_an_adapter_and_loads_over_the_base(tmp_path: Path) -> None:
    for number, shift in enumerate((0.1, 0.3)):
        model = adapted(shift)
        save_model(model, TOKENIZER, tmp_path / str(number), trained_weights(model))
        assert is_adapter(tmp_path / str(number))
        assert not (tmp_path / str(number) / "model.safetensors").exists()
    loaded = tiny_model(scale=5.0)
    for number, shift in enumerate((0.1, 0.3)):  # the second takes the first one's place
        load_adapter(loaded, tmp_path / str(number), "shared")
        assert torch.allclose(logits(loaded), logits(adapted(shift)), atol=1e-6)


def test_an_adapter_of_another_shape_of_model_is_refused(tmp_path: Path) -> None:
    model = adapted()
    save_model(model, TOKENIZER, tmp_path, trained_weights(model))
    weights = load_file(tmp_path / "adapter_model.safetensors")
    weights.popitem()
    save_file(weights, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ArtifactError, match="does not fit the model"):
        load_adapter(tiny_model(scale=5.0), tmp_path, "shared")


def test_a_merged_model_says_what_the_adapter_said(tmp_path: Path) -> None:
    model = adapted()
    assert not torch.allclose(logits(model), logits(tiny_model(scale=5.0)), atol=1e-2)
    save_model(model, TOKENIZER, tmp_path, trained_weights(model))
    merge_adapter(tmp_path, tiny_model(scale=5.0), TOKENIZER)
    assert not is_adapter(tmp_path)
    assert is_adapter(tmp_path / "adapter")
    assert torch.allclose(logits(AutoModelForCausalLM.from_pretrained(tmp_path)), logits(model), atol=1e-5)


def test_weights_that_are_put_back_must_all_be_there() -> None:
    model = adapted()
    backend = PlainBackend(Policy(model), OptimizerConfig(), 1e-3, 1, ALONE)
    kept = {name: tensor.clone() for name, tensor in backend.weights().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.zero_()
    backend.load_weights(kept)
    assert torch.equal(logits(model), logits(adapted()))
    name, _ = kept.popitem()
    with pytest.raises(KeyError, match=name):
        backend.load_weights(kept)


@pytest.mark.parametrize(("targets", "message"), [(["lm_head"], "ties"), (["q_proj", "embed_tokens"], "ties"), (["nothing"], "nothing")])
def test_targets_that_cannot_be_merged_or_found_are_refused(targets: list[str], message: str) -> None:
    with pytest.raises(InputError, match=f"model.lora.targets.*{message}"):
        add_adapter(tiny_model(), "shared", LoraConfig(targets=targets), seed=0)


def test_an_adapter_of_another_rank_is_refused(tmp_path: Path) -> None:
    model = adapted()
    save_model(model, TOKENIZER, tmp_path, trained_weights(model))
    other = tiny_model(scale=5.0)
    add_adapter(other, "shared", LoraConfig(rank=2), seed=3)
    with pytest.raises(ArtifactError, match="does not fit the model"):
        load_adapter(other, tmp_path, "shared")


def test_muon_trains_the_adapter_and_nothing_frozen() -> None:
    model = adapted()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = Optimizer(Policy(model), OptimizerConfig(name="muon"), 1e-2, 1)
    model(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
    optimizer.step(0)
    assert {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])} == set(trained_weights(model))
