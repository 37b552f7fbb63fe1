"""The models that a learner trains: a policy over tokens and, for estimators that need one, a critic."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rolecast.credit import Floats
from rolecast.learner.batch import Padded, TokenBatch
from rolecast.weights.forward import token_logits


class Policy(nn.Module):
    """Log-probs of trained tokens under a causal language model, at the temperature that they were sampled with."""

    def __init__(self, model: PreTrainedModel, temperature: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature

    def forward(self, rows: Padded) -> tuple[Tensor, Tensor]:
        """(log-prob, entropy) of each trained token, float32, both (trained,). Entropy carries no gradient."""
        # Rows are padded on the right, so the causal mask alone keeps padding out of sight.
        logits = token_logits(self.model, rows.row, rows.column - 1, input_ids=rows.ids, use_cache=False).float() / self.temperature
        logprobs = torch.log_softmax(logits, dim=-1)
        chosen = logprobs.gather(-1, rows.ids[rows.row, rows.column][:, None]).squeeze(-1)
        with torch.no_grad():
            entropy = -(logprobs.exp() * logprobs).sum(-1)
        return chosen, entropy


class Critic(nn.Module):
    """The value of the state that each trained token is drawn in: a scalar head on a language model's trunk."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.head = nn.Linear(model.config.hidden_size, 1, dtype=model.dtype, device=model.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, rows: Padded) -> Tensor:
        """Values (trained,), float32."""
        hidden = self.model.base_model(input_ids=rows.ids, use_cache=False).last_hidden_state
        values: Tensor = self.head(hidden[rows.row, rows.column - 1]).squeeze(-1).float()
        return values


@torch.no_grad()
def evaluate_tokens(
    forward: Callable[[Padded], Tensor | tuple[Tensor, Tensor]],
    batch: TokenBatch,
    chunks: Sequence[tuple[Sequence[int], bool]],
    device: torch.device,
) -> Floats:
    """One number for every trained token of the chunks that count, at its place in the flat batch; 0 elsewhere."""
    result = np.zeros(len(batch.ids))
    for rows, counts in chunks:
        padded = Padded.of(batch, rows, device)
        output = forward(padded)
        numbers = output[0] if isinstance(output, tuple) else output
        if counts:
            result[padded.flat] = numbers.double().cpu().numpy()
    return result
