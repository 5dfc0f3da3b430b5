"""Which experts could stand in for which, on the tokens that are sent to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from nano.graft.experts import answers, indicators, pick_rows, sketch_matrix
from nano.graft.functions import FfnModule

CANDIDATES, OWN_ROWS, LIKENESS_ROWS = 8, 256, 512
CUT = 0.8


@torch.no_grad()
def redundancy(module: FfnModule, x: Tensor, tokens: Tensor | None, seed: int = 0
               ) -> dict[str, Any]:
    """x [N, d]: inputs of the layer at held-out tokens.

    For every expert the best other one as a scaled substitute, R2(f_e ~ alpha f_j), and clusters
    of experts that answer alike.
    """
    marks = indicators(module, x, tokens)
    rows = pick_rows(marks, min(LIKENESS_ROWS, len(x)), seed)
    width = x.shape[1] if module.latent is None else module.latent[1].shape[0]
    likeness = (lambda f: f @ f.T)(answers(module, x[rows], sketch_matrix(width, seed)))
    likeness = likeness.double().numpy()
    h = x if module.latent is None else torch.nn.functional.linear(x, module.latent[0])
    best = []
    for e in range(module.experts):
        own = marks[:, e].nonzero()[:OWN_ROWS, 0]
        best.append(_substitute(module, e, h[own], likeness[e]))
    return {"likeness": likeness, "substitutes": best, "clusters": clusters(likeness)}


def _substitute(module: FfnModule, e: int, h: Tensor, likeness: np.ndarray) -> dict[str, Any]:
    if not len(h):
        return {"expert": None, "r2": float("nan"), "alpha": float("nan")}
    want = module.expert(e, h).double()
    total = float((want**2).sum())
    found = {"expert": None, "r2": float("nan"), "alpha": float("nan")}
    if total == 0:
        return found
    order = [int(j) for j in np.argsort(-likeness, kind="stable") if j != e][:CANDIDATES]
    for j in order:
        other = module.expert(j, h).double()
        size = float((other**2).sum())
        alpha = float((other * want).sum()) / size if size else 0.0
        r2 = 1 - float(((want - alpha * other) ** 2).sum()) / total
        if found["expert"] is None or r2 > found["r2"]:
            found = {"expert": j, "r2": r2, "alpha": alpha}
    return found


def clusters(likeness: np.ndarray, cut: float = CUT) -> list[list[int]]:
    """Average linkage, merged while the mean likeness of two groups is at least `cut`."""
    groups = [[i] for i in range(len(likeness))]
    sums = np.nan_to_num(likeness.copy())
    alive = np.ones(len(groups), bool)
    while alive.sum() > 1:
        sizes = np.array([len(g) for g in groups])
        mean = sums / np.outer(sizes, sizes)
        mean[~alive], mean[:, ~alive] = -np.inf, -np.inf
        np.fill_diagonal(mean, -np.inf)
        i, j = np.unravel_index(int(mean.argmax()), mean.shape)
        if mean[i, j] < cut:
            break
        i, j = min(i, j), max(i, j)
        groups[i] = sorted(groups[i] + groups[j])
        sums[i] += sums[j]
        sums[:, i] += sums[:, j]
        alive[j] = False
    return [g for g, a in zip(groups, alive, strict=True) if a and len(g) > 1]
