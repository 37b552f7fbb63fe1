"""Packed and prefix-shared micro-batches have the log-probs, values, loss and gradient of rows that are padded each on its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, cast

import numpy as np
import pytest
import torch
from forests import random_forest
from rows import OBJECTIVE, Alone, objective
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from rolecast.credit import Floats
from rolecast.learner.batch import Padded, TokenBatch, action_lengths, make_batch
from rolecast.learner.cut import Cut
from rolecast.learner.forest import Rows
from rolecast.learner.learner import Learner, make_learner
from rolecast.learner.packed import Packed
from rolecast.learner.ranks import ALONE, Ranks
from rolecast.learner.settings import OptimizerConfig, Packing
from rolecast.types import Example, ImitationTerm, Objective, ValueTerm
from rolecast.weights import attention
from rolecast.weights.logprobs import in_chunks
from rolecast.weights.settings import CHUNK, LoraConfig
from rolecast.weights.team import FROZEN, Casting, Team
from tests.architectures import SUPPORTED, gentle
from tests.tiny import TOKENIZER, tiny_team

PACKINGS: list[Packing] = ["rows", "prefixes"]
CPU = torch.device("cpu")
PPO = replace(objective("ppo", "group", kl=0.5), critic=ValueTerm("critic", 1e-2))
GSPO = objective("gspo", "group", kl=0.5)
SFT = replace(OBJECTIVE, policy=None, imitation=ImitationTerm(1.0))
Gradient = dict[str, Tensor]


def learner_of(o: Objective, packing: Packing, max_tokens: int, lora: LoraConfig | None = None) -> Learner:
    casting = Casting(frozenset({"shared"}), ("shared",), ("critic",) if o.critic else (), o.kl is not None)
    team = tiny_team(casting, scale=8.0, lora=lora)
    if o.critic:
        torch.manual_seed(1)
        torch.nn.init.normal_(cast(Tensor, team.heads["critic"].weight))
    return make_learner([o], team, OptimizerConfig(), 1, 0, max_tokens=max_tokens, packing=packing)


def examples() -> list[Example]:
    threads, _, _ = random_forest(5)
    return [Example(t.ids, tuple(i % 3 > 0 for i in range(len(t.ids))), 1.0 + n % 3, "r", "o") for n, t in enumerate(threads)]


def scored(o: Objective, packing: Packing, max_tokens: int, seed: int) -> tuple[Learner, Cut]:
    learner = learner_of(o, packing, max_tokens)
    threads, units, _ = random_forest(seed)
    shown = examples() if o.imitation else []
    own = [] if o.policy is None else units
    return learner, learner.score(learner.cut(o, threads, own, own, action_lengths(threads), shown))


def update(o: Objective, packing: Packing, max_tokens: int, seed: int, ranks: Ranks = ALONE) -> tuple[dict[str, float], Gradient]:
    """The metrics and the gradient of one update, of a policy that has moved on since its actions were scored."""
    learner, of = scored(o, packing, max_tokens, seed)
    batch, draw = of.batch, np.random.default_rng(seed)
    if o.policy is not None:
        batch = batch.with_actions("advantage", random_forest(seed)[2])
        old = batch.old_logprob + batch.trained * draw.normal(0, 0.2, len(batch.ids))
        batch = replace(
            batch, old_logprob=old, sampler_logprob=old + 0.1 * batch.trained, target=batch.trained * draw.normal(0, 1, len(batch.ids))
        )
    gradient: Gradient = {}

    def step(numbers: Any) -> dict[str, float]:
        gradient.update({name: p.grad.clone() for name, p in learner.team.named_parameters() if p.grad is not None})
        return {}

    learner.ranks = ranks
    learner.backend.step = step  # type: ignore[method-assign]
    return learner.update([replace(of, batch=batch)]), gradient


def assert_equal(found: Gradient, wanted: Gradient) -> None:
    assert found.keys() == wanted.keys()
    assert max(float(g.abs().max()) for g in wanted.values()) > 1e-2
    for name, gradient in wanted.items():
        assert torch.allclose(found[name], gradient, atol=1e-5, rtol=1e-5), name


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("o", [PPO, GSPO, SFT], ids=["ppo", "gspo", "sft"])
@pytest.mark.parametrize("seed", range(4))
def test_loss_and_gradient_are_those_of_rows_on_their_own(o: Objective, packing: Packing, seed: int) -> None:
    """Over random forests, in packs that hold all and in packs that cut trees and units."""
    wanted, of_rows = update(o, "off", 10**6, seed)
    for max_tokens in (10**6, 64):
        found, gradient = update(o, packing, max_tokens, seed)
        assert_equal(gradient, of_rows)
        for name in (
            "loss",
            "entropy",
            *(["kl", "ratio"] if o.policy else ["nll"]),
            *(["critic/loss"] if o.critic and max_tokens > 64 else []),
        ):
            assert found[name] == pytest.approx(wanted[name], abs=1e-5, rel=1e-5), name


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_packs_of_all_ranks_add_up(packing: Packing) -> None:
    """Packs do not come out even over the ranks: one that has none of its own runs another's along, with weight 0."""
    world = len(scored(PPO, packing, 40, 0)[1].micros) - 1
    assert world > 1
    whole, gradient = update(PPO, packing, 10**6, 0)
    shares = [update(PPO, packing, 40, 0, Alone(rank, world)) for rank in range(world)]
    assert_equal({name: sum((share[name] for _, share in shares), torch.zeros_like(own)) for name, own in gradient.items()}, gradient)
    assert sum(metrics["loss"] for metrics, _ in shares) / world == pytest.approx(whole["loss"], abs=1e-5)


def test_ranks_read_each_log_prob_once_in_one_pass() -> None:
    """Also where one of them runs another's pack along, with weight 0."""
    of = scored(PPO, "rows", 40, 0)[1]
    world, wanted = len(of.micros) - 1, of.batch.old_logprob
    shares: list[Floats] = []
    for rank in range(world):
        learner, of = scored(PPO, "rows", 40, 0)
        learner.ranks = Alone(rank, world)
        batch = of.batch.with_actions("advantage", random_forest(0)[2])
        learner.update([replace(of, batch=batch, at_once=True)], lambda seen: shares.append(seen.batch.old_logprob))
    assert np.allclose(sum(shares), wanted, atol=1e-5)


def test_packs_repeat_to_the_last_bit() -> None:
    """As lockstep wants it, chunks included."""

    def once() -> Gradient:
        model = gentle("qwen2")
        return forward(model, True, chunk=7)[1]

    torch.use_deterministic_algorithms(True)
    try:
        one, other = once(), once()
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(gradient, other[name]) for name, gradient in one.items())


@pytest.mark.parametrize("chunk", [None, 5])
def test_an_adapter_learns_the_same_from_packs(chunk: int | None) -> None:
    """One that has moved, so that both of its matrices have a gradient."""
    found = []
    for packing in ("off", "prefixes"):
        learner = learner_of(replace(GSPO, kl=None), cast(Packing, packing), 64, LoraConfig(rank=4))
        adapter = learner.team.trained("shared")
        torch.manual_seed(2)
        for _, parameter in adapter:
            torch.nn.init.normal_(parameter, std=0.2)
        if packing != "off" and chunk:
            learner.team.chunk = chunk * learner.team.base.config.vocab_size
        threads, units, _ = random_forest(0)
        of = learner.cut(learner.objectives[0], threads, units, units, action_lengths(threads))
        for micro in of.micros:
            given = learner._rows(of.batch, micro)
            chosen, _ = learner.team("shared", given)
            (chosen * torch.from_numpy(np.sin(given.flat)).float()).sum().backward()
        found.append({name: parameter.grad.clone() for name, parameter in adapter if parameter.grad is not None})
    assert all(float(gradient.abs().max()) > 1e-2 for gradient in found[0].values())
    assert len(found[0]) == len(learner.team.trained("shared"))
    for name, gradient in found[0].items():
        assert torch.allclose(found[1][name], gradient, atol=1e-5 * max(1.0, float(gradient.abs().max()))), name


def test_an_update_says_how_full_its_packs_are_and_what_they_share() -> None:
    threads, _, _ = random_forest(0)
    held = sum(len(thread.ids) for thread in threads)
    batch = make_batch("shared", threads, random_forest(0)[1])
    laid = Rows.of(batch, range(batch.rows), sharing=True).total
    for max_tokens in (10**6, 64):
        learner, of = scored(replace(PPO, critic=None), "prefixes", max_tokens, 0)
        metrics = learner.update([replace(of, batch=of.batch.with_actions("advantage", random_forest(0)[2]))])
        assert metrics["pack/fill"] == 1.0  # on a CPU there are no fillers
        if max_tokens > 64:
            assert metrics["pack/trie_ratio"] == pytest.approx(held / laid)
            assert metrics["pack/of_budget"] == pytest.approx(laid / max_tokens)
        else:
            assert 1 < metrics["pack/trie_ratio"] < held / laid
            assert 0.5 < metrics["pack/of_budget"] <= 1
    learner, of = scored(replace(PPO, critic=None), "off", 64, 0)
    assert not [name for name in learner.update([of]) if name.startswith("pack/")]


@pytest.mark.parametrize("packing", PACKINGS)
def test_what_is_scored_is_the_same(packing: Packing) -> None:
    wanted = scored(PPO, "off", 10**6, 0)[1].batch
    for max_tokens in (10**6, 64):
        found = scored(PPO, packing, max_tokens, 0)[1].batch
        for name in ("old_logprob", "ref_logprob", "value"):
            numbers = getattr(wanted, name)
            assert np.abs(numbers[wanted.trained]).min() > 0
            np.testing.assert_allclose(getattr(found, name), numbers, atol=1e-5)


@pytest.mark.parametrize("packing", PACKINGS)
def test_scoring_and_update_compute_alike(packing: Packing) -> None:
    o = replace(GSPO, kl=None)
    learner, of = scored(o, packing, 64, 0)
    batch = of.batch.with_actions("advantage", random_forest(0)[2])
    metrics = learner.update([replace(of, batch=replace(batch, sampler_logprob=batch.old_logprob))])
    assert metrics["ratio"] == 1.0


def forward(
    model: Any, sharing: bool | None, rows: Sequence[int] | None = None, seed: int = 0, chunk: int = 0
) -> tuple[np.ndarray, Gradient]:
    """Log-probs per token of the batch, and the gradient of a weighted sum of them."""
    threads, units, _ = random_forest(seed)
    batch = make_batch("shared", threads, units)
    team = Team(model, TOKENIZER)
    if chunk:
        team.chunk = chunk * model.config.vocab_size
    held = rows or range(batch.rows)
    given = Padded.of(batch, held, CPU) if sharing is None else Packed.of(batch, held, sharing, CPU)
    chosen, entropy = team(FROZEN, given, 0.7)
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=len(batch.ids)))[given.flat].float()
    model.zero_grad()
    (chosen * weight).sum().backward()
    numbers = np.zeros((2, len(batch.ids)))
    numbers[:, given.flat] = torch.stack([chosen.detach(), entropy]).numpy()
    return numbers, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", [name for name in SUPPORTED if name != "phi3-long"])
def test_every_architecture_computes_alike_in_packs(name: str) -> None:
    """Heads that share keys, sliding windows that are shorter than a row, soft caps, sinks, experts."""
    model = gentle(name)
    threads, _, _ = random_forest(0)
    assert max(len(thread.ids) for thread in threads) > 16  # twice the window
    wanted, of_rows = forward(model, None)
    scale = max(float(g.abs().max()) for g in of_rows.values())
    for sharing in (False, True):
        found, gradient = forward(model, sharing)
        np.testing.assert_allclose(found, wanted, atol=2e-5)
        for key, own in of_rows.items():
            assert torch.allclose(gradient[key], own, atol=1e-5 * max(1.0, scale)), key


@pytest.mark.parametrize("sharing", [None, False, True])
@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3-moe", "cohere"])
@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_of_logits_change_nothing(name: str, sharing: bool | None, chunk: int) -> None:
    model = gentle(name)
    wanted, whole = forward(model, sharing)
    sizes: list[int] = []
    handle = model.get_output_embeddings().register_forward_hook(lambda head, given, made: sizes.append(made.shape[-2]))
    found, gradient = forward(model, sharing, chunk=chunk)
    handle.remove()
    assert 1 <= max(sizes) <= chunk
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    for key, own in whole.items():
        assert torch.allclose(gradient[key], own, atol=1e-4), key
    assert "forward" not in model.base_model.__dict__  # the trunk is the model's own again


def peak_of(run: Callable[[], None]) -> int:
    """The most bytes that are allocated at one time while it runs, beyond those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
        run()
    assert told.profiler is not None
    events = [event for event in told.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def test_the_loss_takes_no_more_memory_than_a_chunk_of_logits_does() -> None:
    """Some 12 bytes a logit of a chunk: under half a GiB as it is set, however many tokens there are and however large the vocabulary
    is; beside it the head's gradient, which has a second one to be added to it."""
    vocabulary, width = 50_000, 4
    head = torch.nn.Linear(width, vocabulary, bias=False)
    head.weight.grad = torch.zeros_like(head.weight)

    def peak(tokens: int, size: int) -> int:
        hidden, target = torch.randn(tokens, width, requires_grad=True), torch.randint(vocabulary, (tokens,))

        def run() -> None:
            chosen, _ = in_chunks(head, hidden, target, 1.3, tokens // size)
            chosen.sum().backward()

        return peak_of(run)

    weights = 2 * head.weight.numel() * 4
    for size in (8, 16, 64):
        assert 8 * size * vocabulary < peak(256, size) < 13 * size * vocabulary + weights
    assert peak(512, 16) < 1.02 * peak(128, 16)
    assert peak(256, 256) > 9 * peak(256, 16)  # in one piece
    assert 13 * CHUNK < 2**30 / 2


def test_a_trained_token_that_several_rows_share_is_asked_for_once() -> None:
    threads, units, _ = random_forest(0)
    batch = make_batch("shared", threads, units)
    given = Packed.of(batch, range(batch.rows), True, CPU)
    assert len(given.source) < len(given.flat) == batch.trained.sum()
    assert len(given.forest.end) == given.ids.shape[1] < len(batch.ids)


def test_fillers_see_themselves_alone_and_change_nothing() -> None:
    """On a GPU a pack ends at a multiple of a block."""
    threads, units, _ = random_forest(0)
    batch = make_batch("shared", threads, units)
    bare = Packed.of(batch, range(batch.rows), True, CPU)
    filled = Packed.filled(bare, 128)
    n, width = bare.ids.shape[1], filled.ids.shape[1]
    assert width % 128 == 0 < width - n
    places = torch.arange(width)
    seen = filled.forest.sees(None)(places[:, None], places[None])
    assert torch.equal(seen[n:], torch.eye(width, dtype=torch.bool)[n:])
    assert not seen[:n, n:].any()
    team = Team(gentle("qwen2"), TOKENIZER)
    for one, other in zip(team(FROZEN, bare), team(FROZEN, filled), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("window", [None, 8])
def test_a_mask_of_blocks_is_the_dense_one(window: int | None) -> None:
    size = 4
    threads, units, _ = random_forest(1, groups=4, members=8)
    batch = make_batch("shared", threads, units)
    for sharing in (False, True):
        forest = Packed.filled(Packed.of(batch, range(batch.rows), sharing, CPU), size).forest
        places = torch.arange(len(forest.end))
        dense = forest.sees(window)(places[:, None], places[None])
        blocks = forest.blocks(window, size)
        tiles = dense.view(len(places) // size, size, -1, size).transpose(1, 2)
        listed = blocks.to_dense()[0, 0].bool()  # partial and full ones
        full = torch.zeros_like(listed)
        for row, (count, columns) in enumerate(zip(blocks.full_kv_num_blocks[0, 0], blocks.full_kv_indices[0, 0], strict=True)):
            full[row, columns[:count].long()] = True
        assert not (tiles.any(-1).any(-1) & ~listed).any()  # nothing that is seen is left out
        assert not (full & ~tiles.all(-1).all(-1)).any()
        if window is None:
            assert torch.equal(listed, tiles.any(-1).any(-1))
            assert full.any()
        assert torch.equal(blocks.mask_mod(torch.tensor(0), torch.tensor(0), places[:, None], places[None]), dense)


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_flex_attention_gives_what_the_dense_mask_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward only: its backward pass needs a GPU. Not compiled, which is the same function."""
    import transformers.integrations.flex_attention as flex

    ran: list[Any] = []

    def plain(query: Tensor, key: Tensor, value: Tensor, training: bool = False, **options: Any) -> Any:
        ran.append(options["block_mask"])
        return flex.flex_attention(query, key, value, **options)

    monkeypatch.setattr(flex, "compile_friendly_flex_attention", plain)
    threads, units, _ = random_forest(0)
    batch = make_batch("shared", threads, units)
    given = Packed.filled(Packed.of(batch, range(batch.rows), True, CPU), 128)
    team = Team(gentle(name), TOKENIZER)
    wanted, _ = team(FROZEN, given)
    blocks = {kind: given.forest.blocks(window) for kind, window in attention.windows_of(team.base.config).items()}
    mask = blocks if len(blocks) > 1 else next(iter(blocks.values()))
    monkeypatch.setattr(
        attention.Forest, "inputs", lambda forest, config, dtype: {"position_ids": forest.position[None], "attention_mask": mask}
    )
    found, _ = team(FROZEN, given)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert len(ran) == 2  # once a layer


@pytest.mark.parametrize("lay", [lambda batch, rows: Packed.of(batch, rows, True, CPU), lambda batch, rows: Padded.of(batch, rows, CPU)])
def test_a_micro_batch_asks_once_what_of_the_batch_is_trained(lay: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as long as the batch: asked row by row, 2,000 rows took more than a second to lay."""
    threads, units, _ = random_forest(0)
    batch = make_batch("shared", threads, units)
    asked: list[TokenBatch] = []
    trained = TokenBatch.trained.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(TokenBatch, "trained", property(lambda self: asked.append(self) or trained(self)))
    lay(batch, range(batch.rows))
    assert len(asked) == 1


def test_rows_that_share_nothing_are_packed_without_looking_at_every_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pack would have is then a sum: 2,000 rows took two thirds of a second."""
    threads, units, _ = random_forest(0, groups=30, members=4)
    batch = make_batch("shared", threads, units)
    counted: list[int] = []
    tokens = Rows.tokens
    monkeypatch.setattr(Rows, "tokens", lambda self, numbers: counted.append(len(numbers)) or tokens(self, numbers))
    found = Rows.of(batch, range(batch.rows), False).packs([[row] for row in range(batch.rows)], 200)
    assert len(found) > 5
    assert max(counted) == 1
