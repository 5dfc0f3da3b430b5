"""Hyper-connections: S residual streams, mixed before and after every sublayer.

Shapes: X [..., S, d].  All of it is computed in at least f32.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def sinkhorn(c: Tensor, iterations: int, eps: float) -> Tensor:
    """Rows by softmax, then columns and rows to sum 1 in turn, ending with columns; [..., S, S].

    Works on [S, S, N]: sums over a few rows of N numbers are much faster than N sums of a few.
    """
    m = c.flatten(0, -3).permute(1, 2, 0).contiguous().softmax(dim=1) + eps
    m = m / (m.sum(dim=0, keepdim=True) + eps)
    for _ in range(iterations - 1):
        m = m / (m.sum(dim=1, keepdim=True) + eps)
        m = m / (m.sum(dim=0, keepdim=True) + eps)
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
