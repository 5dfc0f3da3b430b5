"""Rotary positions: adjacent pairs of the trailing elements of a vector.

A layer without compression turns pair i by p * theta^(-2i/R); a layer with compression has a theta
of its own and YaRN frequencies, for everything it rotates.  The angle is one f32 product, whose
rounding is part of the model.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nano.dsv4.config import Dsv4Config

F32 = NDArray[np.float32]


def frequencies(config: Dsv4Config, compressed: bool) -> F32:
    """[R/2] f32; `compressed`: of the layers that compress."""
    c = config
    if not compressed:
        return plain_frequencies(c.qk_rope_head_dim, c.rope_theta)
    return yarn_frequencies(
        c.qk_rope_head_dim, c.compress_rope_theta, c.yarn_factor, c.yarn_beta_fast,
        c.yarn_beta_slow, c.yarn_orig_seq_len,
    )


@functools.lru_cache(maxsize=16)
def plain_frequencies(rope: int, theta: float) -> F32:
    exponent = (np.arange(0, rope, 2, dtype=np.float32) / np.float32(rope)).astype(np.float64)
    return np.float32(1) / np.power(theta, exponent).astype(np.float32)


@functools.lru_cache(maxsize=16)
def yarn_frequencies(
    rope: int, theta: float, factor: float, fast: float, slow: float, original: int
) -> F32:
    """Pairs that turn often keep their frequency, slow ones are stretched by `factor`.

    The ramp between them runs from the pair with `fast` turns over the original length to the one
    with `slow`.  There is no factor on the magnitude.
    """
    f = plain_frequencies(rope, theta)

    def pair_with(turns: float) -> float:
        return rope * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_with(fast)), 0)
    high = min(math.ceil(pair_with(slow)), rope - 1)
    width = np.float32(max(high, low + 1) - low)
    ramp = np.clip((np.arange(rope // 2, dtype=np.float32) - np.float32(low)) / width, 0, 1)
    keep = np.float32(1) - ramp.astype(np.float32)
    return f / np.float32(factor) * (np.float32(1) - keep) + f * keep


def turn_table(positions: Tensor, f: F32, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin, each [..., R/2], of the f32 angles of integer positions [...]."""
    angle = positions.to(torch.float32).unsqueeze(-1) * torch.from_numpy(f)
    return angle.double().cos().to(dtype), angle.double().sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., D] with its trailing R elements turned; cos, sin broadcast to [..., R/2]."""
    width = 2 * cos.shape[-1]
    plain, turning = x[..., : x.shape[-1] - width], x[..., x.shape[-1] - width :]
    a, b = turning.unflatten(-1, (width // 2, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    return torch.cat([plain, turned], dim=-1)
