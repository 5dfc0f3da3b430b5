"""Safetensors files tensor by tensor: memory stays at one tensor, whatever the file's size.

Layout: u64 length of a JSON header, the header (name -> dtype, shape, byte range behind the
header), the bytes of all tensors without gaps.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

TYPES = {"F32": np.dtype("<f4"), "I32": np.dtype("<i4")}


class TensorSource:
    """The tensors of one safetensors file as numpy arrays, read when asked for.

    Half-precision tensors are widened to f32.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = safe_open(path, framework="pt")
            self._names = set(self._file.keys())
        except (OSError, SafetensorError) as err:
            raise ValueError(f"{path}: cannot read the tensors: {err}") from err

    @property
    def names(self) -> set[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())

    def get(self, name: str) -> NDArray[Any]:
        tensor = self._file.get_tensor(name)
        if tensor.is_floating_point():
            tensor = tensor.float()
        return tensor.numpy()


class SafetensorsWriter:
    """Declares tensors, then takes them in that order, whole or in parts.

    Writes to `path` itself: the caller makes a directory of files atomic.
    """

    def __init__(
        self, path: Path, tensors: Sequence[tuple[str, str, tuple[int, ...]]],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """`tensors`: (name, "F32" or "I32", shape)."""
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        position = 0
        for name, kind, shape in tensors:
            size = TYPES[kind].itemsize * int(np.prod(shape, dtype=np.int64))
            header[name] = {
                "dtype": kind, "shape": list(shape), "data_offsets": [position, position + size],
            }
            position += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._left = position
        self._out = path.open("wb")
        self._out.write(struct.pack("<Q", len(text)) + text)

    def write(self, values: NDArray[Any]) -> None:
        """The next bytes in order; dtype must be that of the declared tensor."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self._left -= data.size
        self._out.write(data)

    def close(self) -> None:
        """Syncs; fails when the bytes do not add up to what was declared."""
        self._out.flush()
        os.fsync(self._out.fileno())
        self._out.close()
        if self._left:
            raise ValueError(f"{self._out.name}: {self._left} bytes were declared but not written")
