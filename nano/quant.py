"""The MXFP4 round trip inside the training graph.

A group of 32 columns shares a power-of-two scale; values are sign and one of eight magnitudes.
The exponent is the smallest that does not clip, or a neighbour of it if that has a smaller sum of
squared errors, exactly as the exporter chooses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GROUP = 32
MAX_MAGNITUDE = 6.0
THRESHOLDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # ties go away from zero
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def mxfp4_round_trip(w: Tensor) -> Tensor:
    """decode(encode(w)) in f32; the last dimension must be a multiple of 32."""
    groups = w.float().reshape(-1, GROUP)
    largest = groups.abs().amax(dim=1, keepdim=True)
    ratio = torch.where(largest > 0, largest / MAX_MAGNITUDE, torch.ones_like(largest))
    base = torch.where(largest > 0, torch.ceil(torch.log2(ratio)), torch.full_like(ratio, -127.0))
    base = base.clamp(-127, 127)
    best = _quantise(groups, base)
    error = _squared_error(best, groups)
    for shift in (-1.0, 1.0):
        candidate = _quantise(groups, (base + shift).clamp(-127, 127))
        other = _squared_error(candidate, groups)
        better = other < error  # a later candidate must be strictly better
        best = torch.where(better, candidate, best)
        error = torch.where(better, other, error)
    return best.view_as(w).to(w.dtype)


def _squared_error(a: Tensor, b: Tensor) -> Tensor:
    return (a - b).double().square().sum(dim=1, keepdim=True)


def _quantise(groups: Tensor, exponent: Tensor) -> Tensor:
    scale = torch.exp2(exponent)
    t = (groups / scale).abs().clamp(max=MAX_MAGNITUDE)
    # Magnitudes step by 1/2 up to 2, by 1 up to 4, then 6.  floor(x + 1/2) rounds ties up.
    small = torch.floor(t * 2 + 0.5) * 0.5
    middle = torch.floor(t + 0.5)
    value = torch.where(t < 1.75, small, middle)
    value = torch.where(t >= 5.0, torch.full_like(t, 6.0), torch.where(t >= 3.5, value.clamp(
        max=4.0), value))
    return torch.copysign(value, groups) * scale


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor) -> Tensor:
        return mxfp4_round_trip(w)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def mxfp4_straight_through(w: Tensor) -> Tensor:
    """Quantised weights in the forward pass, the gradient as if nothing had been rounded."""
    return _StraightThrough.apply(w)
