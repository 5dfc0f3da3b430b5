"""Element types of safetensors files: to f32 and back.

Scaled types come as two tensors.  MXFP4: packed nibbles (low half first) and one scale byte per 32
columns.  FP8 e4m3: one scale per block of 128 x 128, a power of two (a byte) or an f32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nano import mxfp4
from nano.graft.errors import GraftError
from nano.mkim import bf16_to_f32, f32_to_bf16

ITEM_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "U16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1,
}
INTEGERS = {"I64": "<i8", "U64": "<u8", "I32": "<i4", "U32": "<u4", "I16": "<i2", "U16": "<u2",
            "I8": "i1", "U8": "u1", "BOOL": "u1"}
FP8_BLOCK = 128
F32 = NDArray[np.float32]


def _e4m3_values() -> F32:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6,
                    (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -size, size).astype(np.float32)


E4M3 = _e4m3_values()
_E4M3_SIZES = E4M3[:127].astype(np.float64)  # ascending magnitudes, code = index


def plain_to_f32(kind: str, raw: NDArray[np.uint8]) -> NDArray[Any]:
    """Flat values of unscaled bytes: f32, or the integers as they are."""
    if kind == "F32":
        return raw.view("<f4")
    if kind == "BF16":
        return bf16_to_f32(raw.view("<u2"))
    if kind == "F16":
        return raw.view("<f2").astype(np.float32)
    if kind == "F64":
        return raw.view("<f8").astype(np.float32)
    if kind == "F8_E4M3":
        return E4M3[raw]
    if kind in INTEGERS:
        return raw.view(INTEGERS[kind])
    raise GraftError(f"elements of type {kind} are not read here")


def plain_from_f32(kind: str, values: NDArray[Any]) -> NDArray[np.uint8]:
    """Bytes of values in an unscaled type; ValueError for what it cannot hold."""
    if kind in INTEGERS:
        return np.ascontiguousarray(values, INTEGERS[kind]).reshape(-1).view(np.uint8)
    if not np.isfinite(values).all():
        raise ValueError("a value is not finite")
    if kind == "F32":
        return np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8)
    if kind == "BF16":
        return f32_to_bf16(values).astype("<u2").reshape(-1).view(np.uint8)
    if kind in ("F16", "F64"):
        out = np.ascontiguousarray(values, "<f2" if kind == "F16" else "<f8")
        if not np.isfinite(out).all():
            raise ValueError(f"a value is too large for {kind}")
        return out.reshape(-1).view(np.uint8)
    raise GraftError(f"elements of type {kind} are not written here")


# -- FP8 in blocks -------------------------------------------------------------------------------


def _spread(scales: NDArray[Any], rows: int, cols: int) -> NDArray[Any]:
    wide = np.repeat(np.repeat(scales, FP8_BLOCK, axis=0), FP8_BLOCK, axis=1)
    return wide[:rows, :cols]


def block_scales(kind: str, raw: NDArray[np.uint8], shape: tuple[int, ...]) -> F32:
    """Scales of blocks as f32; bytes are exponents of two."""
    if kind in ("F8_E8M0", "U8"):
        return mxfp4.SCALES[raw].reshape(shape)
    return plain_to_f32(kind, raw).reshape(shape)


def fp8_decode(codes: NDArray[np.uint8], scales: F32) -> F32:
    """Matrix [R, C] from codes and the scales of its blocks [ceil(R/128), ceil(C/128)]."""
    rows, cols = codes.shape
    if scales.shape != (-(-rows // FP8_BLOCK), -(-cols // FP8_BLOCK)):
        raise GraftError(f"FP8 scales of {scales.shape} do not fit a matrix of {codes.shape}")
    return E4M3[codes] * _spread(scales, rows, cols)


def fp8_encode(
    values: F32, power_of_two: bool
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Codes [R, C] and scales of blocks; the largest value of a block is at most 448."""
    rows, cols = values.shape
    grid = (-(-rows // FP8_BLOCK), -(-cols // FP8_BLOCK))
    padded = np.zeros((grid[0] * FP8_BLOCK, grid[1] * FP8_BLOCK), np.float64)
    padded[:rows, :cols] = np.abs(values)
    blocks = padded.reshape(grid[0], FP8_BLOCK, grid[1], FP8_BLOCK)
    scales = np.maximum(blocks.max(axis=(1, 3)) / 448.0, 2.0**-127)
    if power_of_two:
        fraction, exponent = np.frexp(scales)
        scales = np.ldexp(1.0, np.where(fraction == 0.5, exponent - 1, exponent))
    ratio = values / _spread(scales, rows, cols)
    size = np.abs(ratio)
    above = np.clip(np.searchsorted(_E4M3_SIZES, size), 1, len(_E4M3_SIZES) - 1)
    low, high = _E4M3_SIZES[above - 1], _E4M3_SIZES[above]
    nearer = (size - low < high - size) | ((size - low == high - size) & (above % 2 == 1))
    codes = np.where(nearer, above - 1, above).astype(np.uint8)
    return codes | (np.signbit(ratio).astype(np.uint8) << 7), scales
