"""One slot's training: log-probs before the update, the update in minibatches, and what can be said about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rolecast import losses
from rolecast.errors import EmptyUpdateError, RatioGateError
from rolecast.learner.batch import Padded, TokenBatch, microbatches, minibatches, weighted
from rolecast.learner.model import Critic, Policy, evaluate_tokens
from rolecast.learner.optimizer import Optimizer, OptimizerConfig
from rolecast.seeding import stream
from rolecast.types import Objective

Metrics = dict[str, float]
VALUE_CLIP = 0.5


@dataclass(slots=True)
class Learner:
    """Trains `policy` (and `critic`) on an objective. `updates` counts optimizer steps and drives the schedule."""

    objective: Objective
    policy: Policy
    optimizer: Optimizer
    seed: int
    max_tokens: int = 8192  # padded tokens of a micro-batch
    gate: float = 1e-4  # largest |ratio − 1| on the first on-policy minibatch
    importance_cap: float = 2.0
    reference: Policy | None = None
    critic: Critic | None = None
    critic_optimizer: Optimizer | None = None
    updates: int = 0

    def score(self, batch: TokenBatch) -> TokenBatch:
        """Fills `old_logprob`, `ref_logprob` and `value` with the models as they are before the update."""
        chunks = microbatches(batch, self.max_tokens)
        batch = replace(batch, old_logprob=evaluate_tokens(self.policy, batch, chunks))
        if self.reference is not None:
            batch = replace(batch, ref_logprob=evaluate_tokens(self.reference, batch, chunks))
        if self.critic is not None:
            batch = replace(batch, value=evaluate_tokens(self.critic, batch, chunks))
        return batch

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
        return {name: sum(v * w for v, w in pairs) / max(sum(w for _, w in pairs), 1e-12) for name, pairs in tally.items()}

    def _minibatch(self, batch: TokenBatch, tally: dict[str, list[tuple[float, float]]]) -> None:
        device = next(self.policy.parameters()).device
        total = 0.0
        for rows in microbatches(batch, self.max_tokens):
            padded = Padded.of(batch, rows, device)
            loss = self._policy_loss(batch, padded, tally)
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
            if self.critic is not None:
                self._value_loss(batch, padded, tally).backward()  # type: ignore[no-untyped-call]
        tally["loss"].append((total, 1.0))
        tally["grad_norm"].append((self.optimizer.step(self.updates), 1.0))
        tally["lr"].append((self.optimizer.rate(self.updates), 1.0))
        if self.critic_optimizer is not None:
            tally["critic/grad_norm"].append((self.critic_optimizer.step(self.updates), 1.0))
        self.updates += 1

    def _policy_loss(self, batch: TokenBatch, padded: Padded, tally: dict[str, list[tuple[float, float]]]) -> torch.Tensor:
        o = self.objective
        logprob, entropy = self.policy(padded)
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
        assert self.critic is not None
        predicted = self.critic(padded)
        column = _columns(batch, padded, predicted.device)
        surrogate = losses.value(predicted, column("value"), column("target"), VALUE_CLIP)
        n = float(len(predicted))
        tally["critic/loss"].append((float(surrogate.loss.detach().mean()), n))
        tally["critic/explained_variance"].append((losses.explained_variance(predicted.detach(), column("target")), n))
        return (column("weight") * surrogate.loss).sum()

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights of the policy's language model, which a checkpoint stores in Hugging Face form."""
        return {
            "updates": self.updates,
            "optimizer": self.optimizer.state_dict(),
            "critic": self.critic.state_dict() if self.critic else None,
            "critic_optimizer": self.critic_optimizer.state_dict() if self.critic_optimizer else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.updates = state["updates"]
        self.optimizer.load_state_dict(state["optimizer"])
        if self.critic is not None and self.critic_optimizer is not None:
            self.critic.load_state_dict(state["critic"])
            self.critic_optimizer.load_state_dict(state["critic_optimizer"])


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
    reference: Policy | None = None, critic: Critic | None = None, gate: float = 1e-4,
) -> Learner:  # fmt: skip
    """`updates`: optimizer steps that the run will take at most; the schedule's length."""
    critic_optimizer = Optimizer(critic, config, objective.critic_lr, updates) if critic else None
    return Learner(
        objective, policy, Optimizer(policy, config, objective.lr, updates), seed, max_tokens=max_tokens, gate=gate,
        reference=reference, critic=critic, critic_optimizer=critic_optimizer,
    )  # fmt: skip
