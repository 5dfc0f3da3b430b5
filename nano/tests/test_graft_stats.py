"""Intervals and tests against exact tables, brute force and simulated coverage."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from nano.graft import stats
from nano.graft.paired import compare


def test_exact_p_values() -> None:
    assert stats.sign_test(np.array([1.0] * 9 + [-1.0])) == 0.021484375
    assert stats.sign_test(np.array([0.0, 0.0])) == 1
    assert stats.sign_test(np.array([1.0, -1.0, 2.0])) == 1
    assert stats.wilcoxon(np.arange(1.0, 6)) == 0.0625
    assert stats.wilcoxon(np.arange(1.0, 7)) == 0.03125
    # n = 8, smaller rank sum 3: five of 256 sign patterns have a sum of at most 3
    assert stats.wilcoxon(np.array([-1.0, -2, 3, 4, 5, 6, 7, 8])) == 0.0390625
    assert stats.mcnemar(1, 8) == 0.0390625
    assert stats.mcnemar(0, 0) == 1
    assert stats.mcnemar(5, 5) == 1


def test_signed_ranks_by_all_patterns() -> None:
    """Ties share their mean rank; the exact distribution is that of all signs."""
    d = np.array([0.5, -0.5, 1.0, 2.0, -3.0, 0.5, 0.0, 4.0])
    x = d[d != 0]
    ranks = stats.midranks(np.abs(x))
    plus = ranks[x > 0].sum()
    sums = [sum(r for r, s in zip(ranks, signs, strict=True) if s)
            for signs in itertools.product((0, 1), repeat=len(x))]
    low = np.mean([s <= plus for s in sums])
    high = np.mean([s >= plus for s in sums])
    assert stats.wilcoxon(d) == pytest.approx(min(1, 2 * min(low, high)), abs=1e-12)


def test_many_signed_ranks_come_close_to_exact() -> None:
    rng = np.random.default_rng(0)
    d = rng.standard_normal(25) + 0.4
    exact = stats.wilcoxon(d)
    n, ranks = 25, stats.midranks(np.abs(d))
    z = (ranks[d > 0].sum() - n * (n + 1) / 4) / math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
    assert exact == pytest.approx(2 * stats.NORMAL.cdf(-abs(z)), rel=0.1)
    assert stats.wilcoxon(np.concatenate([d, d + 0.01])) < exact


def test_six_documents_by_hand() -> None:
    """d = (2, -1, 3, 0, 1, 1), m = (10, 20, 10, 20, 10, 30): 6 / 100."""
    a = np.zeros(6)
    b = np.array([2.0, -1, 3, 0, 1, 1])
    m = np.array([10.0, 20, 10, 20, 10, 30])
    found = compare(a, b, m, "bits/byte", 0.005, False)
    assert found.estimate == pytest.approx(0.06)
    assert found.tests["sign_p"] == 0.375  # 4 of 5
    # ranks 4, 2, 5, -, 2, 2: plus 13 of 15; sums >= 13 in 4 of 32 patterns
    assert found.tests["wilcoxon_p"] == pytest.approx(0.25)
    # residuals d - .06 m = 1.4, -2.2, 2.4, -1.2, .4, -.8; sd 1.7527; over mean m 16.667
    residuals = np.array([1.4, -2.2, 2.4, -1.2, 0.4, -0.8])
    assert found.mde == pytest.approx(2.8016 * residuals.std(ddof=1) / (100 / 6) / 6**0.5, rel=1e-4)
    assert found.interval.kind == "none" and found.verdict == "inconclusive"


def test_a_model_against_itself() -> None:
    x, m = np.arange(20.0), np.ones(20)
    found = compare(x, x, m, "bits/byte", 0.005, False)
    assert (found.estimate, found.interval.low, found.interval.high) == (0, 0, 0)
    assert found.verdict == "equivalent" and found.tests["sign_p"] == 1 and found.needed is None


@pytest.mark.parametrize(("shift", "higher", "verdict"), [
    (0.5, False, "worse"), (0.5, True, "better"), (-0.5, False, "better"), (0.0, False,
                                                                          "inconclusive"),
])
def test_verdicts(shift: float, higher: bool, verdict: str) -> None:
    d = np.random.default_rng(1).standard_normal(100) + shift
    d -= (d.mean() - shift) if shift == 0 else 0
    found = compare(np.zeros(100), d, np.ones(100), "bits/byte", 0.005, higher)
    assert found.verdict == verdict


def _coverage(draw: object, mean: float, n: int, repeats: int) -> tuple[float, float]:
    rng = np.random.default_rng(7)
    hits = np.zeros(2)
    for seed in range(repeats):
        d, m = draw(rng, n), np.ones(n)  # type: ignore[operator]
        stars = stats.bootstrap(d, m, 1000, seed)
        for i, interval in enumerate((stats.bca_interval(d, m, stars),
                                      stats.percentile_interval(stars))):
            hits[i] += interval.low <= mean <= interval.high
    return tuple(hits / repeats)  # type: ignore[return-value]


def test_coverage_for_normal_differences() -> None:
    bca, _ = _coverage(lambda rng, n: rng.normal(0.3, 1, n), 0.3, 100, 500)
    assert 0.92 <= bca <= 0.98


def test_coverage_for_skewed_differences() -> None:
    bca, percentile = _coverage(lambda rng, n: rng.lognormal(0, 1, n), math.exp(0.5), 25, 500)
    assert abs(bca - 0.95) < abs(percentile - 0.95)


def test_ratio_weighs_documents() -> None:
    d, m = np.array([1.0, 2, 3, 4] * 5), np.array([1.0, 1, 2, 4] * 5)
    assert stats.ratio(d, m) == 50 / 40
    stars = stats.bootstrap(d, m, 2000, 0)
    counts = np.concatenate(list(stats.resample_counts(20, 2000, 0)))
    assert np.allclose(stars, (counts @ d) / (counts @ m))


def test_false_discoveries() -> None:
    p = np.array([0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205])
    assert stats.benjamini_hochberg(p).tolist() == [True, True] + [False] * 6
    assert not stats.benjamini_hochberg(np.array([0.5, 0.9])).any()


def test_spearman_and_gini() -> None:
    x = np.array([1.0, 2, 3, 4])
    assert stats.spearman(x, x**3) == pytest.approx(1)
    assert stats.spearman(x, np.array([1.0, 3, 2, 4])) == pytest.approx(0.8)
    assert stats.gini(np.ones(5)) == pytest.approx(0)
    assert stats.gini(np.array([0.0, 0, 0, 1])) == pytest.approx(0.75)
