"""Layers that run through torch.compile: one program for all of them and for every pack, and the same one for scores and updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from forests import random_forest
from rows import objective
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from rolecast.credit import Floats
from rolecast.learner.batch import Read, action_lengths, make_batch
from rolecast.learner.cut import Cut
from rolecast.learner.learner import make_learner
from rolecast.learner.packed import Packed
from rolecast.learner.settings import BackendConfig, OptimizerConfig
from rolecast.types import Objective, ValueTerm
from rolecast.weights.logprobs import PLAIN, Kernels
from rolecast.weights.settings import LoraConfig
from rolecast.weights.team import FROZEN, Casting, Team
from tests.architectures import gentle
from tests.tiny import TOKENIZER, tiny_team

CPU = torch.device("cpu")


def compile_by(backend: str | Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of inductor; nothing that other tests compiled is left."""
    torch.compiler.reset()
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda run, **options: compiled(run, backend=backend, **options))


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_compiled_trunk_computes_alike_for_every_pack(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as it is for a GPU, and run by torch's own functions: compiling for a CPU takes a minute."""
    traced: list[int] = []

    def run(graph: torch.fx.GraphModule, given: Any) -> Callable[..., Any]:
        traced.append(len(given))
        return graph.forward

    compile_by(run, monkeypatch)
    threads, units, _ = random_forest(0)
    batch = make_batch("shared", threads, units)
    plain, fast = Team(gentle(name), TOKENIZER), Team(gentle(name), TOKENIZER)
    fast.compile_layers()
    counts = []
    for rows in ([0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11]):
        given = Packed.of(batch, rows, True, CPU)
        chosen, wanted = fast(FROZEN, given)[0], plain(FROZEN, given)[0]
        assert torch.allclose(chosen, wanted, atol=1e-5)
        counts.append(len(traced))
    assert counts == [2, 2, 2]  # one program for all layers and one for logits, and for all widths
    with torch.no_grad():
        assert torch.equal(fast(FROZEN, given)[0], chosen)
    assert len(traced) == 2  # and for scores
    assert "forward" not in vars(fast.base.model.layers[0])  # who else runs the model runs it as it is
    chosen.sum().backward()
    wanted.sum().backward()
    for one, other in zip(fast.base.parameters(), plain.base.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, other.grad, atol=1e-4)


def test_scores_come_from_the_compiled_program_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler rounds otherwise where nothing is kept for a backward pass; here it is off by far more."""

    made: list[str] = []

    def trains(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        made.append("trains")
        return make_boxed_func(graph.forward)

    def only_reads(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        return make_boxed_func(lambda *given: [_off(found) for found in graph.forward(*given)])

    compile_by(aot_autograd(fw_compiler=trains, inference_compiler=only_reads), monkeypatch)
    of, anew, values = twice(replace(objective("gspo", "group"), critic=ValueTerm("critic", 1e-2)), kernels=PLAIN)
    assert np.array_equal(anew, of.batch.old_logprob)
    assert np.array_equal(values, of.batch.value)
    assert made  # layers are compiled


@torch.no_grad()
@pytest.mark.parametrize("compiled", [True, False])
def test_scoring_keeps_nothing_for_a_backward_pass_beyond_its_layers(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_by("eager", monkeypatch)
    team = Team(gentle("llama"), TOKENIZER)
    team.compile_layers() if compiled else team.recompute_layers()
    threads, units, _ = random_forest(0)
    batch = make_batch("shared", threads, units)
    wants: list[bool] = []
    model = cast(Any, team.base)
    model.model.norm.register_forward_hook(lambda _, __, found: wants.append(found.requires_grad))
    model.lm_head.register_forward_hook(lambda _, given, found: wants.extend(one.requires_grad for one in (*given, found)))
    found = team(FROZEN, Packed.of(batch, range(batch.rows), True, CPU))
    assert wants == [compiled, False, False]
    assert not any(one.requires_grad for one in found)


@pytest.mark.slow
def test_scores_are_an_update_s_numbers_to_the_bit_in_bfloat16() -> None:
    """As torch compiles for a CPU: scores of a program that only reads were off by 0.03 here."""
    of, anew, _ = twice(objective("gspo", "group"), torch.bfloat16)
    assert np.array_equal(anew, of.batch.old_logprob)


def twice(o: Objective, dtype: torch.dtype = torch.float32, kernels: Kernels | None = None) -> tuple[Cut, Floats, Floats]:
    """A cut of two minibatches that was scored, layers compiled, and what an update's own passes give: log-probs, and a critic's values."""
    torch.compiler.reset()  # programs of other tests
    casting = Casting(frozenset({"shared"}), ("shared",), ("critic",) if o.critic else ())
    team = tiny_team(casting, scale=8.0, lora=LoraConfig(rank=4, alpha=16)).to(dtype)
    if o.critic:
        torch.nn.init.normal_(cast(Tensor, team.heads["critic"].weight))
    learner = make_learner(
        [replace(o, minibatches=2)], team, OptimizerConfig(), 1, 0, packing="prefixes", backend=BackendConfig(compile=True)
    )
    if kernels is not None:
        team._kernels = kernels
    threads, units, _ = random_forest(3, groups=4, members=8)
    of = learner.score(learner.cut(learner.objectives[0], threads, units, units, action_lengths(threads)))
    assert len(of.minibatches) == 2
    read: dict[str, Read] = {"shared": [], "critic": []}
    for micro in of.micros:
        rows = Packed.of(of.batch, micro.rows, True, CPU)
        read["shared"].append((rows.flat, learner.backend.forward("shared", rows)[0].detach()))
        if o.critic:
            read["critic"].append((rows.flat, learner.backend.forward("critic", rows).detach()))
    return of, of.batch.over(read["shared"]), of.batch.over(read["critic"])


def _off(found: Any) -> Any:
    return found * 1.01 if isinstance(found, Tensor) and found.is_floating_point() else found
