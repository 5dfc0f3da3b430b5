"""MXFP4 blobs in numpy: 4-bit floats in groups of 32 columns with one scale byte.

A matrix [R, C] is R*C/2 bytes of codes (byte j of a row holds column 2j in its low half and
column 2j+1 in its high half), then R*C/32 scale bytes.  A code is e2m1: 0 .5 1 1.5 2 3 4 6 and,
with bit 3, the same negated.  A scale byte s is worth 2^(s-127); 0 is the subnormal 2^-127, 255
is invalid.
MXFP4SQ appends one f32 smax and reads a scale byte as ((s+1)/256)^2 smax.

The encoder gives the same bytes as the engine's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

GROUP = 32
INVALID_SCALE = 255
LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
# Smallest |t| that gets code 1, 2, ... 7: midpoints of the levels, a tie goes away from zero.
THRESHOLDS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
MIN_EXPONENT, MAX_EXPONENT = -127, 127
GROUPS_AT_ONCE = 1 << 15  # bounds the encoder's temporaries to some 30 MB

PAIRS = np.stack([LEVELS[np.arange(256) & 15], LEVELS[np.arange(256) >> 4]], axis=1)
# The exponent field of an f32 is the scale byte itself; byte 0 is half the smallest normal.
_SCALE_BITS = np.arange(256, dtype=np.uint32) << 23
_SCALE_BITS[0] = 0x00400000
SCALES = _SCALE_BITS.view(np.float32)

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


class Mxfp4Error(ValueError):
    """Values that MXFP4 cannot hold, or a blob that is not MXFP4; says where."""


def blob_bytes(rows: int, cols: int) -> int:
    return rows * cols // 2 + rows * cols // GROUP


def encode(w: NDArray[Any], search: bool = True) -> U8:
    """Whole blob of a matrix [R, C].

    The exponent of a group is the smallest that clips nothing or, with `search`, that minus one if
    this leaves a smaller sum of squared errors.
    """
    _, cols = _matrix_shape(w)
    groups = np.ascontiguousarray(w, np.float32).reshape(-1, GROUP)
    packed = np.empty((len(groups), GROUP // 2), np.uint8)
    scales = np.empty(len(groups), np.uint8)
    for start in range(0, len(groups), GROUPS_AT_ONCE):
        part = slice(start, start + GROUPS_AT_ONCE)
        _refuse_non_finite(groups[part], start * GROUP, cols)
        packed[part], scales[part] = _encode_groups(groups[part], search)
    return np.concatenate([packed.reshape(-1), scales])


def decode(blob: U8, rows: int, cols: int) -> F32:
    """Values [R, C] of a blob."""
    codes, scales = _split(blob, rows, cols, 0)
    bad = np.flatnonzero(scales == INVALID_SCALE)
    if bad.size:
        first = int(bad[0]) * GROUP
        raise Mxfp4Error(
            f"the scale byte of row {first // cols}, columns from {first % cols}, is 255"
        )
    return _scaled(codes, SCALES[scales], rows, cols)


def decode_square(blob: U8, rows: int, cols: int) -> F32:
    """Values [R, C] of an MXFP4SQ blob."""
    codes, scales = _split(blob, rows, cols, 4)
    smax = np.frombuffer(blob[-4:].tobytes(), "<f4")[0]
    if not np.isfinite(smax) or smax < 0:
        raise Mxfp4Error("the MXFP4SQ scale maximum is negative or not finite")
    t = (scales.astype(np.float32) + np.float32(1)) * np.float32(1 / 256)
    return _scaled(codes, t * t * smax, rows, cols)


# -- encoder -------------------------------------------------------------------------------------


def _encode_groups(groups: F32, search: bool) -> tuple[U8, U8]:
    """Packed codes [G, 16] and scale bytes [G] of finite groups [G, 32]."""
    exponent = smallest_exponent(np.abs(groups).max(axis=1))
    codes = _codes(groups, exponent)
    if search:
        # Of the neighbours only e-1 can win.  The levels of e+1 inside the range of e are a subset
        # of the levels of e, so no value comes closer; nothing clips at e in either case.
        finer = np.maximum(exponent - 1, MIN_EXPONENT)
        finer_codes = _codes(groups, finer)
        better = _squared_error(groups, finer_codes, finer) < _squared_error(
            groups, codes, exponent
        )
        exponent = np.where(better, finer, exponent)
        codes = np.where(better[:, None], finer_codes, codes)
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return packed, (exponent + 127).astype(np.uint8)


def smallest_exponent(largest: F32) -> NDArray[np.int32]:
    """Smallest e with largest <= 6 * 2^e, in -127..127; -127 where largest is 0.

    With largest = m 2^q, m in [.5, 1), and 6 = .75 * 2^3 no logarithm is needed.
    """
    m, q = np.frexp(largest)
    e = np.where(m <= 0.75, q - 3, q - 2)
    e = np.where(largest > 0, e, MIN_EXPONENT)
    return np.clip(e, MIN_EXPONENT, MAX_EXPONENT).astype(np.int32)


def _codes(groups: F32, exponent: NDArray[np.int32]) -> U8:
    scaled = groups * np.ldexp(np.float32(1), -exponent)[:, None]  # exact but for subnormal results
    magnitude = np.abs(scaled)
    codes = np.zeros(groups.shape, np.uint8)
    for threshold in THRESHOLDS:  # values above 6 get code 7 too: they clip
        codes += magnitude >= threshold
    return codes | (np.signbit(groups).astype(np.uint8) << 3)


def _squared_error(groups: F32, codes: U8, exponent: NDArray[np.int32]) -> NDArray[np.float64]:
    """Sum over a group, column by column as the engine adds, so that equal sums stay equal."""
    step = np.ldexp(1.0, exponent)[:, None]
    error = groups.astype(np.float64) - LEVELS[codes].astype(np.float64) * step
    squares = error * error
    total = np.zeros(len(groups))
    for column in squares.T:
        total += column
    return total


# -- helpers -------------------------------------------------------------------------------------


def _matrix_shape(w: NDArray[Any]) -> tuple[int, int]:
    if w.ndim != 2 or w.shape[1] == 0 or w.shape[1] % GROUP:
        raise Mxfp4Error(f"MXFP4 needs a matrix with columns in multiples of 32, not {w.shape}")
    return int(w.shape[0]), int(w.shape[1])


def _refuse_non_finite(groups: F32, first: int, cols: int) -> None:
    finite = np.isfinite(groups)
    if not finite.all():
        index = first + int(np.argmin(finite.reshape(-1)))
        raise Mxfp4Error(
            f"weight [{index // cols}][{index % cols}] is not finite; "
            "MXFP4 cannot hold NaN or infinity, repair the source tensor"
        )


def _split(blob: U8, rows: int, cols: int, tail: int) -> tuple[U8, U8]:
    if cols % GROUP or blob.size != blob_bytes(rows, cols) + tail:
        raise Mxfp4Error(f"a blob of {blob.size} bytes is no MXFP4 matrix of {rows} x {cols}")
    half = rows * cols // 2
    return blob[:half], blob[half : half + rows * cols // GROUP]


def _scaled(codes: U8, scales: F32, rows: int, cols: int) -> F32:
    values = PAIRS[codes].reshape(-1, GROUP)
    values *= scales[:, None]
    return values.reshape(rows, cols)
