"""Training of a team's slots: log-probs before the update, the update in minibatches, and what can be said about it."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from rolecast.credit import Floats
from rolecast.errors import ArtifactError, DivergedError, EmptyUpdateError
from rolecast.learner.backends import Backend, Training, make_backend
from rolecast.learner.batch import Padded, Read, TokenBatch, example_units, make_batch
from rolecast.learner.cut import Cut, Micro, Minibatch, cut
from rolecast.learner.look import Look, TokenNumbers
from rolecast.learner.packed import Packed
from rolecast.learner.ranks import ALONE, Ranks
from rolecast.learner.refusals import PATIENCE, Refusal
from rolecast.learner.settings import PLAIN, BackendConfig, OptimizerConfig, Packing
from rolecast.learner.tally import Metrics, Tally, mean_of
from rolecast.learner.terms import Slopes, policy_loss, slopes_of, value_loss
from rolecast.seeding import stream
from rolecast.types import Example, Objective, Slot, Thread, Unit
from rolecast.weights.team import FROZEN, Team, Weights

Pass = tuple[str, bool, Callable[[], torch.Tensor]]
log = logging.getLogger(__name__)


@dataclass(slots=True)
class Learner:
    """Trains the slots of `objectives`. `updates` counts the optimizer steps of each slot and drives its schedule.

    An update in which a loss, a ratio or a gradient's norm is not finite is not made, on any rank: it is counted, `keep` gets what it
    would have learned from, and `PATIENCE` of them in a row of one slot raise `DivergedError`.
    """

    objectives: tuple[Objective, ...]
    team: Team
    backend: Backend
    seed: int
    temperature: float = 1.0  # that actions were sampled at
    max_tokens: int = 8192  # tokens of a micro-batch, with its padding
    packing: Packing = "off"
    ranks: Ranks = ALONE
    updates: dict[Slot, int] = field(default_factory=dict)
    refused: dict[Slot, int] = field(default_factory=dict)  # updates in a row that were not finite
    keep: Callable[[Refusal], None] | None = None  # called on the first rank
    spent: dict[str, float] = field(default_factory=lambda: {"score": 0.0, "update": 0.0})  # seconds, for whoever takes them
    look: frozenset[str] = frozenset()  # ids of actions whose tokens are told of; the same on all ranks
    looked: dict[str, TokenNumbers] = field(default_factory=dict)  # by action, for whoever takes them

    def cut(
        self, objective: Objective, threads: Sequence[Thread], useful: Sequence[Unit], units: Sequence[Unit], lengths: Mapping[str, int],
        examples: Sequence[Example] = (),
    ) -> Cut:  # fmt: skip
        """The step's batch of one objective: rows of the `useful` units, denominators from all `units`."""
        shown = example_units(examples, objective.name)
        groups = len({unit.group for unit in (*units, *shown)})
        order = list(range(groups))
        stream(self.seed, "minibatches", self.updates.get(objective.slot, 0), 0).shuffle(order)
        batch = make_batch(objective.slot, threads, useful, examples)
        known = {**lengths, **{unit.id: sum(example.trained) for unit, example in zip(shown, examples, strict=True)}}
        return cut(objective, batch, units, shown, known, self.max_tokens, order, self.packing)

    def score(self, of: Cut, sparing: bool = False) -> Cut:
        """Fills `old_logprob`, and `ref_logprob` and `value` where the objective wants them, with the weights before the update.

        `sparing`: `old_logprob` is left to the update where that is one pass over the batch: its log-probs are then the same numbers.
        """
        with self._timed("score"):
            return self._scored(of, sparing)

    def _scored(self, of: Cut, sparing: bool) -> Cut:
        o, batch = of.objective, of.batch
        penalised = o.kl is not None and o.kl.where == "reward"
        at_once = sparing and _is_one_pass(of) and not penalised
        if penalised or (o.policy is not None and not at_once):
            batch = replace(batch, old_logprob=self._evaluate(o.slot, of, batch))
        if o.kl is not None:
            batch = replace(batch, ref_logprob=self._evaluate(FROZEN, of, batch))
        if o.critic is not None:
            batch = replace(batch, value=self._evaluate(o.critic.slot, of, batch))
        return replace(of, batch=batch, at_once=at_once)

    def _rows(self, batch: TokenBatch, micro: Micro) -> Padded | Packed:
        """The micro-batch as the team takes it."""
        if self.packing == "off":
            return Padded.of(batch, micro.rows, self.team.device)
        return Packed.of(batch, micro.rows, self.packing == "prefixes", self.team.device)

    def _evaluate(self, slot: Slot, of: Cut, batch: TokenBatch) -> Floats:
        """One number for each trained token, 0 elsewhere, on every rank: each runs its share of every minibatch."""
        result = np.zeros(len(batch.ids))
        for minibatch in of.minibatches:
            result += self._run(slot, batch, minibatch)
        return self.ranks.sum(result)

    @torch.no_grad()
    def _run(self, slot: Slot, batch: TokenBatch, micros: Sequence[Micro]) -> Floats:
        """This rank's share of the numbers."""
        read: Read = []
        for micro, counts in self.ranks.share(micros):
            rows = self._rows(batch, micro)
            output = self.backend.forward(slot, rows, self.temperature)
            if counts:
                read.append((rows.flat, output[0] if isinstance(output, tuple) else output))
        return batch.over(read)

    def update(self, cuts: Sequence[Cut], check: Callable[[Cut], None] | None = None) -> Metrics:
        """One pass per epoch over the minibatches of every objective.

        The minibatches of one number make one update: those of objectives of one slot add up, other slots step beside it. `check` gets
        the cuts whose `old_logprob` comes from the update's own pass, filled, before anything moves; it may raise.
        Raises `EmptyUpdateError` where nothing is trained.
        """
        if not any(of.micros for of in cuts):
            raise EmptyUpdateError(f"objective {', '.join(of.objective.name for of in cuts)}: no row carries a gradient")
        tallies = {of.objective.name: Tally() for of in cuts}
        with self._timed("update"):
            self._epochs(cuts, tallies, check)
        return self._metrics(tallies)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spent[part] += time.perf_counter() - start

    def take_spent(self) -> dict[str, float]:
        """Seconds of scoring and updating since the last call."""
        spent, self.spent = self.spent, {"score": 0.0, "update": 0.0}
        return spent

    def _epochs(self, cuts: Sequence[Cut], tallies: Mapping[str, Tally], check: Callable[[Cut], None] | None) -> None:
        for epoch in range(max(of.objective.epochs for of in cuts)):
            running = sorted((of for of in cuts if epoch < of.objective.epochs), key=lambda of: (of.objective.slot, of.objective.name))
            for number in range(max(len(of.minibatches) for of in running)):
                self._update([(of, of.minibatches[number]) for of in running if number < len(of.minibatches)], tallies, check)
                if epoch == number == 0:
                    for tally in tallies.values():
                        tally.repeat("clip_fraction", "clip_fraction/first")

    def _update(
        self, parts: Sequence[tuple[Cut, Minibatch]], tallies: Mapping[str, Tally], check: Callable[[Cut], None] | None
    ) -> None:  # fmt: skip
        read: dict[str, Read] = {of.objective.name: [] for of, _ in parts if of.at_once}
        looks = {of.objective.name: Look(of.batch, self.look) for of, _ in parts} if self.look else {}
        passes = [
            one
            for of, minibatch in parts
            for name in (of.objective.name,)
            for one in self._passes(of, minibatch, tallies[name], read.get(name), looks.get(name))
        ]
        found: dict[tuple[str, bool], list[torch.Tensor]] = {}
        for place, (name, of_policy, loss_of) in enumerate(passes):
            loss = loss_of()
            self.backend.backward(loss, last=place == len(passes) - 1)
            found.setdefault((name, of_policy), []).append(loss.detach())
        # Numbers are read only now: until here a GPU has the next pack's pass in its queue before it is done with the last one's.
        totals = {key: sum(map(float, losses)) for key, losses in found.items()}
        # A rank has its share of a loss alone, and all have to do the same: passes, and so their names, are alike on all of them.
        bad = self.ranks.sum(np.array([not math.isfinite(total) for total in totals.values()], dtype=np.float64))
        spoilt: dict[Slot, str] = {}
        for ((name, of_policy), total), ranks in zip(totals.items(), bad, strict=True):
            o = next(of.objective for of, _ in parts if of.objective.name == name)
            if ranks:
                slot = o.slot if of_policy or o.critic is None else o.critic.slot
                spoilt[slot] = f"the loss of objective {name} is no finite number on {int(ranks)} of {self.ranks.world} ranks"
            elif of_policy:
                tallies[name].add("loss", total * self.ranks.world)  # the mean over ranks is the sum of their shares
        for of, _ in parts:
            if check is not None and of.at_once and of.objective.slot not in spoilt:
                old = self.ranks.sum(of.batch.over(read[of.objective.name]))
                check(replace(of, batch=replace(of.batch, old_logprob=old)))
        for look in looks.values():
            self.looked |= look.told(self.ranks.sum(look.found()))
        self._step(parts, tallies, spoilt, moved=bool(passes))
        for tally in tallies.values():
            tally.read()

    def _passes(
        self, of: Cut, minibatch: Minibatch, tally: Tally, read: Read | None = None, look: Look | None = None
    ) -> list[Pass]:  # fmt: skip
        """What is to be computed of one minibatch, in an order that is the same on every rank: objective, whether it trains
        the policy or the critic, and its loss. `read` gets this rank's share of the policy's log-probs."""
        o, batch = of.objective, of.batch
        slopes = self._slopes(of, minibatch, tally)
        found: list[Pass] = []

        def policy(micro: Micro, counts: bool) -> torch.Tensor:
            rows = self._rows(batch, micro)
            told = tally if counts else Tally()  # a rank without a micro-batch of its own runs along with weight 0
            if isinstance(rows, Packed):
                rows.tell(told, self.max_tokens)
            output = self.backend.forward(o.slot, rows, self.temperature)
            if read is not None and counts:
                read.append((rows.flat, output[0].detach()))
            if look is not None and counts:
                look.read(rows.flat, *output)
            return policy_loss(o, batch, rows, output, None if micro.whole else slopes, told, of.at_once) * counts

        def value(micro: Micro, counts: bool) -> torch.Tensor:
            assert o.critic is not None
            rows = self._rows(batch, micro)
            return value_loss(o, batch, rows, self.backend.forward(o.critic.slot, rows), tally if counts else Tally()) * counts

        shares = self.ranks.share(minibatch)
        if o.policy is not None or o.imitation is not None or (o.kl is not None and o.kl.where == "loss"):
            found += [(o.name, True, partial(policy, micro, counts)) for micro, counts in shares]
        if o.critic is not None:
            found += [(o.name, False, partial(value, micro, counts)) for micro, counts in shares]
        return found

    def _slopes(self, of: Cut, minibatch: Minibatch, tally: Tally) -> Slopes | None:
        """For units that had to be cut apart: their ratios with the weights as they are, before their tokens' own passes."""
        parts = [micro for micro in minibatch if not micro.whole]
        if not parts:
            return None
        assert of.objective.policy is not None  # which has one ratio per unit: nothing else keeps rows together
        logprob = self.ranks.sum(self._run(of.objective.slot, of.batch, parts))
        held = np.zeros(of.batch.rows, dtype=bool)
        held[[row for micro in parts for row in micro.rows]] = True
        tokens = np.flatnonzero(np.repeat(held, of.batch.row_lengths()) & of.batch.trained)
        return slopes_of(of.objective.policy, of.batch, logprob, tokens, tally if self.ranks.first else Tally())

    def _step(self, parts: Sequence[tuple[Cut, Minibatch]], tallies: Mapping[str, Tally], spoilt: Mapping[Slot, str], moved: bool) -> None:
        """The optimizer step of every slot that has rows and is not `spoilt`; the others do not move. A schedule goes on with or without."""
        of_slot = {of.objective.slot: tallies[of.objective.name] for of, _ in parts}
        critic_of = {of.objective.critic.slot: tallies[of.objective.name] for of, _ in parts if of.objective.critic}
        rows = {slot for of, minibatch in parts if minibatch for slot in of.objective.rates}
        numbers = {slot: self.updates.get(slot, 0) for slot in sorted(rows)}
        norms = self.backend.step({slot: number for slot, number in numbers.items() if slot not in spoilt}) if moved else {}
        for slot, norm in {**norms, **dict.fromkeys(spoilt, math.nan)}.items():
            tally, prefix = (of_slot[slot], "") if slot in of_slot else (critic_of[slot], "critic/")
            tally.add(f"{prefix}refused", float(not math.isfinite(norm)))
            tally.add(f"{prefix}lr", self.backend.rate(slot, numbers[slot]))
            if math.isfinite(norm):
                self.refused[slot] = 0
                tally.add(f"{prefix}grad_norm", norm)
            else:
                self.refuse(slot, spoilt.get(slot, f"the gradient's norm is {norm}"), [of for of, _ in parts if slot in of.objective.rates])
        for slot in {*of_slot, *critic_of}:
            self.updates[slot] = self.updates.get(slot, 0) + 1

    def refuse(self, slot: Slot, reason: str, batches: Sequence[Cut]) -> None:
        """Notes that an update of the slot is not made. Every rank calls it. Raises `DivergedError` after too many in a row."""
        self.refused[slot] = self.refused.get(slot, 0) + 1
        refusal = Refusal(slot, self.updates.get(slot, 0), self.refused[slot], reason, batches)
        log.warning("%s", refusal)
        if self.keep is not None and self.ranks.first:
            self.keep(refusal)
        if self.refused[slot] >= PATIENCE:
            raise DivergedError(
                f"slot {slot}: {PATIENCE} updates in a row were not finite, the last because {reason}; none of them was applied, "
                "the last checkpoint is sound; lower the learning rate"
            )

    def _metrics(self, tallies: Mapping[str, Tally]) -> Metrics:
        """Under the objective's name where there are several."""
        numbers: Metrics = {}
        for name, tally in tallies.items():
            prefix = f"{name}/" if len(self.objectives) > 1 else ""
            numbers |= {prefix + key: value for key, value in mean_of(self.ranks.gather(dict(tally.pairs))).items()}
        return numbers

    def take_looked(self) -> dict[str, TokenNumbers]:
        """What updates made of the tokens of `look` since the last call; nobody looks any more."""
        looked, self.looked, self.look = self.looked, {}, frozenset()
        return looked

    @property
    def slots(self) -> list[Slot]:
        """Everything that is trained, critics included."""
        return sorted({slot for o in self.objectives for slot in o.rates})

    def weights(self) -> Weights:
        """Trained weights by their names in the team, whole, on every rank: its own tensors may be shards."""
        return self.backend.weights()

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Puts weights back, critics' too, and forgets the optimizers' moments."""
        self.backend.load_weights(weights)

    def save(self, folder: Path) -> None:
        """Everything but the slots' weights, which a checkpoint stores in Hugging Face form. Every rank calls it."""
        self.backend.save(folder / "optimizer")
        if self.ranks.first:
            (folder / "learner.json").write_text(
                json.dumps({"updates": self.updates, "refused": self.refused, "world": self.ranks.world, "backend": self.backend.name})
            )

    def load(self, folder: Path) -> None:
        """Raises `ArtifactError` where the state is another backend's, or is cut for another number of ranks."""
        told = json.loads((folder / "learner.json").read_text())
        if self.backend.sharded and told["world"] != self.ranks.world:
            raise ArtifactError(
                f"{folder} was written by {told['world']} ranks, this job has {self.ranks.world}; start it with {told['world']}, "
                f"or convert the shards with deepspeed.checkpoint.ds_to_universal"
            )
        if told["backend"] != self.backend.name:
            raise ArtifactError(
                f"{folder} holds the optimizer's state of {told['backend']}, and this job trains with {self.backend.name}; go on with the "
                "learner and the ZeRO stage that it was written with"
            )
        self.updates = told["updates"]
        self.refused = told.get("refused", {})
        self.backend.load(folder / "optimizer")


def _is_one_pass(of: Cut) -> bool:
    """Whether every log-prob of the policy is computed once in the update, before anything moves."""
    o = of.objective
    return o.policy is not None and o.epochs == 1 and len(of.minibatches) == 1 and all(micro.whole for micro in of.micros)


def make_learner(
    objectives: Sequence[Objective], team: Team, optimizer: OptimizerConfig, steps: int, seed: int, *, temperature: float = 1.0,
    max_tokens: int = 8192, packing: Packing = "off", ranks: Ranks = ALONE, backend: BackendConfig = PLAIN,
    optimizers: Mapping[Slot, OptimizerConfig] | None = None,
) -> Learner:  # fmt: skip
    """`steps`: that the stage will take at most. `optimizers`: of slots that have another one than `optimizer`."""
    trainings: dict[Slot, Training] = {}
    for slot in sorted({slot for o in objectives for slot in o.rates}):
        here = [o for o in objectives if slot in o.rates]
        rates = {o.rates[slot] for o in here}
        if len(rates) > 1:
            raise ValueError(f"slot {slot} has rates {sorted(rates)} in {', '.join(o.name for o in here)}: a slot has one")
        updates = steps * max(o.epochs * o.minibatches for o in here)
        trainings[slot] = Training((optimizers or {}).get(slot, optimizer), rates.pop(), updates)
    return Learner(
        tuple(objectives),
        team,
        make_backend(team, trainings, backend, ranks),
        seed,
        temperature=temperature,
        max_tokens=max_tokens,
        packing=packing,
        ranks=ranks,
    )
