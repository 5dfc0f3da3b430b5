"""The torch MXFP4 round trip against the exporter's codec."""

from __future__ import annotations

import numpy as np
import torch

from nano.mxfp4 import decode, encode
from nano.quant import GROUP, MAGNITUDES, THRESHOLDS, mxfp4_round_trip


def hard_cases(rows: int) -> np.ndarray:
    """Gaussian groups of many sizes, exact ties, zeros of both signs, tiny and single values."""
    rng = np.random.default_rng(7)
    w = rng.normal(size=(rows, GROUP)) * np.exp2(rng.integers(-20, 20, size=(rows, 1)))
    ties = rng.choice([*THRESHOLDS, *MAGNITUDES], size=(rows // 4, GROUP))
    w[: rows // 4] = ties * rng.choice([-1, 1], size=ties.shape) * 2.0 ** rng.integers(-9, 9)
    w[0], w[1] = 0.0, -0.0
    w[2] = 0.0
    w[2, 5] = 3.0
    return w.astype(np.float32)


def test_round_trip_equals_the_exported_bytes() -> None:
    w = hard_cases(4000)
    stored = decode(encode(w), *w.shape)
    np.testing.assert_array_equal(mxfp4_round_trip(torch.from_numpy(w)).numpy(), stored)


def test_round_trip_is_stable() -> None:
    once = mxfp4_round_trip(torch.from_numpy(hard_cases(2000)))
    assert torch.equal(mxfp4_round_trip(once), once)
