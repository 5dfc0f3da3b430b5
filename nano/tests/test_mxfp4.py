"""MXFP4 against a scalar re-derivation, hand-made groups and known bytes."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from nano import mxfp4

LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def scalar_group(values: list[float]) -> tuple[int, list[int]]:
    """Scale byte and 32 codes, one value at a time in f64, exponents e, e-1, e+1 tried in turn."""
    largest = max(abs(v) for v in values)
    if largest == 0:
        tries = [-127]
    else:
        e = next(e for e in range(-127, 128) if largest <= 6 * math.ldexp(1.0, e))
        tries = [t for t in (e, e - 1, e + 1) if -127 <= t <= 127]
    best: tuple[float, int, list[int]] | None = None
    for exponent in tries:
        codes, error = [], 0.0
        for v in values:
            t = math.ldexp(abs(v), -exponent)
            # Nearest level; of two equally near ones the larger.
            code = max(range(8), key=lambda c, t=t: (-abs(min(t, 6.0) - LEVELS[c]), LEVELS[c]))
            codes.append(code + (8 if math.copysign(1.0, v) < 0 else 0))
            error += (abs(v) - LEVELS[code] * math.ldexp(1.0, exponent)) ** 2
        if best is None or error < best[0]:
            best = (error, exponent, codes)
    assert best is not None
    return best[1] + 127, best[2]


def codes_of(blob: np.ndarray, groups: int) -> np.ndarray:
    packed = blob[: groups * 16].reshape(groups, 16)
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(groups, 32)


def adversarial_groups(rng: np.random.Generator) -> np.ndarray:
    """Groups of many scales with exact ties, zeros of both signs and subnormal values."""
    normal = rng.standard_normal((200, 32))
    heavy = rng.standard_t(2, (200, 32)) * np.exp2(rng.integers(-40, 40, (200, 1)))
    midpoints = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    ties = rng.choice(midpoints, (200, 32)) * rng.choice([-1, 1], (200, 32))
    ties *= np.exp2(rng.integers(-20, 20, (200, 1)))
    sparse = normal * (rng.random((200, 32)) < 0.1)
    tiny = rng.standard_normal((100, 32)) * 2.0**-126 * np.exp2(rng.integers(-20, 3, (100, 1)))
    edges = np.zeros((6, 32))
    edges[1] = -0.0
    edges[2, 0] = 3.4028234e38
    edges[3, 5] = 1e-45
    edges[4] = 1.5 * 2.0**-128
    edges[5, ::2] = -6.0
    return np.concatenate([normal, heavy, ties, sparse, tiny, edges]).astype(np.float32)


def test_encoder_equals_the_scalar_search() -> None:
    groups = adversarial_groups(np.random.default_rng(7))
    blob = mxfp4.encode(groups)
    codes, scales = codes_of(blob, len(groups)), blob[len(groups) * 16 :]
    for g, values in enumerate(groups.astype(np.float64).tolist()):
        scale, expected = scalar_group(values)
        assert (scales[g], codes[g].tolist()) == (scale, expected), f"group {g}: {values}"


def group(values: list[float]) -> np.ndarray:
    return np.array([values], np.float32)


@pytest.mark.parametrize(
    ("values", "scale", "packed"),
    [
        ([0.8] + [0.2] * 31, 124, "37" + "33" * 15),
        ([i / 8 - 2 for i in range(32)], 126, "eededdcdccbbaa991021324344555566"),
        (
            [6, -6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.2499, *[0.0] * 20, -0.0],
            127, "f7214365970800000000000000000080",
        ),
        ([1e-38] * 32, 0, "33" * 16),
        ([0.0] * 32, 0, "00" * 16),
    ],
)
def test_known_groups(values: list[float], scale: int, packed: str) -> None:
    assert mxfp4.encode(group(values)).tobytes().hex() == packed + f"{scale:02x}"


def test_without_search_nothing_clips() -> None:
    groups = adversarial_groups(np.random.default_rng(8))
    blob = mxfp4.encode(groups, search=False)
    largest = np.abs(groups).max(axis=1).astype(np.float64)
    step = np.exp2(blob[len(groups) * 16 :].astype(np.float64) - 127)
    assert (largest <= 6 * step).all()
    above = step > 2.0**-127
    assert (largest[above] > 3 * step[above]).all()


def test_search_reduces_the_error_of_gaussian_weights() -> None:
    w = np.random.default_rng(1).standard_normal((256, 128)).astype(np.float32)
    errors = []
    for search in (False, True):
        errors.append(float(((mxfp4.decode(mxfp4.encode(w, search), 256, 128) - w) ** 2).mean()))
    assert errors[1] < 0.95 * errors[0]
    assert 0.10 < errors[1] ** 0.5 < 0.12  # relative to unit weights


def test_decoder_keeps_positions() -> None:
    """Low half first, rows after one another, scales behind all codes."""
    codes = np.arange(64) % 16
    packed = (codes[0::2] | codes[1::2] << 4).astype(np.uint8)
    blob = np.concatenate([packed, np.array([126, 129], np.uint8)])
    level = [*LEVELS, *(-x for x in LEVELS)]
    expected = [[level[c] * 0.5 for c in codes[:32]], [level[c] * 4 for c in codes[32:]]]
    values = mxfp4.decode(blob, 2, 32)
    assert values.tolist() == expected
    assert np.signbit(values[0, 8])


def test_decoding_twice_encoded_values_changes_nothing() -> None:
    w = np.random.default_rng(2).standard_normal((512, 64)).astype(np.float32)
    once = mxfp4.encode(w)
    assert mxfp4.encode(mxfp4.decode(once, 512, 64)).tobytes() == once.tobytes()


def test_scale_byte_zero_is_subnormal() -> None:
    blob = np.array([0x77] * 16 + [0], np.uint8)
    assert mxfp4.decode(blob, 1, 32)[0, 0] == np.float32(6 * 2.0**-127)


def test_scale_byte_255_is_refused() -> None:
    blob = mxfp4.encode(np.ones((2, 64), np.float32))
    blob[-1] = 255
    with pytest.raises(mxfp4.Mxfp4Error, match="row 1, columns from 32"):
        mxfp4.decode(blob, 2, 64)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(bad: float) -> None:
    w = np.ones((3, 64), np.float32)
    w[2, 40] = bad
    with pytest.raises(mxfp4.Mxfp4Error, match=r"weight \[2\]\[40\]"):
        mxfp4.encode(w)


@pytest.mark.parametrize("shape", [(2, 31), (64,), (2, 2, 32), (2, 0)])
def test_shapes_without_whole_groups_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(mxfp4.Mxfp4Error, match="multiples of 32"):
        mxfp4.encode(np.zeros(shape, np.float32))


def test_square_scale_known_answer() -> None:
    """Group of .8 and 31 x .2, then .1 (i mod 7 - 3): smax .13333334, scale bytes 255 and 156."""
    packed = bytes.fromhex("37" + "33" * 15 + "ef0c64f7ce4076ef0c64f7ce4076ef0c")
    smax = np.float32(0.8) / np.float32(6)
    blob = np.frombuffer(packed + bytes([255, 156]) + struct.pack("<f", smax), np.uint8)
    values = mxfp4.decode_square(blob, 2, 32)
    assert values[0, 0] == np.float32(6) * smax
    step = (157 / 256) ** 2 * float(smax)
    assert values[1, :4] == pytest.approx([-6 * step, -4 * step, -2 * step, 0], rel=1e-6)


@pytest.mark.parametrize("smax", [math.nan, math.inf, -1.0])
def test_square_scale_maximum_must_be_finite(smax: float) -> None:
    blob = np.frombuffer(bytes(17) + struct.pack("<f", smax), np.uint8)
    with pytest.raises(mxfp4.Mxfp4Error, match="scale maximum"):
        mxfp4.decode_square(blob, 1, 32)
