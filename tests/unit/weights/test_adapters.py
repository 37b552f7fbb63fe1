"""An adapter starts as nothing, is all that is trained and saved, and ends merged."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from rolecast.errors import ArtifactError, InputError
from rolecast.learner.backends import PlainBackend, Training, trained_weights
from rolecast.learner.optimizer import SlotOptimizer
from rolecast.learner.ranks import ALONE
from rolecast.learner.settings import OptimizerConfig
from rolecast.weights.adapters import activate, adapter_weights, add_adapter, is_adapter, load_adapter, merge, save_adapter
from rolecast.weights.settings import LoraConfig
from tests.tiny import tiny_model, tiny_team

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
        save_adapter(model, trained_weights(model), tmp_path / str(number), "shared")
        assert is_adapter(tmp_path / str(number))
        assert not (tmp_path / str(number) / "model.safetensors").exists()
    loaded = tiny_model(scale=5.0)
    for number, shift in enumerate((0.1, 0.3)):  # the second takes the first one's place
        load_adapter(loaded, tmp_path / str(number), "shared")
        assert torch.allclose(logits(loaded), logits(adapted(shift)), atol=1e-6)


def test_an_adapter_of_another_shape_of_model_is_refused(tmp_path: Path) -> None:
    model = adapted()
    save_adapter(model, trained_weights(model), tmp_path, "shared")
    weights = load_file(tmp_path / "adapter_model.safetensors")
    weights.popitem()
    save_file(weights, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ArtifactError, match="does not fit the model"):
        load_adapter(tiny_model(scale=5.0), tmp_path, "shared")


def test_weights_are_read_under_the_names_that_the_model_gives_them(tmp_path: Path) -> None:
    model = adapted()
    save_adapter(model, trained_weights(model), tmp_path, "shared")
    read = adapter_weights(tmp_path, "shared")
    assert read.keys() == trained_weights(model).keys()
    assert all(torch.equal(tensor, read[name]) for name, tensor in trained_weights(model).items())


def test_a_merged_model_says_what_the_adapter_said_and_is_an_ordinary_one(tmp_path: Path) -> None:
    model = adapted()
    said = logits(model)
    assert not torch.allclose(said, logits(tiny_model(scale=5.0)), atol=1e-2)
    merge(model, "shared")
    assert torch.allclose(logits(model), said, atol=1e-5)
    assert model.state_dict().keys() == tiny_model().state_dict().keys()
    model.save_pretrained(tmp_path)
    assert torch.allclose(logits(type(model).from_pretrained(tmp_path)), said, atol=1e-5)


def test_a_merge_is_not_rounded() -> None:
    with pytest.raises(ValueError, match=r"cannot be merged in torch\.bfloat16"):
        merge(adapted().to(torch.bfloat16), "shared")


def test_one_adapter_speaks_at_a_time_or_none() -> None:
    model = adapted(0.1)
    add_adapter(model, "other", LORA, seed=4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B.other" in name:
                parameter += 0.3
    said = {}
    for slot in ("shared", "other", None, "shared"):
        activate(model, slot)
        said.setdefault(slot, []).append(logits(model))
    assert torch.equal(said[None][0], logits(tiny_model(scale=5.0)))
    assert torch.equal(*said["shared"])
    assert not torch.allclose(said["shared"][0], said["other"][0], atol=1e-2)


def test_weights_that_are_put_back_must_all_be_there() -> None:
    team = tiny_team(lora=LORA)
    backend = PlainBackend(team, {"shared": Training(OptimizerConfig(), 1e-3, 1)}, ALONE)
    kept = {name: tensor.clone() for name, tensor in backend.weights().items()}
    with torch.no_grad():
        for _, parameter in team.trained("shared"):
            parameter.zero_()
    backend.load_weights(kept)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in backend.weights().items())
    name, _ = kept.popitem()
    with pytest.raises(KeyError, match=name):
        backend.load_weights(kept)


@pytest.mark.parametrize(("targets", "message"), [(["lm_head"], "ties"), (["q_proj", "embed_tokens"], "ties"), (["nothing"], "nothing")])
def test_targets_that_cannot_be_merged_or_found_are_refused(targets: list[str], message: str) -> None:
    with pytest.raises(InputError, match=f"model.lora.targets.*{message}"):
        add_adapter(tiny_model(), "shared", LoraConfig(targets=targets), seed=0)


def test_an_adapter_of_another_rank_is_refused(tmp_path: Path) -> None:
    model = adapted()
    save_adapter(model, trained_weights(model), tmp_path, "shared")
    other = tiny_model(scale=5.0)
    add_adapter(other, "shared", LoraConfig(rank=2), seed=3)
    with pytest.raises(ArtifactError, match="does not fit the model"):
        load_adapter(other, tmp_path, "shared")


def test_muon_trains_the_adapter_and_nothing_frozen() -> None:
    model = adapted()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    optimizer = SlotOptimizer(named, OptimizerConfig(name="muon"), 1e-2, 1)
    model(input_ids=IDS, labels=IDS, use_cache=False).loss.backward()
    optimizer.step(0)
    assert {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])} == set(trained_weights(model))


def test_a_second_adapter_is_no_oversight_and_other_warnings_are_heard(tmp_path: Path) -> None:
    model = adapted()
    save_adapter(model, {name: tensor for name, tensor in model.state_dict().items() if "lora_" in name}, tmp_path, "shared")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add_adapter(model, "second", LORA, seed=4)
        load_adapter(model, tmp_path, "third")
    with pytest.warns(UserWarning, match="tie_word_embeddings"), pytest.raises(InputError):
        add_adapter(tiny_model(), "shared", LoraConfig(rank=4, alpha=8, targets=["embed_tokens"]), seed=3)
