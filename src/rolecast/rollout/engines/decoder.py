"""Continuous batching for one model: waiting requests are prefilled into free rows, every row decodes a token a step."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from weakref import WeakKeyDictionary

import numpy as np
import torch
from transformers import PreTrainedConfig, PreTrainedModel

from rolecast.errors import SamplingError
from rolecast.ports import Completion, GenerateRequest
from rolecast.rollout.engines.masks import AttentionMasks
from rolecast.rollout.engines.sampling import sample
from rolecast.rollout.engines.static_cache import StaticRows
from rolecast.rollout.render import Renderer
from rolecast.weights.forward import token_logits
from rolecast.weights.supported import check_supported

Promise = asyncio.Future[Completion] | concurrent.futures.Future[Completion]
_STOP_WINDOW = 24  # tokens that are decoded to look for a stop string; longer than any of them
# Bytes on a CPU, whose memory is everybody's: of keys and values, all slots together, and of what a prefill computes at once.
CPU_CACHE, CPU_PREFILL = 3 * 2**29, 3 * 2**28


@dataclass(slots=True)
class _Row:
    request: GenerateRequest
    promise: Promise
    uniforms: list[float]  # one draw per token: sampling does not depend on the rest of the batch
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.request.ids) + len(self.ids)

    @property
    def end(self) -> int:
        """What its length may come to."""
        return len(self.request.ids) + self.request.max_tokens


def not_finite(model: PreTrainedModel) -> str:
    """Why a model gives logits that are no numbers, with the next step."""
    weights = [parameter.detach() for parameter in model.parameters()]
    bad = sum(int((~torch.isfinite(weight)).sum()) for weight in weights)
    if bad:
        return f"{bad} of {sum(weight.numel() for weight in weights)} weights are not finite; take an earlier checkpoint and a lower learning rate"
    return "all weights are finite, and their logits are not; take a lower learning rate, or float32"


class Decoder:
    """`model` gives the weights; it is called once for each forward pass, since slots may share a base with adapters in turns.

    `share` of what engines may reserve on a CPU is this decoder's: requests beyond it wait, as those beyond `max_batch` do.
    """

    def __init__(
        self, model: Callable[[], PreTrainedModel], renderer: Renderer, max_batch: int, max_context: int, share: float = 1.0
    ) -> None:
        self.queue: deque[tuple[GenerateRequest, Promise]] = deque()
        self.rows: list[_Row] = []
        self._cut: WeakKeyDictionary[Promise, tuple[int, ...]] = WeakKeyDictionary()  # what requests got whose callers have gone
        self._model = model
        self._renderer = renderer
        self._max_batch = max_batch
        first = model()
        check_supported(first, max_context)
        self._device = first.device
        self._on_cpu = first.device.type == "cpu"
        limit = int(CPU_CACHE * share) if self._on_cpu else None
        self._cache = StaticRows(first.config, max_batch, max_context, first.dtype, first.device, limit)
        self._numbers = _numbers_per_token(first.config) * first.dtype.itemsize
        self._masks = AttentionMasks(first.config, first.dtype)
        self._ends = _end_tokens(first, renderer)
        # transformers renamed the argument in 5.2x; both names are in use in the versions that we support.
        self._cache_argument = "cache" if "cache" in inspect.signature(first.forward).parameters else "past_key_values"

    @property
    def waiting(self) -> int:
        return sum(not promise.done() for _, promise in self.queue)

    def hasten(self) -> None:
        """Requests of what has the fewest turns left go first; of others, those that came first."""
        if len({request.urgency for request, _ in self.queue}) > 1:
            self.queue = deque(sorted(self.queue, key=lambda waiting: waiting[0].urgency))

    def sampled(self, promise: Promise) -> tuple[int, ...]:
        """What a request has got that is not finished, or whose caller went away: its row may have been another's since."""
        return self._cut.get(promise) or next((tuple(row.ids) for row in self.rows if row.promise is promise), ())

    def clear(self) -> list[Promise]:
        """Forgets all requests; the promises that are still to be kept."""
        open_ = [promise for _, promise in self.queue] + [row.promise for row in self.rows]
        self.queue.clear()
        self.rows.clear()
        return [promise for promise in open_ if not promise.done()]

    @torch.no_grad()
    def admit(self) -> int:
        """Prefills waiting requests into free rows, and samples the first token of each; returns how many were sampled."""
        new = self._taken()
        if new:
            self._cache.reserve(len(self.rows) + len(new), max(row.length for row in new), live=len(self.rows))
        for some in self._portions(new):
            self._prefill(some)
        return len(new)

    def _taken(self) -> list[_Row]:
        """The requests, in their order, for which there are rows and room up to their last token."""
        new: list[_Row] = []
        longest = max((row.end for row in self.rows), default=0)
        while self.queue and len(self.rows) + len(new) < self._max_batch:
            request, promise = self.queue[0]
            if not promise.done():  # else its caller has gone
                row = _Row(request, promise, [])
                longest = max(longest, row.end)
                if not self._cache.fits(len(self.rows) + len(new) + 1, longest):
                    break
                row.uniforms = np.random.Generator(np.random.PCG64(request.seed)).random(request.max_tokens).tolist()
                new.append(row)
            self.queue.popleft()
        return new

    def _portions(self, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        """Rows that are prefilled together: one at least, and no more than memory is set aside for."""
        portion: list[_Row] = []
        for row in rows:
            width = max(one.length for one in (*portion, row))
            # Beside what layers compute of a token, attention makes numbers of the mask: one for each place that it may look at.
            needed = (len(portion) + 1) * width * (self._numbers + 4 * width)
            if portion and self._on_cpu and needed > CPU_PREFILL:
                yield portion
                portion = []
            portion.append(row)
        if portion:
            yield portion

    def _prefill(self, new: list[_Row]) -> None:
        """Computes what follows the prompts of `new`, which become the last rows, and samples it."""
        first = len(self.rows)
        lengths = torch.tensor([row.length for row in new])
        width = int(lengths.max())
        ids = torch.zeros(len(new), width, dtype=torch.long)
        for index, row in enumerate(new):
            ids[index, : row.length] = torch.tensor(row.request.ids)
        # Padding on the right is written beyond a row's length, where the mask hides it until it is overwritten.
        logits = self._forward(ids, torch.arange(width)[None], lengths - 1, first, width)
        self.rows += new
        self._sample(logits, new)

    @torch.no_grad()
    def decode(self) -> int:
        """One more token for every row that is not finished; returns how many were sampled."""
        self._retire()
        if not self.rows:
            return 0
        places = torch.tensor([[row.length - 1] for row in self.rows])
        ids = torch.tensor([[row.ids[-1]] for row in self.rows])
        span = int(places.max()) + 1
        self._cache.reserve(len(self.rows), span, live=len(self.rows))
        logits = self._forward(ids, places, torch.zeros(len(self.rows), dtype=torch.long), 0, span)
        self._sample(logits, self.rows)
        return len(self.rows)

    def _forward(self, ids: torch.Tensor, places: torch.Tensor, column: torch.Tensor, first_row: int, span: int) -> torch.Tensor:
        """Logits (rows, vocabulary) after `column` of each row. `places`: positions of `ids`, alike for all rows if it has one."""
        rows, device = len(ids), self._device
        mask = self._masks.of(places.to(device), span, rows)
        places = places.expand(rows, -1).to(device)
        self._cache.aim(first_row, places, span)
        return token_logits(
            self._model(), torch.arange(rows, device=device), column.to(device), input_ids=ids.to(device), position_ids=places,
            attention_mask=mask, use_cache=True, **{self._cache_argument: self._cache},
        )  # fmt: skip

    def _sample(self, logits: torch.Tensor, rows: list[_Row]) -> None:
        """Appends one token to each row."""
        settings = [(row.request.sampling.temperature, row.request.sampling.top_p, row.uniforms[len(row.ids)]) for row in rows]
        temperatures, top_p, draws = torch.tensor(settings, device=logits.device, dtype=torch.float32).unbind(-1)
        tokens, logprobs = sample(logits, temperatures, top_p, draws)
        for row, token, logprob in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
            if not isfinite(logprob):
                raise SamplingError(f"the log-prob of a sampled token is {logprob}: {not_finite(self._model())}")
            row.ids.append(token)
            row.logprobs.append(logprob)

    def _retire(self) -> None:
        """Resolves finished rows; the last row moves into each gap, so that rows stay contiguous."""
        index = 0
        while index < len(self.rows):
            row = self.rows[index]
            gone = row.promise.done()
            completion = None if gone else self._finished(row)
            if completion is None and not gone:
                index += 1
                continue
            if gone:
                self._cut[row.promise] = tuple(row.ids)
            last = self.rows.pop()
            if last is not row:
                self._cache.move(len(self.rows), index, last.length)
                self.rows[index] = last
            if completion is not None:
                row.promise.set_result(completion)

    def _finished(self, row: _Row) -> Completion | None:
        """A stop string may end inside a token: the whole token stays."""
        tail = self._renderer.decode(row.ids[-_STOP_WINDOW:])
        stopped = row.ids[-1] in self._ends or any(stop in tail for stop in row.request.stop)
        if not stopped and len(row.ids) < row.request.max_tokens:
            return None
        return Completion(tuple(row.ids), tuple(row.logprobs), self._renderer.decode(row.ids), "stop" if stopped else "length")


def _numbers_per_token(config: PreTrainedConfig) -> int:
    """That a layer holds of one token at most, about: in attention queries, keys and values for every head, or around the feed-forward."""
    hidden = int(config.hidden_size)
    return max(6 * hidden, 2 * hidden + 3 * int(getattr(config, "intermediate_size", None) or 4 * hidden))


def _end_tokens(model: PreTrainedModel, renderer: Renderer) -> frozenset[int]:
    """Tokens that end a turn: the tokenizer's, and those of the model's generation config, which may be several."""
    listed = getattr(model.generation_config, "eos_token_id", None)
    ends = {renderer.tokenizer.eos_token_id, *(listed if isinstance(listed, list) else [listed])}
    return frozenset(end for end in ends if end is not None)
