"""How far a score is to be trusted: bootstrap intervals, exact ones where all scores are alike, and a paired test."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import comb, exp, log

import numpy as np

DRAWN = 1 << 20  # draws of a bootstrap that are in memory at once
FEW = 4  # rows a distinct value from which drawing counts of values is cheaper than drawing rows
LEVEL = 0.05
SHARES = (0.0, 1.0)
DIFFERENCES = (-1.0, 1.0)  # of shares


def interval(scores: np.ndarray, seed: int, samples: int, within: tuple[float, float] = SHARES) -> tuple[float, float]:
    """95 % interval of the mean: percentiles of the bootstrap, or the exact one where all scores are alike and the bootstrap has nothing to
    draw. `within`: what a score may be at least and at most.

    Resamples are drawn some at a time, from one stream: memory does not grow with their number.
    """
    values, counts = np.unique(scores, return_counts=True)
    if len(values) == 1:
        return alike(float(values[0]), len(scores), within)
    generator = np.random.Generator(np.random.PCG64(seed))
    few = FEW * len(values) <= len(scores)
    at_once = max(1, DRAWN // (len(values) if few else len(scores)))
    means = []
    for start in range(0, samples, at_once):
        part = min(at_once, samples - start)
        if few:  # how often each value is drawn says all of a resample
            means.append((generator.multinomial(len(scores), counts / len(scores), part) * values).sum(axis=1) / len(scores))
        else:
            means.append(scores[generator.integers(0, len(scores), (part, len(scores)))].mean(axis=1))
    low, high = np.percentile(np.concatenate(means), [100 * LEVEL / 2, 100 * (1 - LEVEL / 2)])
    return float(low), float(high)


def alike(value: float, n: int, within: tuple[float, float] = SHARES) -> tuple[float, float]:
    """95 % interval of a mean of which `n` draws were all `value`: others come with a probability of at most u = 1 − .025^(1/n) (Clopper and
    Pearson 1934), and are at worst the least and the most that a score may be. Of 0 right out of n it is [0, u], of n right [1 − u, 1]."""
    other = 1 - (LEVEL / 2) ** (1 / n)
    least, most = min(within[0], value), max(within[1], value)
    return value - other * (value - least), value + other * (most - value)


def mcnemar(better: int, worse: int) -> float:
    """Two-sided exact p of McNemar's test: `better` and `worse` are questions that one of two is right on and the other is not. 1 where
    there is none."""
    n, fewer = better + worse, min(better, worse)
    if better == worse:
        return 1.0
    logs = [0.0, *accumulate(log(k) for k in range(1, n + 1))]  # of factorials
    tail = sum(exp(logs[n] - logs[k] - logs[n - k] - n * log(2)) for k in range(fewer + 1))
    return min(1.0, 2 * tail)


def pass_at_k(right: Sequence[tuple[int, int]], k: int) -> float | None:
    """Mean over questions of the probability that one of `k` of its samples is right, without bias (Chen et al. 2021, eq. 1). `right`: of each
    question, how many samples are right, of how many. Questions with fewer than `k` samples are left out; None where that leaves none."""
    shares = [1 - comb(n - c, k) / comb(n, k) for c, n in right if n >= k]
    return sum(shares) / len(shares) if shares else None
