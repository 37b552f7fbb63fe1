"""DAC's own figures, and the alarm for a generator that unlearns to answer (section 6.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from rolecast.methods.dac.scoring import ABSTAINED, BY_PASSAGES, BY_STRING, RIGHT, SUFFICIENT_NAME
from rolecast.methods.dac.state import ABSTAINING, FORCED, NOISY, SAMPLE
from rolecast.methods.dac.units import answers, named
from rolecast.rewards.abstention import Answered, shares
from rolecast.types import Trajectory

STEPS = 20  # in a row, before it is said
WEIGHTS = ("w_insufficient", "w_hard", "c_hard")


def diagnostics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Those of `abstention.shares`; `retrieval_em`: a gold answer stands in the evidence; `string_false_positives`: the same, where a
    gold passage is missing; `unknown_sufficiency`: nobody can say. `w_…` and `c_hard`: see `alarms`. A share over nothing is left out.
    """
    counted = [t for t in trajectories if t.counts]
    said = [answer for t in counted for answer in _could_abstain(t)]
    found = [(named(t), t.id) for t in counted]
    by_words = [(words, of.get((BY_PASSAGES, id))) for of, id in found if (words := of.get((BY_STRING, id))) is not None]
    figures = {
        "retrieval_em": [words for words, _ in by_words],
        "string_false_positives": [words for words, held in by_words if held == 0],
        "unknown_sufficiency": [float(of.get((SUFFICIENT_NAME, id)) is None) for of, id in found],
    }
    return {
        **shares(said),
        **{name: fmean(values) for name, values in figures.items() if values},
        **_weights(counted, [answer for answer in said if answer.sufficient is not None]),
    }


def _could_abstain(t: Trajectory) -> Iterator[Answered]:
    """The answers to the episode's own evidence that were given with a prompt that lets the generator abstain."""
    of = named(t)
    for id, forced in _asked(t):
        abstained, right = of.get((ABSTAINED, id)), of.get((RIGHT, id))
        if abstained is not None and right is not None:
            yield Answered(of.get((SUFFICIENT_NAME, t.id)), abstained, right, of.get((RIGHT, forced)))


def _asked(t: Trajectory) -> list[tuple[str, str]]:
    """Those answers, each with the one to the same evidence that had to be an answer; "" where there is none."""
    own, samples, abstaining, forced = ([action.id for action in answers(t, kind)] for kind in ("", SAMPLE, ABSTAINING, FORCED))
    if abstaining:
        return [(abstaining[0], own[-1])]
    if forced:
        return [(own[-1], forced[0])]
    return [(id, "") for id in [*own, *samples]] if samples else []


def _weights(counted: Sequence[Trajectory], judged: Sequence[Answered]) -> dict[str, float]:
    """Theorem 1's α, γ and c_G(1), of a training step: shares of all answers that are trained, and how many of the hard ones are right."""
    hard = [
        right
        for t in counted
        if (of := named(t)).get((SUFFICIENT_NAME, t.id)) == 1
        for action in answers(t, NOISY)
        if (right := of.get((RIGHT, action.id))) is not None
    ]
    if not judged or not any(answers(t, SAMPLE) for t in counted):
        return {}
    all_of_them = len(judged) + len(hard)
    insufficient = sum(not answer.sufficient for answer in judged)
    return dict(zip(WEIGHTS, (insufficient / all_of_them, len(hard) / all_of_them, fmean(hard) if hard else 0.0), strict=True))


def alarms(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Theorem 1: where α > γ·c_G(1), the best that the generator can do is to abstain on all but the easiest evidence. α is the share
    of its answers on insufficient evidence, γ that on augmented evidence, c_G(1) how many of those are right."""
    seen = [[float(row[f"method/{name}"]) for name in WEIGHTS] for row in rows if f"method/{WEIGHTS[0]}" in row][-STEPS:]
    if len(seen) < STEPS or not all(insufficient > hard * right for insufficient, hard, right in seen):
        return {}
    insufficient, hard, right = seen[-1]
    return {
        "over_abstention": (
            f"for {STEPS} steps the generator has earned more by abstaining on insufficient evidence than by answering from hard evidence "
            f"(now {insufficient:.2f} > {hard:.2f} · {right:.2f}), so it may unlearn to answer; watch method/non_abstention_recall, set "
            "method.augmentation to true or method.imitation to 0.05, or let the searcher learn more first"
        )
    }
