"""A team is put together in one place: who speaks with what, from where it continues, and what is saved of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rolecast.errors import ArtifactError, DivergedError
from rolecast.learner.batch import Padded
from rolecast.weights.canary import canary
from rolecast.weights.models import read_model
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import BASE, FROZEN, Casting, Team, assemble, slots_in
from tests.tiny import TOKENIZER, tiny_model, tiny_team

LORA = LoraConfig(rank=4, alpha=8)
BOTH = Casting(frozenset({"planner", "answerer"}), ("answerer", "planner"), ("critic",), frozen=True)


def said(team: Team, slot: str) -> tuple[float, ...]:
    return canary(team.model(slot), TOKENIZER).logprobs


def moved(team: Team) -> Team:
    """Every trained weight moves, each slot's by another amount."""
    with torch.no_grad():
        for number, slot in enumerate(sorted(slot for slot in team.place if slot != FROZEN), 1):
            for name, parameter in team.trained(slot):
                if "lora_A" not in name:
                    parameter += 0.05 * number
    return team


@pytest.mark.parametrize("lora", [LORA, None])
def test_slots_are_apart_and_the_frozen_one_is_the_base_as_it_was(lora: LoraConfig | None) -> None:
    team = moved(tiny_team(BOTH, lora=lora, scale=3.0))
    answers = {slot: said(team, slot) for slot in ("planner", "answerer", "critic", FROZEN, "planner")}
    assert len(set(answers.values())) == 4
    assert answers[FROZEN] == canary(tiny_model(scale=3.0), TOKENIZER).logprobs
    assert said(team, "a slot of nobody") == answers[FROZEN]


@pytest.mark.parametrize("lora", [LORA, None])
@pytest.mark.parametrize("spoken", [{FROZEN}, {"a role of nobody"}, {FROZEN, "a role of nobody"}, set()])
def test_who_is_not_trained_speaks_as_the_base_was_whoever_is_asked_first(lora: LoraConfig | None, spoken: set[str]) -> None:
    casting = Casting(frozenset({"planner", *spoken}), ("planner",))
    team = tiny_team(casting, lora=lora, scale=3.0)
    before = canary(tiny_model(scale=3.0), TOKENIZER).logprobs
    with torch.no_grad():
        for _, parameter in team.trained("planner"):
            parameter += 0.05
    assert [said(team, slot) == before for slot in sorted(spoken)] == [True] * len(spoken)
    assert said(team, "planner") != before
    assert len(team.whole) == (1 if spoken and lora is None else 0)  # no copy that nobody needs


def test_a_role_that_is_not_trained_here_speaks_as_the_stage_before_left_it(tmp_path: Path) -> None:
    first = moved(tiny_team(BOTH, scale=3.0))
    first.save(("planner", "answerer"), tmp_path)
    second = assemble(tiny_model(scale=3.0), TOKENIZER, Casting(frozenset({"planner", "answerer"}), ("planner",)), start=tmp_path)
    for slot in ("planner", "answerer"):
        assert said(second, slot) == pytest.approx(said(first, slot), abs=1e-6)
    assert [name for name, _ in second.trained("answerer")] == []


def test_a_new_adapter_is_drawn_from_the_seed() -> None:
    def drawn(**seed: int) -> dict[str, torch.Tensor]:
        team = assemble(tiny_model(), TOKENIZER, BOTH, lora=LORA, **seed)
        return {name: parameter for name, parameter in team.trained("planner") if "lora_A" in name}

    plain, zero, one = drawn(), drawn(seed=0), drawn(seed=1)
    assert all(torch.equal(tensor, zero[name]) and not torch.equal(tensor, one[name]) for name, tensor in plain.items())


def test_adapters_need_no_second_model() -> None:
    team = tiny_team(BOTH, lora=LORA)
    assert len(team.whole) == 0
    assert team.model("planner") is team.model(FROZEN) is team.base


@pytest.mark.parametrize("lora", [LORA, None])
def test_trained_weights_are_those_of_the_casting(lora: LoraConfig | None) -> None:
    team = tiny_team(BOTH, lora=lora)
    names = [{name for name, _ in team.trained(slot)} for slot in ("planner", "answerer", "critic")]
    assert all(names)
    assert not (names[0] & names[1] | names[0] & names[2] | names[1] & names[2])
    assert set.union(*names) == {name for name, parameter in team.named_parameters() if parameter.requires_grad}
    assert {"heads.critic.weight", "heads.critic.bias"} <= names[2]


@pytest.mark.parametrize("slot", ["critic", "planner"])
def test_what_is_said_of_a_token_is_of_the_state_that_it_is_drawn_in(slot: str) -> None:
    """Of the third token: the two before it count, for a log-prob the token itself, and what follows or pads does not."""
    team = tiny_team(BOTH, scale=3.0)
    torch.manual_seed(1)
    torch.nn.init.normal_(team.heads["critic"].weight)
    place = {"row": torch.tensor([0]), "column": torch.tensor([2])}

    def number(*ids: int) -> float:
        told = team(slot, Padded(torch.tensor([ids]), **place, flat=np.arange(len(place["row"]))))
        return float(told if slot == "critic" else told[0])

    whole = number(5, 6, 7, 8)
    assert number(5, 6, 7, 9) == number(5, 6, 7, 0) == pytest.approx(whole, abs=1e-6)
    assert (abs(number(5, 6, 9, 8) - whole) > 1e-3) == (slot != "critic")
    assert abs(number(5, 9, 7, 8) - whole) > 1e-3
    assert abs(number(9, 6, 7, 8) - whole) > 1e-3


@pytest.mark.parametrize("lora", [LORA, None])
def test_a_checkpoint_goes_before_what_a_stage_started_from(lora: LoraConfig | None, tmp_path: Path) -> None:
    start, saved = tmp_path / "start", tmp_path / "saved"
    team = moved(tiny_team(BOTH, lora=lora, scale=3.0))
    team.save(("planner", "answerer"), start)
    moved(team).save(("planner", "answerer", "critic"), saved)
    again = assemble(tiny_model(scale=3.0), TOKENIZER, BOTH, start=start, saved=saved, lora=lora)
    for slot in ("planner", "answerer"):
        assert said(again, slot) == pytest.approx(said(team, slot), abs=1e-6)
    assert torch.equal(again.heads["critic"].weight, team.heads["critic"].weight)
    assert again.heads["critic"].weight.abs().min() > 0


@pytest.mark.parametrize("lora", [LORA, None])
def test_what_is_saved_comes_back_slot_by_slot(lora: LoraConfig | None, tmp_path: Path) -> None:
    team = moved(tiny_team(BOTH, lora=lora, scale=3.0))
    team.save(("planner", "answerer", "critic"), tmp_path)
    assert slots_in(tmp_path) == ["answerer", "critic", "planner"]
    again = assemble(tiny_model(scale=3.0), TOKENIZER, BOTH, saved=tmp_path, lora=lora)
    into = tiny_team(BOTH, lora=lora, scale=3.0)
    into.load(tmp_path, ("planner", "answerer"))
    read = team.read(tmp_path, ("planner", "answerer", "critic"))
    for slot in ("planner", "answerer", FROZEN):
        assert said(again, slot) == pytest.approx(said(team, slot), abs=1e-6)
        assert said(into, slot) == pytest.approx(said(team, slot), abs=1e-6)
    assert torch.equal(again.heads["critic"].weight, team.heads["critic"].weight)
    for slot in ("planner", "answerer", "critic"):
        assert all(torch.equal(parameter, read[name]) for name, parameter in team.trained(slot))


def test_a_slot_continues_as_its_start_has_it(tmp_path: Path) -> None:
    first = moved(tiny_team(Casting(frozenset({"planner"}), ("planner",)), lora=LORA, scale=3.0))
    first.base.save_pretrained(tmp_path)  # where a stage ended without merging
    first.save(("planner",), tmp_path)
    second = assemble(tiny_model(scale=3.0), TOKENIZER, BOTH, start=tmp_path, lora=LORA)
    assert said(second, "planner") == pytest.approx(said(first, "planner"), abs=1e-6)
    assert said(second, "answerer") == said(second, FROZEN)  # a new adapter says what the base says
    speaking = assemble(tiny_model(scale=3.0), TOKENIZER, Casting(frozenset({"planner", "answerer"})), start=tmp_path)
    assert said(speaking, "planner") == pytest.approx(said(first, "planner"), abs=1e-6)
    assert not any(parameter.requires_grad for parameter in speaking.parameters())


def test_an_adapter_of_the_base_is_what_new_slots_start_from_and_what_is_frozen(tmp_path: Path) -> None:
    """Where merging would round, the base's adapter stays apart: nothing that sees the team can tell."""
    first = moved(tiny_team(Casting(frozenset({"shared"}), ("shared",)), lora=LORA, scale=3.0))
    first.save(("shared",), tmp_path)
    (tmp_path / "slots" / "shared").rename(tmp_path / "slots" / BASE)
    second = assemble(
        tiny_model(scale=3.0), TOKENIZER, Casting(frozenset({"planner"}), ("planner",), frozen=True), start=tmp_path, lora=LORA
    )
    before = said(first, "shared")
    assert said(second, FROZEN) == pytest.approx(before, abs=1e-6)
    assert said(second, "planner") == pytest.approx(before, abs=1e-6)
    moved(second)
    assert said(second, FROZEN) == pytest.approx(before, abs=1e-6)
    assert said(second, "planner") != pytest.approx(before, abs=1e-3)
    assert all(BASE not in name.split(".")[1:] for name, _ in second.trained("planner"))


def test_adapters_of_a_run_without_lora_are_refused(tmp_path: Path) -> None:
    tiny_team(Casting(frozenset({"planner"}), ("planner",)), lora=LORA).save(("planner",), tmp_path)
    with pytest.raises(ArtifactError, match=r"slot answerer .* model.lora is not set"):
        assemble(tiny_model(), TOKENIZER, Casting(frozenset({"answerer"}), ("answerer",)), start=tmp_path)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_is_never_saved(number: float, tmp_path: Path) -> None:
    team = tiny_team(BOTH, lora=LORA)
    [*_, (_, parameter)] = team.trained("planner")
    with torch.no_grad():
        parameter[0, 0] = number
    with pytest.raises(DivergedError, match=r"slot planner: weight .*lora_.* is not finite"):
        team.save(("planner",), tmp_path)
    team.save(("answerer",), tmp_path)  # which is


def test_a_whole_slot_is_an_ordinary_model_directory(tmp_path: Path) -> None:
    team = moved(tiny_team(Casting(frozenset({"shared"}), ("shared",)), scale=3.0))
    team.save(("shared",), tmp_path)
    read = read_model(tmp_path / "slots" / "shared", torch.float32, torch.device("cpu"))
    assert canary(read, TOKENIZER).logprobs == pytest.approx(said(team, "shared"), abs=1e-6)
    assert "model.embed_tokens.weight" in load_file(tmp_path / "slots" / "shared" / "model.safetensors")


@pytest.mark.parametrize(("lora", "often"), [(LORA, 1), (None, 2)])
def test_in_chunks_gradients_are_those_of_all_logits_at_once(lora: LoraConfig | None, often: int) -> None:
    """And a head that nobody trains makes its logits once."""
    ids = torch.randint(10, 60, (3, 9), generator=torch.Generator().manual_seed(2))
    row, column = torch.tensor([[r, c] for r in range(3) for c in range(2, 9)]).unbind(-1)
    rows = Padded(ids, row, column, np.arange(len(row)))
    weight = torch.randn(len(row), generator=torch.Generator().manual_seed(3))
    gradients, calls = [], {}
    for chunks in (1, 4):
        team = moved(tiny_team(BOTH, lora=lora, scale=3.0))
        team.chunk = -(-len(row) * team.base.config.vocab_size // chunks)
        assert team.chunks(rows) == chunks
        calls[chunks] = made = list[int]()
        handle = team.model("planner").get_output_embeddings().register_forward_hook(lambda *_, made=made: made.append(1))
        chosen, _ = team("planner", rows, 0.8)
        torch.autograd.backward((chosen * weight).sum())
        handle.remove()
        gradients.append({name: parameter.grad for name, parameter in team.trained("planner")})
    assert {chunks: len(made) for chunks, made in calls.items()} == {1: 1, 4: 4 * often}
    for name, whole in gradients[0].items():
        assert whole is not None
        assert whole.abs().max() > 0, name
        torch.testing.assert_close(gradients[1][name], whole, atol=1e-6, rtol=1e-4)


def test_zero_3_asks_a_head_again() -> None:
    """Which says in how many chunks: shards of weights are fetched as a forward and a backward pass come to them."""
    team = moved(tiny_team(BOTH, lora=LORA, scale=3.0))
    made: list[int] = []
    team.model("planner").get_output_embeddings().register_forward_hook(lambda *_: made.append(1))
    place = torch.tensor([0, 0, 0]), torch.tensor([1, 2, 3])
    chosen, _ = team("planner", Padded(torch.tensor([[5, 6, 7, 8]]), *place, np.arange(3)), 1.0, 3)
    torch.autograd.backward(chosen.sum())
    assert len(made) == 6


@pytest.mark.parametrize("trains", [True, False])
def test_what_trains_between_trunk_and_head_is_trained_in_chunks(trains: bool) -> None:
    class Norm(torch.nn.Module):
        """In a model's own head, as some have it."""

        def __init__(self, head: torch.nn.Module) -> None:
            super().__init__()
            self.head, self.gain = head, torch.nn.Parameter(torch.ones(32))
            self.weight = self.gain  # where a head's weight is looked for

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.head(self.gain * hidden)  # type: ignore[no-any-return]

    team = moved(tiny_team(BOTH, lora=LORA, scale=3.0))
    norm = Norm(team.base.lm_head).requires_grad_(False)
    norm.gain.requires_grad_(trains)
    team.base.lm_head, team.chunk = norm, 1
    team.base.get_output_embeddings = lambda: norm.head  # what stands behind the trunk is more than that
    place = torch.tensor([0, 0, 0]), torch.tensor([1, 2, 3])
    chosen, _ = team("planner", Padded(torch.tensor([[5, 6, 7, 8]]), *place, np.arange(3)), 1.0)
    torch.autograd.backward(chosen.sum())
    assert (norm.gain.grad is not None) == trains
