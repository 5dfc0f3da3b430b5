"""Maps between activation spaces and measures of likeness, in f64 on Gram matrices.

Rows are tokens: X [N, d_x], Y [N, d_y].  Grams are accumulated in blocks of rows, so the rows may
be f32 and lie on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

BLOCK = 4096  # rows widened to f64 at a time
RIDGES = tuple(10.0**e for e in range(-12, 2))


def f64(x: Any) -> Tensor:
    return torch.as_tensor(x).double()


def cross(x: Any, y: Any, weight: Tensor | None = None) -> Tensor:
    """X^T diag(weight) Y in f64."""
    total = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64)
    for start in range(0, len(x), BLOCK):
        a, b = f64(x[start : start + BLOCK]), f64(y[start : start + BLOCK])
        if weight is not None:
            a = a * weight[start : start + BLOCK, None]
        total += a.T @ b
    return total


@dataclass
class Moments:
    """Second moments of targets against inputs, for maps inputs -> targets without intercept."""

    yy: Tensor  # [d_in, d_in]
    uy: Tensor  # [d_out, d_in]
    uu: Tensor  # [d_out, d_out]
    rows: int
    y_sum: Tensor = field(repr=False)
    u_sum: Tensor = field(repr=False)

    @classmethod
    def of(cls, inputs: Any, targets: Any, weight: Tensor | None = None) -> Moments:
        w = torch.ones(len(inputs), dtype=torch.float64) if weight is None else weight.double()
        one = torch.ones(len(inputs), 1, dtype=torch.float64)
        return cls(cross(inputs, inputs, weight), cross(targets, inputs, weight),
                   cross(targets, targets, weight), len(inputs),
                   cross(inputs, one, w)[:, 0], cross(targets, one, w)[:, 0])

    def error(self, a: Tensor) -> float:
        """Sum of squares of a y - u over the rows."""
        return float((self.uu.diagonal().sum() - 2 * (a * self.uy).sum()
                      + ((a @ self.yy) * a).sum()).clamp_min(0))

    def total(self) -> float:
        """Sum of squares of u around its mean."""
        return float(self.uu.diagonal().sum() - (self.u_sum**2).sum() / max(self.rows, 1))

    def intercept_share(self, a: Tensor) -> float:
        """Share of the targets' variance that a constant would explain beside the map."""
        gap = (self.u_sum - a @ self.y_sum) / max(self.rows, 1)
        return float(self.rows * (gap**2).sum() / max(self.total(), 1e-300))


@dataclass
class RidgePath:
    """All ridge solutions from one eigendecomposition.

    A(lambda) = U^T Y (Y^T Y + lambda' I)^-1 with lambda' = lambda tr(Y^T Y) / d.
    """

    values: Tensor
    rotated: Tensor  # U^T Y V
    vectors: Tensor
    scale: float

    @classmethod
    def of(cls, m: Moments) -> RidgePath:
        values, vectors = torch.linalg.eigh(m.yy)
        return cls(values.clamp_min(0), m.uy @ vectors, vectors,
                   float(m.yy.diagonal().sum()) / len(values))

    def at(self, ridge: float) -> Tensor:
        return (self.rotated * self._inverse(ridge)) @ self.vectors.T

    def _inverse(self, ridge: float) -> Tensor:
        floor = float(self.values[-1]) * 1e-16  # below it a direction is rounding
        return torch.where(self.values > floor, 1 / (self.values + ridge * self.scale), 0.0)

    def judge(self, m: Moments) -> Callable[[float], float]:
        """Squared error of the solutions on other rows, by lambda: O(d^2) each, not O(d^3)."""
        turned = (self.rotated * (m.uy @ self.vectors)).sum(dim=0)
        both = (self.vectors.T @ m.yy @ self.vectors) * (self.rotated.T @ self.rotated)
        total = float(m.uu.diagonal().sum())

        def error(ridge: float) -> float:
            inverse = self._inverse(ridge)
            return max(0.0, total - 2 * float(inverse @ turned) + float(inverse @ both @ inverse))

        return error

    def dof(self, ridge: float) -> float:
        """Effective number of inputs used."""
        return float((self.values / (self.values + ridge * self.scale)).sum())

    @property
    def condition(self) -> float:
        return float((self.values[-1] / self.values[0].clamp_min(1e-300)).sqrt())


def procrustes(m: Moments, scaled: bool = False) -> Tensor:
    """A [d_out, d_in] with orthonormal rows or columns that brings y nearest to u."""
    left, sigma, right = torch.linalg.svd(m.uy, full_matrices=False)
    a = left @ right
    if scaled:
        a = a * (sigma.sum() / ((a @ m.yy) * a).sum().clamp_min(1e-300))
    return a


# -- centred kernel alignment --------------------------------------------------------------------


def centred_kernel(x: Tensor) -> Tensor:
    """U-centred Gram [n, n] of rows, flattened: the unbiased HSIC of two is their dot product
    over n (n - 3)."""
    n = len(x)
    k = x @ x.T
    k.fill_diagonal_(0)
    rows = k.sum(dim=1) / (n - 2)
    k = k - rows[:, None] - rows[None, :] + k.sum() / ((n - 1) * (n - 2))
    k.fill_diagonal_(0)
    return k.reshape(-1)


@dataclass
class KernelSums:
    """HSIC of every pair of layers, one block of rows (whole documents) after the other."""

    ab: list[Tensor] = field(default_factory=list)  # [La, Lb] per block
    aa: list[Tensor] = field(default_factory=list)  # [La]
    bb: list[Tensor] = field(default_factory=list)  # [Lb]

    def add(self, a: list[Tensor], b: list[Tensor]) -> None:
        """Rows of one block at every layer of both models; at least 4 rows."""
        n = len(a[0])
        ka = torch.stack([centred_kernel(x.double()) for x in a])
        kb = torch.stack([centred_kernel(x.double()) for x in b])
        scale = n * (n - 3)
        self.ab.append(ka @ kb.T / scale)
        self.aa.append((ka * ka).sum(dim=1) / scale)
        self.bb.append((kb * kb).sum(dim=1) / scale)

    def cka(self, counts: Any = None) -> Tensor:
        """[La, Lb]; `counts` [blocks] weighs blocks as a resample drew them."""
        w = (torch.ones(len(self.ab), dtype=torch.float64) if counts is None
             else torch.as_tensor(counts).double())
        ab = torch.einsum("n,nij->ij", w, torch.stack(self.ab))
        aa, bb = w @ torch.stack(self.aa), w @ torch.stack(self.bb)
        return ab / (aa[:, None] * bb[None, :]).clamp_min(1e-300).sqrt()


# -- assignment and alignment --------------------------------------------------------------------


def assign(score: np.ndarray) -> list[tuple[int, int]]:
    """Pairs (row, column) with the greatest sum of scores; every one of the shorter side has a
    partner.  Shortest augmenting paths, O(n^2 m)."""
    turned = score.shape[0] > score.shape[1]
    cost = -(score.T if turned else score).astype(np.float64)
    n, m = cost.shape
    u, v = np.zeros(n + 1), np.zeros(m + 1)
    match = np.zeros(m + 1, int)  # row (from 1) of each column, 0 = free
    for i in range(1, n + 1):
        match[0], column = i, 0
        least, way = np.full(m + 1, np.inf), np.zeros(m + 1, int)
        used = np.zeros(m + 1, bool)
        while True:
            used[column] = True
            row = match[column]
            free = ~used[1:]
            reduced = cost[row - 1] - u[row] - v[1:]
            better = free & (reduced < least[1:])
            least[1:][better] = reduced[better]
            way[1:][better] = column
            nearest = int(np.where(free, least[1:], np.inf).argmin()) + 1
            delta = least[nearest]
            u[match[used]] += delta
            v[used] -= delta
            least[~used] -= delta
            column = nearest
            if match[column] == 0:
                break
        while column:
            before = way[column]
            match[column] = match[before]
            column = before
    pairs = [(int(match[j]) - 1, j - 1) for j in range(1, m + 1) if match[j]]
    return sorted((b, a) for a, b in pairs) if turned else sorted(pairs)


def monotone_path(score: np.ndarray) -> list[tuple[int, int]]:
    """Pairs with growing row and column and the greatest sum of scores; gaps cost nothing."""
    n, m = score.shape
    best = np.zeros((n + 1, m + 1))
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            best[i, j] = max(best[i - 1, j], best[i, j - 1],
                             best[i - 1, j - 1] + max(score[i - 1, j - 1], 0))
    pairs, i, j = [], n, m
    while i and j:
        gain = score[i - 1, j - 1]
        if gain > 0 and best[i, j] == best[i - 1, j - 1] + gain:
            pairs.append((i - 1, j - 1))
            i, j = i - 1, j - 1
        elif best[i, j] == best[i - 1, j]:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


# -- spectra -------------------------------------------------------------------------------------

FULL_SIDE = 2048


def squared_spectrum(w: Any, seed: int = 0) -> Tensor:
    """Squared singular values, descending: all for a side up to 2048, else the 256 largest."""
    w = torch.as_tensor(w)
    if min(w.shape) <= FULL_SIDE:
        small = w.T if w.shape[0] > w.shape[1] else w
        gram = cross(small.T, small.T)
        return torch.linalg.eigvalsh(gram).flip(0).clamp_min(0)
    generator = torch.Generator().manual_seed(seed)
    probe = torch.randn(w.shape[1], 266, generator=generator)
    y = w.float() @ probe
    for _ in range(2):
        y, _ = torch.linalg.qr(y)
        y = w.float() @ (w.float().T @ y)
    q, _ = torch.linalg.qr(y)
    return torch.linalg.svdvals((q.T @ w.float()).double())[:256] ** 2


def spectrum_facts(w: Any, seed: int = 0) -> dict[str, float]:
    """Numbers that describe a matrix [out, in]."""
    w = torch.as_tensor(w).float()
    s2 = squared_spectrum(w, seed)
    energy = float(w.double().square().sum())
    share = s2 / max(energy, 1e-300)
    live = share[share > 1e-300]
    top = s2[: max(2, len(s2) // 10)].clamp_min(1e-300)
    rows, columns = w.norm(dim=1).double(), w.norm(dim=0).double()
    middle = columns.median()
    mad = (columns - middle).abs().median().clamp_min(1e-300)
    centred = w.double() - w.double().mean()
    variance = float(centred.square().mean())
    return {
        "sigma_max": float(s2[0].sqrt()), "stable_rank": energy / max(float(s2[0]), 1e-300),
        "effective_rank": float(torch.exp(-(live * live.log()).sum())),
        "tail_exponent": 1 / max(float((top[:-1] / top[-1]).log().mean()), 1e-12),
        "top_1_percent": float(share[: max(1, len(s2) // 100)].sum()),
        "top_10_percent": float(share[: max(1, len(s2) // 10)].sum()),
        "kurtosis": float(centred.pow(4).mean()) / max(variance**2, 1e-300),
        "row_norm_cv": float(rows.std(correction=0) / rows.mean().clamp_min(1e-300)),
        "outlier_columns": float(((columns - middle).abs() > 6 * mad).sum()),
    }
