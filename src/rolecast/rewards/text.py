"""Answer metrics: what of two texts is compared is one normalisation for each rule.

Ours are HotpotQA's (`hotpot_evaluate_v1.py`): lower case, no punctuation, no articles, white space folded; yes, no and noanswer are right or
wrong, never in part; an answer without words shares none with a gold answer, so that two empty ones have EM 1 and F1 0. One thing is added:
the gold answer of a question that the corpus does not answer is the word "unknown". Who answers with that word, and nothing else, abstains:
by every metric that is right there and wrong everywhere else. No answer (None) scores 0 whatever the gold is.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SPACED = str.maketrans(dict.fromkeys(string.punctuation + "‘’´`", " "))
_ARTICLES = re.compile(r"\b(a|an|the)\b")
ABSTENTION = "unknown"
LATELY = 128  # texts whose normal form is remembered: each score of an episode compares the same answers
SPECIAL = frozenset({"yes", "no", "noanswer"})


@lru_cache(LATELY)
def normalize(text: str) -> str:
    """As HotpotQA's and SQuAD's scripts do."""
    return _folded(text.lower().translate(_PUNCTUATION))


def normalize_triviaqa(text: str) -> str:
    """As `triviaqa_evaluation.py` does: punctuation, four quotation marks beyond ASCII among it, becomes a space instead of nothing."""
    return _folded(text.lower().translate(_SPACED))


def normalize_nq(text: str) -> str:
    """As NQ-open's (`eval_utils.py` of ORQA) does: characters are decomposed (NFD) first. An accent is no part of a word there, so that "à"
    begins with an article."""
    return normalize(unicodedata.normalize("NFD", text))


def _folded(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text).split())


@dataclass(frozen=True, slots=True)
class Rules:
    """`whole`: answers that are right or wrong, never in part. `empty`: F1 of two texts without words. `abstains`: `ABSTENTION` is none of the
    words, but what who does not know says."""

    normalize: Callable[[str], str] = normalize
    whole: frozenset[str] = SPECIAL
    empty: float = 0.0
    abstains: bool = False


OURS = Rules(whole=SPECIAL | {ABSTENTION}, abstains=True)
# Each as its published script has it; NQ's has no F1: SQuAD's is taken. Of SQuAD's two scripts the later one scores two empty texts 1.
RULES: Mapping[str, Rules] = MappingProxyType(
    {
        "ours": OURS,
        "hotpotqa": Rules(),
        "squad": Rules(whole=frozenset(), empty=1.0),
        "triviaqa": Rules(normalize_triviaqa, frozenset()),
        "nq": Rules(normalize_nq, frozenset()),
    }
)


def abstains(prediction: str | None) -> bool:
    return prediction is not None and normalize(prediction) == ABSTENTION


def exact_match(prediction: str | None, golds: Sequence[str], rules: Rules = OURS) -> float:
    """1.0 if the normalised prediction equals any normalised gold."""
    if prediction is None:
        return 0.0
    said = rules.normalize(prediction)
    return float(any(said == rules.normalize(gold) for gold in golds))


def cover_exact_match(prediction: str | None, golds: Sequence[str], rules: Rules = OURS) -> float:
    """1.0 if any gold occurs in the prediction on word boundaries. A guess beside the abstention is none, so that one must be all there is."""
    if prediction is None:
        return 0.0
    if rules.abstains:
        golds = [gold for gold in golds if not abstains(gold) or abstains(prediction)]
    padded = f" {rules.normalize(prediction)} "
    return float(any(f" {rules.normalize(gold)} " in padded for gold in golds))


def token_f1(prediction: str | None, golds: Sequence[str], rules: Rules = OURS) -> float:
    """The best token F1 over the golds."""
    if prediction is None:
        return 0.0
    said = rules.normalize(prediction)
    return max((_f1(said, rules.normalize(gold), rules) for gold in golds), default=0.0)


def yes_or_no(golds: Sequence[str]) -> bool:
    """Whether the question asks for yes or no."""
    return any(normalize(gold) in ("yes", "no") for gold in golds)


def _f1(prediction: str, gold: str, rules: Rules) -> float:
    if prediction != gold and (prediction in rules.whole or gold in rules.whole):
        return 0.0
    predicted, expected = prediction.split(), gold.split()
    if not predicted and not expected:
        return rules.empty
    common = sum((Counter(predicted) & Counter(expected)).values())
    return 2 * common / (len(predicted) + len(expected))
