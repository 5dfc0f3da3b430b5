"""Resampling and tests for paired differences; numpy only.

The unit is a cluster (a document, or a fact with its phrasings): d_i summed over it, weight m_i.
The estimate is the ratio sum d / sum m.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
NORMAL = NormalDist()
MIN_CLUSTERS = 10
AT_ONCE = 1 << 22  # counts held at a time while resampling


@dataclass
class Interval:
    low: float
    high: float
    kind: str  # BCa, percentile, point, none
    warning: str = ""

    def to_json(self) -> list[float | None]:
        return [None if math.isnan(v) else v for v in (self.low, self.high)]


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def resample_counts(n: int, resamples: int, seed: int) -> Any:
    """Multinomial counts, blocks of [r, n]."""
    rng = generator(seed)
    step = max(1, AT_ONCE // max(n, 1))
    for start in range(0, resamples, step):
        yield rng.multinomial(n, np.full(n, 1 / n), size=min(step, resamples - start))


def bootstrap(d: F64, m: F64, resamples: int = 10_000, seed: int = 0) -> F64:
    """Ratio estimates of resampled clusters."""
    out = [np.asarray(c @ d) / np.asarray(c @ m) for c in resample_counts(len(d), resamples, seed)]
    return np.concatenate(out)


def ratio(d: F64, m: F64) -> float:
    return float(d.sum() / m.sum())


def percentile_interval(stars: F64, level: float = 0.95) -> Interval:
    tail = (1 - level) / 2
    low, high = np.quantile(stars, [tail, 1 - tail])
    return Interval(float(low), float(high), "percentile")


def bca_interval(d: F64, m: F64, stars: F64, level: float = 0.95) -> Interval:
    """Bias-corrected and accelerated; with the jackknife over clusters."""
    n, estimate = len(d), ratio(d, m)
    if n < MIN_CLUSTERS:
        return Interval(math.nan, math.nan, "none", f"{n} clusters are too few for an interval")
    if np.ptp(stars) == 0 or (np.ptp(d) == 0 and np.ptp(m) == 0):
        return Interval(estimate, estimate, "point")
    below = (np.sum(stars < estimate) + 0.5 * np.sum(stars == estimate)) / len(stars)
    if not 0 < below < 1:
        out = percentile_interval(stars, level)
        return Interval(out.low, out.high, out.kind, "the bias correction is infinite")
    z0 = NORMAL.inv_cdf(below)
    jack = (d.sum() - d) / (m.sum() - m)
    gap = jack.mean() - jack
    spread = float((gap**2).sum())
    a = float((gap**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0
    ends = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        z = z0 + NORMAL.inv_cdf(tail)
        ends.append(NORMAL.cdf(z0 + z / (1 - a * z)))
    low, high = np.quantile(stars, ends)
    return Interval(float(low), float(high), "BCa")


def bootstrap_p(stars: F64) -> float:
    """Two-sided, with one added to counts."""
    n = len(stars)
    low, high = (np.sum(stars <= 0) + 1) / (n + 1), (np.sum(stars >= 0) + 1) / (n + 1)
    return float(min(1.0, 2 * min(low, high)))


# -- exact tests ---------------------------------------------------------------------------------


def binomial_two_sided(k: int, n: int) -> float:
    """P of a split at least as uneven as k of n at 1/2."""
    if n == 0:
        return 1.0
    small = min(k, n - k)
    tail = sum(math.comb(n, i) for i in range(small + 1))
    return min(1.0, 2 * tail / 2**n)


def sign_test(d: F64) -> float:
    """Exact, zeros left out."""
    return binomial_two_sided(int(np.sum(d > 0)), int(np.sum(d != 0)))


def mcnemar(a_only: int, b_only: int) -> float:
    """Exact, on the pairs that differ."""
    return binomial_two_sided(a_only, a_only + b_only)


def midranks(x: F64) -> F64:
    """Ranks from 1, ties share their mean."""
    order = np.argsort(x, kind="stable")
    ranks = np.empty(len(x))
    i = 0
    while i < len(x):
        j = i
        while j + 1 < len(x) and x[order[j + 1]] == x[order[i]]:
            j += 1
        ranks[order[i : j + 1]] = (i + j) / 2 + 1
        i = j + 1
    return ranks


def wilcoxon(d: F64) -> float:
    """Signed ranks, two-sided, zeros left out; exact up to 25, else normal with ties corrected."""
    d = d[d != 0]
    n = len(d)
    if n == 0:
        return 1.0
    ranks = midranks(np.abs(d))
    plus = float(ranks[d > 0].sum())
    if n <= 25:
        doubled = np.rint(2 * ranks).astype(int)  # midranks are halves
        ways = np.zeros(int(doubled.sum()) + 1)
        ways[0] = 1
        for r in doubled:
            ways[r:] = ways[r:] + ways[:-r]
        ways /= 2.0**n
        at = round(2 * plus)
        return float(min(1.0, 2 * min(ways[: at + 1].sum(), ways[at:].sum())))
    _, counts = np.unique(np.abs(d), return_counts=True)
    variance = n * (n + 1) * (2 * n + 1) / 24 - float((counts**3 - counts).sum()) / 48
    z = (plus - n * (n + 1) / 4) / math.sqrt(variance)
    return float(2 * NORMAL.cdf(-abs(z)))


# -- size and multiplicity -----------------------------------------------------------------------


def detectable(d: F64, m: F64, alpha: float = 0.05, power: float = 0.8) -> float:
    """Smallest effect that this many clusters find with the power."""
    if len(d) < 2:
        return math.nan
    residual = (d - ratio(d, m) * m) / m.mean()
    z = NORMAL.inv_cdf(1 - alpha / 2) + NORMAL.inv_cdf(power)
    return float(z * residual.std(ddof=1) / math.sqrt(len(d)))


def needed(d: F64, m: F64) -> int | None:
    """Clusters that the observed effect needs; None for no effect."""
    effect = abs(ratio(d, m))
    if effect == 0 or len(d) < 2:
        return None
    return math.ceil(len(d) * (detectable(d, m) / effect) ** 2)


def benjamini_hochberg(p: F64, rate: float = 0.05) -> NDArray[np.bool_]:
    """Which hypotheses fall at a false discovery rate."""
    order = np.argsort(p)
    passed = p[order] <= rate * np.arange(1, len(p) + 1) / max(len(p), 1)
    last = int(np.flatnonzero(passed).max()) if passed.any() else -1
    out = np.zeros(len(p), bool)
    out[order[: last + 1]] = True
    return out


def spearman(x: F64, y: F64) -> float:
    a, b = midranks(x), midranks(y)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def spearman_interval(x: F64, y: F64, resamples: int = 1000, seed: int = 0) -> Interval:
    rng, n = generator(seed), len(x)
    if n < MIN_CLUSTERS:
        return Interval(math.nan, math.nan, "none", f"{n} pairs are too few")
    picks = rng.integers(0, n, (resamples, n))
    values = np.array([spearman(x[p], y[p]) for p in picks])
    values = values[~np.isnan(values)]
    return percentile_interval(values) if len(values) else Interval(math.nan, math.nan, "none")




def gini(x: F64) -> float:
    """0 for equal shares, towards 1 for one that has all; of non-negative values."""
    x = np.sort(np.maximum(x, 0))
    if x.sum() == 0:
        return 0.0
    n = len(x)
    return float((2 * np.arange(1, n + 1) - n - 1) @ x / (n * x.sum()))
