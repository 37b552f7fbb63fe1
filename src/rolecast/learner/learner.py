"""One slot's training: log-probs before the update, the update in minibatches, and what can be said about it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rolecast import losses
from rolecast.credit import Floats
from rolecast.errors import ArtifactError, DivergedError, EmptyUpdateError, RatioGateError
from rolecast.learner.backends import Backend, Weights, make_backend
from rolecast.learner.batch import Padded, TokenBatch, microbatches, minibatches, weighted
from rolecast.learner.model import Critic, Policy, evaluate_tokens
from rolecast.learner.ranks import ALONE, Ranks
from rolecast.learner.settings import PLAIN, BackendConfig, OptimizerConfig
from rolecast.seeding import stream
from rolecast.types import Objective

Metrics = dict[str, float]
VALUE_CLIP = 0.5


@dataclass(slots=True)
class Learner:
    """Trains `policy` (and `critic`) on an objective. `updates` counts optimizer steps and drives the schedule."""

    objective: Objective
    policy: Policy
    backend: Backend
    seed: int
    max_tokens: int = 8192  # padded tokens of a micro-batch
    gate: float = 1e-4  # largest |ratio − 1| on the first on-policy minibatch
    importance_cap: float = 2.0
    reference: Policy | None = None
    critic: Critic | None = None
    critic_backend: Backend | None = None
    ranks: Ranks = ALONE
    updates: int = 0

    def score(self, batch: TokenBatch) -> TokenBatch:
        """Fills `old_logprob`, `ref_logprob` and `value` with the models as they are before the update."""
        batch = replace(batch, old_logprob=self._evaluate(self.backend.forward, batch))
        if self.reference is not None:
            batch = replace(batch, ref_logprob=self._evaluate(self.reference, batch))
        if self.critic_backend is not None:
            batch = replace(batch, value=self._evaluate(self.critic_backend.forward, batch))
        return batch

    def _evaluate(self, forward: Callable[[Padded], Any], batch: TokenBatch) -> Floats:
        """Each rank runs its share of the micro-batches; every rank gets all numbers."""
        chunks = self.ranks.share(microbatches(batch, self.max_tokens))
        return self.ranks.sum(evaluate_tokens(forward, batch, chunks, self.device))

    @property
    def device(self) -> torch.device:
        return next(self.policy.parameters()).device

    def sampler_mismatch(self, batch: TokenBatch) -> float:
        """The largest |π_old / π_sampler − 1| over trained tokens of a scored, on-policy batch."""
        difference = (batch.old_logprob - batch.sampler_logprob)[batch.trained]
        return float(np.abs(np.expm1(difference)).max()) if len(difference) else 0.0

    def check_on_policy(self, batch: TokenBatch) -> float:
        """Stops a run whose trainer and sampler disagree about the same weights."""
        mismatch = self.sampler_mismatch(batch)
        if mismatch > self.gate:
            raise RatioGateError(
                f"objective {self.objective.name}: trainer and sampler disagree on freshly sampled tokens, max |ratio - 1| = "
                f"{mismatch:.2e} > {self.gate:.0e}; the engine does not run the trainer's weights, or its precision needs a wider gate"
            )
        return mismatch

    def update(self, batch: TokenBatch, rollouts_of: Mapping[int, int] | None = None) -> Metrics:
        """One pass per epoch over minibatches of whole groups.

        `rollouts_of` counts the rollouts of each group in `batch.group`; only `per = "group"` reads it.
        """
        if not batch.trained.any():
            raise EmptyUpdateError(f"objective {self.objective.name}: the batch has no trained tokens; check rewards and dynamic sampling")
        tally: dict[str, list[tuple[float, float]]] = defaultdict(list)
        groups = len(np.unique(batch.group[batch.trained]))
        for epoch in range(self.objective.epochs):
            order = list(range(groups))
            stream(self.seed, "minibatches", self.updates, epoch).shuffle(order)
            for rows in minibatches(batch, self.objective.minibatches, order):
                part = batch.select(rows)
                self._minibatch(weighted(part, self.objective, rollouts_of or {}), tally)
        return _mean(self.ranks.gather(dict(tally)))

    def _minibatch(self, batch: TokenBatch, tally: dict[str, list[tuple[float, float]]]) -> None:
        total = 0.0
        shares = self.ranks.share(microbatches(batch, self.max_tokens))
        for place, (rows, counts) in enumerate(shares):
            last = place == len(shares) - 1
            padded = Padded.of(batch, rows, self.device)
            # A rank without a micro-batch of its own runs along with weight 0: every rank takes as many passes.
            told = tally if counts else defaultdict(list)
            loss = self._policy_loss(batch, padded, told) * counts
            self.backend.backward(loss, last)
            total += loss.item()
            if self.critic_backend is not None:
                self.critic_backend.backward(self._value_loss(batch, padded, told) * counts, last)
        if not math.isfinite(total):
            raise DivergedError(
                f"objective {self.objective.name}: the loss of update {self.updates} is {total}; the last checkpoint is sound, "
                "lower the learning rate"
            )
        tally["loss"].append((total * self.ranks.world, 1.0))  # the mean over ranks is the sum of their shares
        tally["grad_norm"].append((self.backend.step(self.updates), 1.0))
        tally["lr"].append((self.backend.rate(self.updates), 1.0))
        if self.critic_backend is not None:
            tally["critic/grad_norm"].append((self.critic_backend.step(self.updates), 1.0))
        self.updates += 1

    def _policy_loss(self, batch: TokenBatch, padded: Padded, tally: dict[str, list[tuple[float, float]]]) -> torch.Tensor:
        o = self.objective
        logprob, entropy = self.backend.forward(padded)
        column = _columns(batch, padded, logprob.device)
        tags = batch.tag[padded.flat]
        _tally_by_tag(tally, batch.tags, tags, "entropy", entropy)
        if o.loss == "nll":
            _tally_by_tag(tally, batch.tags, tags, "nll", -logprob.detach())
            nll: torch.Tensor = -(column("weight") * column("advantage") * logprob).sum()
            return nll
        if o.loss == "gspo":
            numbers, first, unit = np.unique(batch.unit[padded.flat], return_index=True, return_inverse=True)
            index = torch.from_numpy(unit).to(logprob.device)
            surrogate = losses.gspo(logprob, column("old_logprob"), column("advantage")[first], index, len(numbers), o.clip)
            weight, tags = column("weight")[first], tags[first]
        else:
            surrogate = losses.ppo(logprob, column("old_logprob"), column("advantage"), o.clip)
            weight = column("weight") * losses.truncated_importance(column("old_logprob"), column("sampler_logprob"), self.importance_cap)
        _tally_by_tag(tally, batch.tags, tags, "ratio", surrogate.ratio)
        _tally_by_tag(tally, batch.tags, tags, "clip_fraction", surrogate.clipped.float())
        loss = (weight * surrogate.loss).sum()
        if o.kl and o.kl_in == "loss":
            kl = losses.kl_k3(logprob, column("ref_logprob"))
            tally["kl"].append((float(kl.detach().mean()), len(kl)))
            loss = loss + o.kl * (column("weight") * kl).sum()
        return loss

    def _value_loss(self, batch: TokenBatch, padded: Padded, tally: dict[str, list[tuple[float, float]]]) -> torch.Tensor:
        assert self.critic_backend is not None
        predicted = self.critic_backend.forward(padded)
        column = _columns(batch, padded, predicted.device)
        surrogate = losses.value(predicted, column("value"), column("target"), VALUE_CLIP)
        n = float(len(predicted))
        tally["critic/loss"].append((float(surrogate.loss.detach().mean()), n))
        tally["critic/explained_variance"].append((losses.explained_variance(predicted.detach(), column("target")), n))
        return (column("weight") * surrogate.loss).sum()

    def model_weights(self) -> Weights:
        """Trained weights of the policy's language model, whole, under its own names, on every rank: its own tensors may be shards."""
        return {name.removeprefix("model."): tensor for name, tensor in self.backend.weights().items()}

    def load_model_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Puts the language model's weights back and forgets the optimizer's moments."""
        self.backend.load_weights({f"model.{name}": tensor for name, tensor in weights.items()})

    def save(self, folder: Path) -> None:
        """Everything but the policy's weights, which a checkpoint stores in Hugging Face form. Every rank calls it."""
        self.backend.save(folder / "policy")
        if self.critic is not None and self.critic_backend is not None:
            self.critic_backend.save(folder / "critic")
            weights = self.critic_backend.weights()
            if self.ranks.first:
                torch.save(weights, folder / "critic.pt")
        if self.ranks.first:
            (folder / "learner.json").write_text(json.dumps({"updates": self.updates, "world": self.ranks.world}))

    def load(self, folder: Path) -> None:
        """Raises `ArtifactError` where the state is cut for another number of ranks."""
        told = json.loads((folder / "learner.json").read_text())
        if self.backend.sharded and told["world"] != self.ranks.world:
            raise ArtifactError(
                f"{folder} was written by {told['world']} ranks, this job has {self.ranks.world}; start it with {told['world']}, "
                f"or convert the shards with deepspeed.checkpoint.ds_to_universal"
            )
        self.updates = told["updates"]
        self.backend.load(folder / "policy")
        if self.critic_backend is not None:
            self.critic_backend.load_weights(torch.load(folder / "critic.pt", weights_only=True, map_location="cpu"))
            self.critic_backend.load(folder / "critic")


def _mean(tallies: Sequence[Mapping[str, Sequence[tuple[float, float]]]]) -> Metrics:
    """Weighted means over all ranks."""
    names = dict.fromkeys(name for tally in tallies for name in tally)
    pairs = {name: [pair for tally in tallies for pair in tally.get(name, ())] for name in names}
    return {name: sum(v * w for v, w in numbers) / max(sum(w for _, w in numbers), 1e-12) for name, numbers in pairs.items()}


def _columns(batch: TokenBatch, padded: Padded, device: torch.device) -> Callable[[str], torch.Tensor]:
    def column(name: str) -> torch.Tensor:
        return torch.from_numpy(getattr(batch, name)[padded.flat]).to(device=device, dtype=torch.float32)

    return column


def _tally_by_tag(
    tally: dict[str, list[tuple[float, float]]], names: tuple[str, ...], tags: np.ndarray, metric: str, items: torch.Tensor
) -> None:
    """Adds the mean over all items and over the items of each tag."""
    numbers = items.detach().float().cpu().numpy()
    tally[metric].append((float(numbers.mean()), len(numbers)))
    for index, name in enumerate(names):
        picked = numbers[tags == index]
        if len(picked):
            tally[f"{name}/{metric}"].append((float(picked.mean()), len(picked)))


def make_learner(
    objective: Objective, policy: Policy, config: OptimizerConfig, updates: int, seed: int, *, max_tokens: int = 8192,
    reference: Policy | None = None, critic: Critic | None = None, gate: float = 1e-4, ranks: Ranks = ALONE,
    backend: BackendConfig = PLAIN,
) -> Learner:  # fmt: skip
    """`updates`: optimizer steps that the run will take at most; the schedule's length."""
    return Learner(
        objective, policy, make_backend(policy, backend, config, objective.lr, updates, ranks), seed, max_tokens=max_tokens, gate=gate,
        reference=reference, critic=critic, ranks=ranks,
        critic_backend=make_backend(critic, backend, config, objective.critic_lr, updates, ranks) if critic else None,
    )  # fmt: skip
