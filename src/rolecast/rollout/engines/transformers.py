"""`Engine` over Hugging Face models in this process: continuous batching on a static KV cache.

Coroutines call `generate` and wait; `step` admits waiting requests into free rows and decodes one token for every row.
Whoever drives the episodes (`rollout.scheduler`) decides when to step.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import PreTrainedModel

from rolecast.ports import Completion, GenerateRequest
from rolecast.rollout.engines.static_cache import StaticRows
from rolecast.rollout.render import Renderer
from rolecast.types import Slot


@dataclass(slots=True)
class _Row:
    request: GenerateRequest
    future: asyncio.Future[Completion]
    uniforms: np.ndarray  # one draw per token: sampling does not depend on the rest of the batch
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.request.ids) + len(self.ids)


class TransformersEngine:
    """Generates with one model per slot. Requests of different slots are decoded in turns."""

    def __init__(
        self, models: Mapping[Slot, PreTrainedModel], renderer: Renderer, max_batch: int, max_context: int, version: str = ""
    ) -> None:
        self.version = version
        self.branches = 0
        self._renderer = renderer
        self._decoders = {slot: _Decoder(model, renderer, max_batch, max_context) for slot, model in models.items()}
        self.generated = 0  # tokens sampled since the start

    @property
    def waiting(self) -> int:
        return sum(len(decoder.queue) for decoder in self._decoders.values())

    @property
    def busy(self) -> bool:
        return any(decoder.queue or decoder.rows for decoder in self._decoders.values())

    async def generate(self, request: GenerateRequest) -> Completion:
        if request.slot not in self._decoders:
            raise KeyError(f"no weights for slot {request.slot!r}; loaded: {', '.join(self._decoders)}")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._decoders[request.slot].queue.append((request, future))
        return await future

    def step(self, admit: bool = True) -> None:
        """Admits what fits and decodes one token for every row of every slot."""
        for decoder in self._decoders.values():
            if admit:
                decoder.admit()
            self.generated += decoder.decode()

    def drain(self) -> None:
        """Serves exactly what waits now, in fixed-size batches in the order of keys: the lockstep mode."""
        for decoder in self._decoders.values():
            decoder.queue = deque(sorted(decoder.queue, key=lambda waiting: waiting[0].key))
            while decoder.queue:
                decoder.admit()
                while decoder.rows:
                    self.generated += decoder.decode()


class _Decoder:
    """The rows in flight of one slot."""

    def __init__(self, model: PreTrainedModel, renderer: Renderer, max_batch: int, max_context: int) -> None:
        self.queue: deque[tuple[GenerateRequest, asyncio.Future[Completion]]] = deque()
        self.rows: list[_Row] = []
        self._model = model
        self._renderer = renderer
        self._max_batch = max_batch
        self._cache = StaticRows(model.config, max_batch, max_context, model.dtype, model.device)
        # transformers renamed the argument in 5.2x; both names are in use in the versions that we support.
        parameters = inspect.signature(model.base_model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @torch.no_grad()
    def admit(self) -> None:
        """Prefills waiting requests into free rows, and samples the first token of each."""
        free = self._max_batch - len(self.rows)
        new = [self._row(*self.queue.popleft()) for _ in range(min(free, len(self.queue)))]
        if not new:
            return
        first = len(self.rows)
        lengths = torch.tensor([row.length for row in new])
        width = int(lengths.max())
        ids = torch.zeros(len(new), width, dtype=torch.long)
        for index, row in enumerate(new):
            ids[index, : row.length] = torch.tensor(row.request.ids)
        places = torch.arange(width).expand(len(new), width)
        # Padding on the right is written beyond a row's length, where the mask hides it until it is overwritten.
        mask = torch.ones(width, width, dtype=torch.bool).tril().expand(len(new), 1, width, width)
        hidden = self._forward(ids, places, mask, first, width)
        self.rows += new
        self._sample(hidden[torch.arange(len(new)), lengths - 1], new)

    @torch.no_grad()
    def decode(self) -> int:
        """One more token for every row that is not finished; returns how many were sampled."""
        self._retire()
        if not self.rows:
            return 0
        places = torch.tensor([[row.length - 1] for row in self.rows])
        span = int(places.max()) + 1
        ids = torch.tensor([[row.ids[-1]] for row in self.rows])
        mask = (torch.arange(span) <= places)[:, None, None, :]
        hidden = self._forward(ids, places, mask, 0, span)
        self._sample(hidden[:, 0], self.rows)
        return len(self.rows)

    def _row(self, request: GenerateRequest, future: asyncio.Future[Completion]) -> _Row:
        return _Row(request, future, np.random.Generator(np.random.PCG64(request.seed)).random(request.max_tokens))

    def _forward(self, ids: torch.Tensor, places: torch.Tensor, mask: torch.Tensor, first_row: int, span: int) -> torch.Tensor:
        device = self._model.device
        self._cache.aim(first_row, places.to(device), span)
        output = self._model.base_model(
            input_ids=ids.to(device), position_ids=places.to(device), attention_mask=mask.to(device), use_cache=True,
            **{self._cache_argument: self._cache},
        )  # fmt: skip
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def _sample(self, hidden: torch.Tensor, rows: list[_Row]) -> None:
        """Appends one token to each row, by inverse transform sampling on its own uniform draw. `hidden` is (rows, d)."""
        head: Callable[[torch.Tensor], torch.Tensor] = self._model.get_output_embeddings()
        logits = head(hidden).float()
        temperatures = torch.tensor([row.request.sampling.temperature for row in rows], device=logits.device)
        greedy = temperatures == 0
        logprobs = torch.log_softmax(logits / torch.where(greedy, 1.0, temperatures)[:, None], dim=-1)
        if any(row.request.sampling.top_p < 1 for row in rows):
            logprobs = _nucleus(logprobs, torch.tensor([row.request.sampling.top_p for row in rows], device=logits.device))
        draws = torch.tensor([row.uniforms[len(row.ids)] for row in rows], device=logits.device, dtype=torch.float32)
        cumulative = logprobs.exp().cumsum(-1)
        sampled = torch.searchsorted(cumulative, (draws * cumulative[:, -1])[:, None], right=True).squeeze(-1)
        tokens = torch.where(greedy, logprobs.argmax(-1), sampled.clamp(max=logits.shape[-1] - 1))
        chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
        for row, token, logprob in zip(rows, tokens.tolist(), chosen.tolist(), strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)

    def _retire(self) -> None:
        """Resolves finished rows; the last row moves into each gap, so that rows stay contiguous."""
        index = 0
        while index < len(self.rows):
            row = self.rows[index]
            completion = self._finished(row)
            if completion is None:
                index += 1
                continue
            last = self.rows.pop()
            if last is not row:
                self._cache.move(len(self.rows), index, last.length)
                self.rows[index] = last
            if not row.future.done():
                row.future.set_result(completion)

    def _finished(self, row: _Row) -> Completion | None:
        """A stop string may end inside a token: the whole token stays."""
        tail = self._renderer.decode(row.ids[-_STOP_WINDOW:])
        eos = self._renderer.tokenizer.eos_token_id
        if row.ids[-1] == eos or any(stop in tail for stop in row.request.stop):
            finish = "stop"
        elif len(row.ids) >= row.request.max_tokens:
            finish = "length"
        else:
            return None
        text = self._renderer.decode(row.ids)
        return Completion(tuple(row.ids), tuple(row.logprobs), text, "stop" if finish == "stop" else "length")


_STOP_WINDOW = 24  # tokens that are decoded to look for a stop string; longer than any of them


def _nucleus(logprobs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Keeps the smallest set of tokens with mass ≥ top_p and renormalises: the distribution that is sampled from."""
    ordered, order = logprobs.sort(-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    drop = torch.zeros_like(logprobs, dtype=torch.bool).scatter(-1, order, before >= top_p[:, None])
    return torch.log_softmax(logprobs.masked_fill(drop, float("-inf")), dim=-1)
