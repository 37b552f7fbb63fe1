"""Answer metrics as in SQuAD and HotpotQA: lower case, no punctuation, no articles, white space folded.

No answer (None) scores 0 whatever the gold is; an empty one is compared, and a gold like "The The" is empty once normalised.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
SPECIAL = frozenset({"yes", "no", "noanswer"})


def normalize(text: str) -> str:
    text = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(prediction: str | None, golds: Sequence[str]) -> float:
    """1.0 if the normalised prediction equals any normalised gold."""
    return float(prediction is not None and any(normalize(prediction) == normalize(gold) for gold in golds))


def cover_exact_match(prediction: str | None, golds: Sequence[str]) -> float:
    """1.0 if any gold occurs in the prediction on word boundaries."""
    if prediction is None:
        return 0.0
    padded = f" {normalize(prediction)} "
    return float(any(f" {normalize(gold)} " in padded for gold in golds))


def token_f1(prediction: str | None, golds: Sequence[str], special: bool = True) -> float:
    """The best token F1 over the golds. A yes/no/noanswer that differs scores 0 (HotpotQA's rule), unless these are not `special`
    (SQuAD's): then they are words like others."""
    if prediction is None:
        return 0.0
    return max((_f1(normalize(prediction), normalize(gold), special) for gold in golds), default=0.0)


def yes_or_no(golds: Sequence[str]) -> bool:
    """Whether the question asks for yes or no."""
    return any(normalize(gold) in ("yes", "no") for gold in golds)


def _f1(prediction: str, gold: str, special: bool) -> float:
    if special and prediction != gold and (prediction in SPECIAL or gold in SPECIAL):
        return 0.0
    predicted, expected = prediction.split(), gold.split()
    if not predicted or not expected:
        return float(predicted == expected)
    common = sum((Counter(predicted) & Counter(expected)).values())
    return 2 * common / (len(predicted) + len(expected))
