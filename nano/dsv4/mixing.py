"""Hyper-connections: S residual streams, mixed before and after every sublayer.

Shapes: X [..., S, d].  All of it is computed in at least f32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Mix:
    """What a mixer found for one sublayer."""

    raw: Tensor  # [..., (2+S)S] before scales and offsets
    pre: Tensor  # [..., S] weights of the streams in the sublayer's input
    post: Tensor  # [..., S] weights of the sublayer's output in the streams
    comb: Tensor  # [..., S, S] weight of old stream a in new stream b at [a, b]


class _Sinkhorn(torch.autograd.Function):
    """On c [S, S, N]: sums over a few rows of N numbers are much faster than N sums of a few.

    A pass divides by sums, m = u / (sum u + eps); its gradient is (g - sum(g m)) / (sum u + eps).
    """

    @staticmethod
    def forward(ctx: Any, c: Tensor, iterations: int, eps: float) -> Tensor:
        p = c.softmax(dim=1)
        m, saved = p + eps, [p]
        for n in range(2 * iterations - 1):
            total = m.sum(dim=n % 2, keepdim=True).add_(eps)  # columns, rows, columns, ...
            m = m / total
            saved += [m, total]
        ctx.save_for_backward(*saved)
        return m

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        p, *saved = ctx.saved_tensors
        for n in reversed(range(len(saved) // 2)):
            m, total = saved[2 * n], saved[2 * n + 1]
            grad = (grad - (grad * m).sum(dim=n % 2, keepdim=True)).div_(total)
        return p * (grad - (grad * p).sum(dim=1, keepdim=True)), None, None


def sinkhorn(c: Tensor, iterations: int, eps: float) -> Tensor:
    """Rows by softmax, then columns and rows to sum 1 in turn, ending with columns; [..., S, S]."""
    m = _Sinkhorn.apply(c.flatten(0, -3).permute(1, 2, 0).contiguous(), iterations, eps)
    return m.permute(2, 0, 1).contiguous().view(c.shape)


def raw_mix(x: Tensor, fn: Tensor, eps: float) -> Tensor:
    """fn [n, S*d] times the streams side by side, over their common rms."""
    flat = x.flatten(-2)
    return F.linear(flat, fn) * torch.rsqrt(flat.square().mean(dim=-1, keepdim=True) + eps)


def mixer(
    x: Tensor, fn: nn.Parameter, base: nn.Parameter, scale: nn.Parameter,
    norm_eps: float, eps: float, iterations: int,
) -> Mix:
    """fn [(2+S)S, S*d], base [(2+S)S], scale [3]."""
    s = x.shape[-2]
    raw = raw_mix(x, fn, norm_eps)
    pre, post, comb = raw.split([s, s, s * s], dim=-1)
    base_pre, base_post, base_comb = base.split([s, s, s * s])
    comb = (comb * scale[2] + base_comb).unflatten(-1, (s, s))
    return Mix(
        raw,
        torch.sigmoid(pre * scale[0] + base_pre) + eps,
        2 * torch.sigmoid(post * scale[1] + base_post),
        sinkhorn(comb, iterations, eps),
    )


def sublayer_input(x: Tensor, pre: Tensor) -> Tensor:
    """Weighted sum of the streams, [..., d]."""
    return (pre.unsqueeze(-1) * x).sum(dim=-2)


def next_streams(x: Tensor, y: Tensor, mix: Mix) -> Tensor:
    """X'[b] = post[b] y + sum over a of comb[a, b] X[a]."""
    return mix.post.unsqueeze(-1) * y.unsqueeze(-2) + torch.matmul(mix.comb.mT, x)


def head_input(
    x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm_eps: float, eps: float
) -> Tensor:
    """The streams summed for the output head, [..., d]; fn [S, S*d], base [S], scale [1]."""
    return sublayer_input(x, torch.sigmoid(raw_mix(x, fn, norm_eps) * scale + base) + eps)
