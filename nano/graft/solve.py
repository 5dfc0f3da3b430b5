"""Matrices of a grafted function in closed form: composition, choice of neurons, refit, MXFP4.

Shapes: N rows, I inner width of the target, d_out width of what it gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nano import mxfp4
from nano.graft.functions import Activation, Gated
from nano.graft.linalg import cross

REFITS = (1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1.0)
SCALES = (0.5, 0.71, 1.0, 1.41, 2.0)
BRIDGE_ROWS = 2048


@dataclass
class Matrices:
    """Gate and up [I, m], down [d_out, I], f64, for gain-free inputs."""

    gate: Tensor
    up: Tensor
    down: Tensor
    act: Activation

    def inner(self, y: Tensor) -> Tensor:
        return self.act(y @ self.gate.T, y @ self.up.T)

    def __call__(self, y: Tensor) -> Tensor:
        return self.inner(y) @ self.down.T

    def widened(self, inner: int) -> Matrices:
        """With zero rows up to the inner width."""
        more = inner - len(self.gate)
        pad = torch.nn.functional.pad
        return Matrices(pad(self.gate, (0, 0, 0, more)), pad(self.up, (0, 0, 0, more)),
                        pad(self.down, (0, more)), self.act)


def compose(donor: Gated, a: Tensor, p: Tensor, act: Activation) -> Matrices:
    """down' act(gate A y, up A y) with down' = P down."""
    return Matrices(donor.gate @ a, donor.up @ a, p @ donor.down, act)


# -- fewer neurons -------------------------------------------------------------------------------


def contribution(z: Tensor, down: Tensor) -> Tensor:
    """E[z_j^2] |down_j|^2 [I]."""
    return z.square().mean(dim=0) * down.square().sum(dim=0)


def pivoted(z: Tensor, down: Tensor, count: int) -> Tensor:
    """Indices of `count` neurons by pivoted Cholesky of the Gram of z_j |down_j|: each step takes
    what the chosen ones explain least."""
    scale = down.norm(dim=0)
    gram = cross(z, z) * scale[:, None] * scale[None, :]
    left = gram.diagonal().clone()
    factors = torch.zeros(len(left), count, dtype=torch.float64)
    chosen = []
    for k in range(count):
        j = int(left.argmax())
        if float(left[j]) <= 0:
            rest = [i for i in contribution(z, down).argsort(descending=True).tolist()
                    if i not in set(chosen)]
            chosen += rest[: count - k]
            break
        chosen.append(j)
        column = (gram[:, j] - factors[:, :k] @ factors[j, :k]) / left[j].sqrt()
        factors[:, k] = column
        left = (left - column.square()).clamp_min(0)
        left[torch.tensor(chosen)] = -1
    return torch.tensor(chosen)


def reduced(donor: Gated, u: Tensor, count: int) -> Gated:
    """The donor with `count` of its neurons."""
    keep = pivoted(donor.inner(u), donor.down, count)
    return Gated(donor.gate[keep], donor.up[keep], donor.down[:, keep], donor.act)


# -- other activations ---------------------------------------------------------------------------


def bridge(m: Matrices, donor: Gated, u: Tensor, y: Tensor) -> Matrices:
    """Scales of every neuron's gate and up, from a grid, so that the target's activation comes
    nearest to the donor's; what a factor can mend goes into down."""
    u, y = u[:BRIDGE_ROWS], y[:BRIDGE_ROWS]
    want = donor.inner(u)
    g, h = y @ m.gate.T, y @ m.up.T
    best = torch.full((len(m.gate),), float("inf"), dtype=torch.float64)
    found = torch.ones(3, len(m.gate), dtype=torch.float64)
    for s in SCALES:
        for t in SCALES:
            z = m.act(s * g, t * h)
            c = (z * want).sum(dim=0) / z.square().sum(dim=0).clamp_min(1e-300)
            error = (want - c * z).square().sum(dim=0)
            better = error < best
            best = torch.where(better, error, best)
            new = torch.stack([torch.full_like(c, s), torch.full_like(c, t), c])
            found = torch.where(better, new, found)
    s, t, c = found
    return Matrices(m.gate * s[:, None], m.up * t[:, None], m.down * c, m.act)


# -- refit ---------------------------------------------------------------------------------------


@dataclass
class Refit:
    down: Tensor
    ridge: float
    gram: Tensor  # Z^T Z of the rows it was fitted on


def refit_down(m: Matrices, y: Tensor, t: Tensor, weight: Tensor, pick_y: Tensor, pick_t: Tensor,
               pick_weight: Tensor) -> Refit:
    """down' = (T^T Z + l D0)(Z^T Z + l I)^-1 around the present down D0; l is the best on the
    rows to pick by."""
    z = m.inner(y)
    gram, right = cross(z, z, weight), cross(t, z, weight)
    scale = float(gram.diagonal().mean())
    eye = torch.eye(len(gram), dtype=torch.float64)
    pick_z = m.inner(pick_y)
    best: tuple[float, Tensor, float] | None = None
    for ridge in REFITS:
        lift = ridge * max(scale, 1e-300)
        factor, info = torch.linalg.cholesky_ex(gram + lift * eye)
        if int(info):
            continue
        down = torch.cholesky_solve((right + lift * m.down).T, factor).T
        error = float(((pick_z @ down.T - pick_t).square().sum(dim=1) * pick_weight).sum())
        if best is None or error < best[0]:
            best = (error, down, ridge)
    if best is None:
        return Refit(m.down, float("nan"), gram)
    return Refit(best[1], best[2], gram)


# -- MXFP4 ---------------------------------------------------------------------------------------


def quantised(w: Tensor) -> Tensor:
    """The nearest matrix that MXFP4 holds, group by group."""
    values = w.float().numpy()
    return torch.from_numpy(mxfp4.decode(mxfp4.encode(values), *values.shape)).double()


def quantised_with_errors(w: Tensor, gram: Tensor, damp: float = 0.01) -> Tensor:
    """MXFP4 of w [R, C] column by column, each column's error taken up by those to its right
    (GPTQ), for inputs with the Gram [C, C]."""
    w = w.clone()
    columns = w.shape[1]
    h = gram + damp * float(gram.diagonal().mean()) * torch.eye(columns, dtype=torch.float64)
    inverse = torch.linalg.inv(h)
    upper = torch.linalg.cholesky(0.5 * (inverse + inverse.T), upper=True)
    out = torch.zeros_like(w)
    for start in range(0, columns, mxfp4.GROUP):
        scale = _group_scales(w[:, start : start + mxfp4.GROUP])
        for j in range(start, start + mxfp4.GROUP):
            out[:, j] = _nearest_level(w[:, j] / scale) * scale
            error = (w[:, j] - out[:, j]) / upper[j, j]
            w[:, j:] -= error[:, None] * upper[j, j:][None, :]
    return out


def _group_scales(group: Tensor) -> Tensor:
    blob = mxfp4.encode(np.ascontiguousarray(group.float().numpy()))
    return torch.from_numpy(mxfp4.SCALES[blob[group.numel() // 2 :]]).double()


_LEVELS = torch.from_numpy(mxfp4.LEVELS[:8].copy()).double()


def _nearest_level(x: Tensor) -> Tensor:
    size = x.abs().clamp(max=6.0)
    edges = torch.from_numpy(mxfp4.THRESHOLDS.copy()).double()
    return torch.copysign(_LEVELS[torch.bucketize(size, edges, right=True)], x)


# -- how good ------------------------------------------------------------------------------------


def r_squared(got: Tensor, want: Tensor, weight: Tensor | None = None) -> float:
    """1 - |T - T'|^2 / |T - mean|^2."""
    w = torch.ones(len(want), 1, dtype=torch.float64) if weight is None else weight[:, None]
    mean = (want * w).sum(dim=0) / w.sum().clamp_min(1e-300)
    spread = ((want - mean).square() * w).sum().clamp_min(1e-300)
    return 1 - float(((got - want).square() * w).sum() / spread)


def fit_facts(got: Tensor, want: Tensor, weight: Tensor) -> dict[str, float]:
    """How the outputs compare: R2 as a whole and by dimension, cosine, relative rms."""
    mean = want.mean(dim=0)
    columns = 1 - (got - want).square().sum(dim=0) / (want - mean).square().sum(dim=0).clamp_min(
        1e-300)
    low, middle, high = (float(columns.quantile(q)) for q in (0.1, 0.5, 0.9))
    cosine = torch.nn.functional.cosine_similarity(got, want, dim=1)
    return {"r2": r_squared(got, want, weight), "r2_p10": low, "r2_median": middle,
            "r2_p90": high, "cosine": float(cosine.mean()),
            "relative_rms": float(((got - want).square().sum() / want.square().sum().clamp_min(
                1e-300)).sqrt())}
