"""How sure a judge model is of YES or NO, from the log-probs of its reply."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

LEAST = 0.5  # of the probability must be told of, or nothing is known


def yes_share(choice: Mapping[str, Any], mark: str) -> float | None:
    """P(YES) / (P(YES) + P(NO)) at the verdict's first token, in [0, 1]; None where the endpoint does not tell.

    `choice` is one of a chat completion's. A token counts for the word that it begins, in any case, with or without space before it.
    """
    token = _verdict_token(choice, f"Score {mark}:")
    if token is None:
        return None
    chances = {"YES": 0.0, "NO": 0.0}
    for text, logprob in _alternatives(token).items():
        begun = text.lstrip(" :").rstrip().upper()
        for word in chances:
            if begun and word.startswith(begun):
                chances[word] += math.exp(logprob)
    told = sum(chances.values())
    return chances["YES"] / told if told >= LEAST else None


def _verdict_token(choice: Mapping[str, Any], head: str) -> Mapping[str, Any] | None:
    """The token in which the verdict begins: the first behind the last `head` that is not space alone."""
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, Sequence) or not all(isinstance(t, Mapping) and isinstance(t.get("token"), str) for t in content):
        return None
    at = "".join(t["token"] for t in content).rfind(head)
    if at < 0:
        return None
    begins, end = at + len(head), 0
    token: Mapping[str, Any]
    for token in content:
        end += len(token["token"])
        if end > begins and token["token"][begins - end :].strip():
            return token
    return None


def _alternatives(token: Mapping[str, Any]) -> dict[str, float]:
    """Log-probs by text, each text once: the token that was said is among the alternatives in some endpoints and not in others."""
    top = token.get("top_logprobs")
    told = [*(top if isinstance(top, Sequence) else ()), token]
    return {
        one["token"]: min(float(one["logprob"]), 0.0)
        for one in told
        if isinstance(one, Mapping) and isinstance(one.get("token"), str) and isinstance(one.get("logprob"), int | float)
    }
