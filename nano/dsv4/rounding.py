"""Rounding of cached rows and indexer vectors to 8 and 4 bits, which is part of the model.

Values are divided by a power of two shared by a block, rounded to the nearest code (ties to the
even one) and multiplied back.  FP8 is e4m3 without infinities, blocks of 64; FP4 is e2m1, blocks
of 32.  Gradients pass as if nothing had been rounded.  All functions work in the dtype of their
input, f32 or f64; the results are exact in both.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

FP8_BLOCK, FP8_MAX, FP8_SMALLEST = 64, 448.0, 1e-4
FP4_BLOCK, FP4_MAX, FP4_SMALLEST = 32, 6.0, 6.0 * 2.0**-126


def scale_exponent(largest: Tensor, limit: float) -> Tensor:
    """Least integer e with largest <= limit * 2^e, as int32.

    With largest = f 2^x and limit = l 2^y (f, l in [.5, 1)) that is x - y, or one more if f > l:
    no logarithm, which would be off by one next to a power of two.
    """
    fraction, exponent = torch.frexp(largest)
    limit_fraction, limit_exponent = torch.frexp(torch.tensor(limit, dtype=torch.float64))
    return exponent - int(limit_exponent) + (fraction > float(limit_fraction)).to(exponent.dtype)


def power_of_two(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """2^exponent, exactly, for normal results: library exp2 may be off by an ulp."""
    if dtype == torch.float64:
        return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)
    return ((exponent.to(torch.int32) + 127) << 23).view(torch.float32)


def e4m3_step(q: Tensor) -> Tensor:
    """Distance between e4m3 values around |q| <= 448: three mantissa bits, exponent >= -6."""
    _, exponent = torch.frexp(q)  # |q| = f 2^exponent, f in [.5, 1)
    return power_of_two((exponent - 1).clamp(min=-6) - 3, q.dtype)


def e2m1_step(q: Tensor) -> Tensor:
    """Distance between the values 0 .5 1 1.5 2 3 4 6 around |q| <= 6."""
    size = q.abs()
    return torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0)).to(q.dtype)


def nearest(q: Tensor, step: Tensor) -> Tensor:
    """q to the next multiple of step, ties to even multiples: even codes are even multiples."""
    return torch.round(q / step) * step


FORMATS = {
    "fp8": (FP8_BLOCK, FP8_MAX, FP8_SMALLEST, e4m3_step),
    "fp4": (FP4_BLOCK, FP4_MAX, FP4_SMALLEST, e2m1_step),
}


def scaled_blocks(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """x [..., n] in blocks over their scales, [..., blocks, size], and the scales.

    Blocks start at the front; n that is no multiple of the block must be below one block.
    """
    block, limit, smallest, _ = FORMATS[kind]
    groups = x.unflatten(-1, (-1, min(block, x.shape[-1])))
    largest = groups.abs().amax(dim=-1, keepdim=True).clamp(min=smallest)
    scale = power_of_two(scale_exponent(largest, limit), x.dtype)
    return (groups / scale).clamp(-limit, limit), scale


def _round_trip(x: Tensor, kind: str) -> Tensor:
    q, scale = scaled_blocks(x, kind)
    return (nearest(q, FORMATS[kind][3](q)) * scale).flatten(-2)


def fp8_round_trip(x: Tensor) -> Tensor:
    """x [..., n] in blocks of 64 from the front; a shorter last block has a scale of its own."""
    whole = x.shape[-1] - x.shape[-1] % FP8_BLOCK
    parts = [x[..., :whole], x[..., whole:]]
    return torch.cat([_round_trip(p, "fp8") if p.shape[-1] else p for p in parts], dim=-1)


def fp4_round_trip(x: Tensor) -> Tensor:
    """x [..., n] in blocks of 32."""
    return _round_trip(x, "fp4")


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, round_trip: Any) -> Tensor:
        return round_trip(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def fp8_straight_through(x: Tensor) -> Tensor:
    return _StraightThrough.apply(x, fp8_round_trip)


def fp4_straight_through(x: Tensor) -> Tensor:
    return _StraightThrough.apply(x, fp4_round_trip)


# -- Hadamard ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def hadamard_matrix(n: int, dtype: torch.dtype) -> Tensor:
    """Sylvester's matrix [n, n] times f32(n^-1/2): symmetric, its own inverse; n a power of 2."""
    h = torch.ones(1, 1, dtype=dtype)
    while h.shape[0] < n:
        h = torch.cat([torch.cat([h, h], dim=1), torch.cat([h, -h], dim=1)])
    return h * float(torch.tensor(n, dtype=torch.float32).pow(-0.5))


def hadamard(x: Tensor) -> Tensor:
    """x [..., n] by butterflies with strides 1, 2, 4, ...: (a, b) -> (a + b, a - b)."""
    n, stride = x.shape[-1], 1
    while stride < n:
        a, b = x.unflatten(-1, (n // (2 * stride), 2, stride)).unbind(-2)
        x = torch.stack([a + b, a - b], dim=-2).flatten(-3)
        stride *= 2
    return x * float(torch.tensor(n, dtype=torch.float32).pow(-0.5))
