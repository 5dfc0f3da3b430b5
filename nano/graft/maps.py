"""Maps between the spaces of two models: the candidates, and how one is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nano.graft.linalg import RIDGES, Moments, RidgePath, procrustes

KINDS = ("identity", "procrustes", "scaled", "ridge")  # the simplest first


@dataclass
class Map:
    """y -> matrix y; `matrix` [d_out, d_in]."""

    kind: str
    matrix: Tensor
    ridge: float | None
    condition: float
    dof: float
    intercept: float  # share of variance that a constant would explain beside it

    def to_json(self) -> dict[str, float | str | None]:
        return {"kind": self.kind, "lambda": self.ridge, "condition": self.condition,
                "dof": self.dof, "intercept_share": self.intercept}


def candidates(inputs: Tensor, targets: Tensor, pick_inputs: Tensor, pick_targets: Tensor,
               kinds: Sequence[str], weight: Tensor | None = None) -> list[Map]:
    """Every kind of map inputs -> targets; ridge with the lambda that is best on the rows to
    pick by."""
    moments = Moments.of(inputs, targets, weight)
    path = RidgePath.of(moments)
    out = []
    for kind in KINDS:
        if kind not in kinds:
            continue
        ridge, d_out, d_in = None, targets.shape[1], inputs.shape[1]
        if kind == "identity":
            if d_out != d_in:
                continue
            matrix = torch.eye(d_out, dtype=torch.float64)
        elif kind == "ridge":
            ridge = _best_ridge(path, pick_inputs, pick_targets)
            matrix = path.at(ridge)
        else:
            matrix = procrustes(moments, scaled=kind == "scaled")
        dof = path.dof(ridge) if ridge is not None else float(min(d_in, d_out))
        out.append(Map(kind, matrix, ridge, path.condition, dof, moments.intercept_share(matrix)))
    return out


def _best_ridge(path: RidgePath, inputs: Tensor, targets: Tensor) -> float:
    """The lambda with the least squared error on these rows."""
    moments = Moments.of(inputs, targets)
    quick, total = path.judge(moments), float(moments.uu.diagonal().sum())

    def error(ridge: float) -> float:
        found = quick(ridge)
        if found < 1e-9 * total:  # the Gram form has lost its digits
            return float(row_errors(path.at(ridge), inputs, targets).sum())
        return found

    return min(RIDGES, key=error)


def row_errors(a: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    return (inputs.double() @ a.T - targets.double()).square().sum(dim=1)


def choose(maps: Sequence[Map], errors: Callable[[Map], Tensor]) -> Map:
    """The map with the least mean error [rows]; the simplest of those within one standard error
    of it."""
    found = [(m, errors(m)) for m in maps]
    best = min(found, key=lambda item: float(item[1].mean()))
    for m, e in found:  # simplest first
        gap = e - best[1]
        spread = float(gap.std(correction=0)) / max(len(gap), 1) ** 0.5
        if float(gap.mean()) <= spread and float(e.mean()) <= 4 * float(best[1].mean()):
            return m
    return best[0]
