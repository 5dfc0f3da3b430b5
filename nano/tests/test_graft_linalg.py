"""Maps, alignment, assignment and solves against plain formulas and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from nano.graft import solve
from nano.graft.functions import Gated, activation
from nano.graft.linalg import (
    KernelSums,
    Moments,
    RidgePath,
    assign,
    monotone_path,
    procrustes,
    squared_spectrum,
)
from nano.graft.maps import candidates, choose, row_errors


def gauss(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_ridge_path_equals_normal_equations() -> None:
    y, u = gauss(200, 12) @ gauss(12, 12, seed=1), gauss(200, 7, seed=2)
    m = Moments.of(y, u)
    path = RidgePath.of(m)
    for ridge in (1e-9, 1e-6, 1e-3, 1e-1, 10.0):
        lift = ridge * float((y**2).sum()) / 12
        want = u.T @ y @ torch.linalg.inv(y.T @ y + lift * torch.eye(12, dtype=torch.float64))
        assert float((path.at(ridge) - want).abs().max()) < 1e-10
        values = torch.linalg.eigvalsh(y.T @ y)
        assert path.dof(ridge) == pytest.approx(float((values / (values + lift)).sum()))
    least = torch.linalg.lstsq(y, u).solution.T
    assert float((path.at(0) - least).abs().max()) < 1e-9
    error = (u - y @ path.at(1e-3).T).square().sum()
    assert m.error(path.at(1e-3)) == pytest.approx(float(error))
    other = Moments.of(gauss(50, 12, seed=3), gauss(50, 7, seed=4))
    for ridge in (1e-6, 1e-2, 10.0):
        assert path.judge(other)(ridge) == pytest.approx(other.error(path.at(ridge)))


def test_a_turned_cloud_is_recovered() -> None:
    """Condition 2e3, f32 rows: the small ridge and Procrustes both find the rotation."""
    scales = torch.logspace(0, -3.3, 32, dtype=torch.float64)
    q = torch.linalg.qr(gauss(32, 32, seed=3))[0]
    y = ((gauss(4000, 32) * scales) @ torch.linalg.qr(gauss(32, 32, seed=4))[0]).float()
    u = (y.double() @ q.T).float()
    m = Moments.of(y, u)
    assert float((procrustes(m) - q).abs().max()) < 1e-5
    found = candidates(y, u, y, u, ["procrustes", "ridge"])
    assert float((found[1].matrix - q).abs().max()) < 1e-2
    best = choose(found, lambda c: row_errors(c.matrix, y, u))
    assert float(row_errors(best.matrix, y, u).sum() / u.double().square().sum()) < 1e-12


def test_procrustes_between_widths_and_scales() -> None:
    y = gauss(500, 6)
    q = torch.linalg.qr(gauss(9, 6, seed=5))[0]
    m = Moments.of(y, 2.5 * y @ q.T)
    assert float((procrustes(m) - q).abs().max()) < 1e-10
    assert float((procrustes(m, scaled=True) - 2.5 * q).abs().max()) < 1e-10


def test_alignment_of_independent_and_of_turned_rows() -> None:
    sums = KernelSums()
    q = torch.linalg.qr(gauss(64, 64, seed=9))[0]
    for block in range(8):
        x, z = gauss(512, 64, seed=10 + block), gauss(512, 40, seed=30 + block)
        sums.add([x], [3 * x @ q, z])
    cka = sums.cka()
    assert float(cka[0, 0]) == pytest.approx(1, abs=1e-9)
    assert abs(float(cka[0, 1])) < 0.02


def test_unbiased_hsic_by_its_formula() -> None:
    x, y = gauss(20, 3), gauss(20, 5, seed=1)
    k, m = x @ x.T, y @ y.T
    k.fill_diagonal_(0)
    m.fill_diagonal_(0)
    n, one = 20, torch.ones(20, dtype=torch.float64)
    want = (torch.trace(k @ m) + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
            - 2 * (one @ k @ m @ one) / (n - 2)) / (n * (n - 3))
    sums = KernelSums()
    sums.add([x], [y])
    assert float(sums.ab[0][0, 0]) == pytest.approx(float(want), rel=1e-10)


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_assignment_is_the_best_of_all(shape: tuple[int, int]) -> None:
    for seed in range(10):
        score = np.random.default_rng(seed).standard_normal(shape)
        pairs = assign(score)
        assert len(pairs) == min(shape) == len({i for i, _ in pairs}) == len({j for _, j in pairs})
        n, m = sorted(shape)
        wide = score if shape[0] <= shape[1] else score.T
        best = max(sum(wide[i, p[i]] for i in range(n)) for p in itertools.permutations(range(m),
                                                                                        n))
        assert sum(score[i, j] for i, j in pairs) == pytest.approx(best)


def test_monotone_path_is_the_best_of_all() -> None:
    for seed in range(5):
        score = np.random.default_rng(seed).standard_normal((4, 5))
        best = 0.0
        for k in range(5):
            for rows in itertools.combinations(range(4), k):
                for cols in itertools.combinations(range(5), k):
                    best = max(best, sum(score[i, j] for i, j in zip(rows, cols, strict=True)))
        pairs = monotone_path(score)
        assert sum(score[i, j] for i, j in pairs) == pytest.approx(best)
        assert pairs == sorted(pairs) and len({j for _, j in pairs}) == len(pairs)


def test_spectra() -> None:
    w = gauss(30, 50)
    assert torch.allclose(squared_spectrum(w), torch.linalg.svdvals(w) ** 2)


# -- solves --------------------------------------------------------------------------------------


def ffn(act: str, params: tuple[float, ...] = (), scale: float = 1.0, seed: int = 0) -> Gated:
    """64 -> 160 -> 64 with pre-activations of size `scale`."""
    return Gated(gauss(160, 64, seed=seed) * scale / 8, gauss(160, 64, seed=seed + 1) * scale / 8,
                 gauss(64, 160, seed=seed + 2) / 160**0.5, activation(act, params))


def refit(m: solve.Matrices, y: Tensor, t: Tensor, cut: int) -> solve.Matrices:
    one = torch.ones(len(y), dtype=torch.float64)
    found = solve.refit_down(m, y[:cut], t[:cut], one[:cut], y[cut:], t[cut:], one[cut:])
    return solve.Matrices(m.gate, m.up, found.down, m.act)


def test_from_swiglu_into_situ() -> None:
    donor, eye = ffn("swiglu", scale=0.25), torch.eye(64, dtype=torch.float64)
    y, t = gauss(6000, 64, seed=8), None
    t = donor(y)
    assert float((y @ donor.gate.T).abs().quantile(0.99)) < 1
    plain = solve.compose(donor, eye, eye, activation("situ", (4.0, 25.0)))
    bridged = solve.bridge(plain, donor, y[:3000], y[:3000])
    after = refit(bridged, y[:4000], t[:4000], 3000)
    held, want = y[4000:], t[4000:]
    r2 = [solve.r_squared(m(held), want) for m in (plain, bridged, after)]
    assert r2[2] >= r2[0] and r2[2] >= 0.99 and r2[1] >= r2[0] - 1e-3


def test_large_preactivations_gain_by_refitting() -> None:
    donor, eye = ffn("swiglu", scale=3.0), torch.eye(64, dtype=torch.float64)
    y = gauss(6000, 64, seed=8)
    t = donor(y)
    m = solve.compose(donor, eye, eye, activation("situ", (4.0, 25.0)))
    m = solve.bridge(m, donor, y[:3000], y[:3000])
    after = refit(m, y[:4000], t[:4000], 3000)
    assert (solve.r_squared(after(y[4000:]), t[4000:])
            >= solve.r_squared(m(y[4000:]), t[4000:]) >= 0.9)


def test_fewer_neurons() -> None:
    """Of 160 neurons of unequal weight 96: pivoted choice and refit keep most, any 96 less."""
    donor, y = ffn("swiglu"), gauss(8000, 64, seed=8)
    donor.down *= torch.exp(0.6 * gauss(160, seed=4))
    t, eye = donor(y), torch.eye(64, dtype=torch.float64)
    chosen = solve.compose(solve.reduced(donor, y[:4000], 96), eye, eye, donor.act)
    some = torch.arange(96)
    random = solve.Matrices(donor.gate[some], donor.up[some], donor.down[:, some], donor.act)
    scores = {name: solve.r_squared(refit(m, y[:6000], t[:6000], 5000)(y[6000:]), t[6000:])
              for name, m in (("chosen", chosen), ("random", random))}
    assert scores["chosen"] > 0.85 and scores["chosen"] > scores["random"] + 0.1
    assert solve.r_squared(chosen(y[6000:]), t[6000:]) < scores["chosen"]


def test_pivoted_choice_leaves_out_a_copy() -> None:
    donor = ffn("swiglu")
    donor.gate[1], donor.up[1], donor.down[:, 1] = donor.gate[0], donor.up[0], donor.down[:, 0]
    keep = solve.pivoted(donor.inner(gauss(2000, 64, seed=8)), donor.down, 159).tolist()
    assert len({0, 1} & set(keep)) == 1 and len(set(keep)) == 159


def test_mxfp4_of_a_gaussian_function() -> None:
    donor, y = ffn("swiglu"), gauss(8000, 64, seed=8)
    t = donor(y)
    q = solve.Matrices(solve.quantised(donor.gate), solve.quantised(donor.up), donor.down,
                       donor.act)
    again = refit(q, y[:6000], t[:6000], 5000)
    held, want = y[6000:], t[6000:]
    plain, refitted = (solve.Matrices(q.gate, q.up, solve.quantised(d), q.act)
                       for d in (q.down, again.down))
    assert solve.r_squared(refitted(held), want) >= 0.95
    assert solve.r_squared(refitted(held), want) >= solve.r_squared(plain(held), want)


def test_errors_passed_on_help_where_inputs_are_alike() -> None:
    z = gauss(4000, 128) @ (torch.eye(128, dtype=torch.float64) * 0.2 + gauss(128, 128, seed=1) / 8
                            * torch.logspace(0, -2, 128, dtype=torch.float64))
    w = gauss(48, 128, seed=2)
    plain, passed = solve.quantised(w), solve.quantised_with_errors(w, z.T @ z)
    errors = [float((z @ (q - w).T).square().sum()) for q in (plain, passed)]
    assert errors[1] < errors[0]
    # Both are values that MXFP4 holds.
    for q in (plain, passed):
        assert torch.equal(solve.quantised(q), q)
