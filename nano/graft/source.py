"""Files of tensors: safetensors (one or many, mapped) and MKIM, behind one small interface.

Headers are checked before anything is read.  Tensors are read when asked for, whole or one index
of the leading dimension, and their pages are given back at once, so memory does not grow with the
file.  Nothing is unpickled.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nano import mxfp4
from nano.graft import codecs
from nano.graft.errors import GraftError
from nano.mkim import DType, MkimError, MkimFile

INDEX = "model.safetensors.index.json"
MAX_HEADER = 100 << 20
SCALE_NAMES = (("weight_packed", "weight_scale"), ("weight", "scale"),
               ("weight", "weight_scale_inv"))
Array = NDArray[Any]


class Source(Protocol):
    """Tensors by name.  Not thread-safe."""

    path: Path

    def names(self) -> list[str]: ...
    def __contains__(self, name: str) -> bool: ...
    def shape(self, name: str) -> tuple[int, ...]:
        """Of the values: a packed matrix has twice the columns of its bytes."""
        ...
    def kind(self, name: str) -> str: ...
    def read(self, name: str, index: int | None = None) -> Array:
        """f32 values (integers as they are) of the tensor, or of one index of its first axis."""
        ...
    def close(self) -> None: ...


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key occurs twice")
    return out


@dataclass(frozen=True)
class Place:
    """A tensor of a safetensors file: bytes [begin, end) behind the header."""

    shard: int
    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Shard:
    """One mapped safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as f:
                self.size = path.stat().st_size
                if self.size < 10:
                    raise GraftError(f"{path}: {self.size} bytes are too few for safetensors")
                (length,) = struct.unpack("<Q", f.read(8))
                if length > MAX_HEADER or 8 + length > self.size:
                    raise GraftError(f"{path}: a header of {length} bytes does not fit the file; "
                                     "it is cut off or no safetensors file")
                self.header = f.read(length)
                self._map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise
        except OSError as err:
            raise GraftError(f"{path}: cannot read: {err.strerror}") from err
        self.data_start = 8 + length
        try:
            self.entries = json.loads(self.header, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as err:
            raise GraftError(f"{path}: the header is not usable JSON: {err}") from err
        if not isinstance(self.entries, dict):
            raise GraftError(f"{path}: the header must be an object")
        self.metadata = self.entries.pop("__metadata__", None)

    def places(self, number: int) -> Iterator[tuple[str, Place]]:
        found = [(name, self._place(name, e, number)) for name, e in self.entries.items()]
        position = 0
        for name, place in sorted(found, key=lambda item: item[1].begin):
            if place.begin != position:
                raise GraftError(f"{self.path}: {name} starts at {place.begin}, not {position}: "
                                 "tensors must follow each other without gaps")
            position = place.end
            yield name, place
        if self.data_start + position != self.size:
            raise GraftError(f"{self.path}: tensors end at byte {self.data_start + position}, the "
                             f"file at {self.size}; it is cut off or has something behind")

    def _place(self, name: str, entry: Any, number: int) -> Place:
        try:
            kind, shape = str(entry["dtype"]), tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            whole = all(type(n) is int and 0 <= n < 1 << 48 for n in (*shape, begin, end))
            count = 1
            for n in shape if whole else ():
                count *= n
        except (KeyError, TypeError, ValueError) as err:
            raise GraftError(f"{self.path}: the entry of {name} is incomplete: {err!r}") from err
        if kind not in codecs.ITEM_BYTES:
            raise GraftError(f"{self.path}: {name} has the unknown type {kind}")
        if not whole or end - begin != count * codecs.ITEM_BYTES[kind]:
            raise GraftError(f"{self.path}: {name}: {entry} does not add up")
        return Place(number, kind, shape, begin, end)

    def bytes(self, begin: int, end: int) -> NDArray[np.uint8]:
        """A copy of bytes behind the header; their pages are given back."""
        start, stop = self.data_start + begin, self.data_start + end
        out = np.frombuffer(self._map, np.uint8, stop - start, start).copy()
        page = start - start % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, page, stop - page)
        return out

    def close(self) -> None:
        self._map.close()


class SafetensorsSource:
    """A directory with `*.safetensors`, with or without an index, or one such file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shards = [Shard(p) for p in _shard_paths(path)]
        self._places: dict[str, Place] = {}
        for number, shard in enumerate(self.shards):
            for name, place in shard.places(number):
                if name in self._places:
                    raise GraftError(f"{path}: {name} is in two files")
                self._places[name] = place
        _check_index(path, self._places)

    def names(self) -> list[str]:
        return list(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def place(self, name: str) -> Place:
        try:
            return self._places[name]
        except KeyError:
            raise GraftError(f"{self.path}: there is no tensor {name}") from None

    def kind(self, name: str) -> str:
        return self.place(name).kind

    def scale_of(self, name: str) -> str | None:
        """Name of the tensor that scales this one, None for plain types."""
        if self.kind(name) not in ("U8", "I8", "F8_E4M3"):
            return None
        for suffix, scale in SCALE_NAMES:
            candidate = name.removesuffix(suffix) + scale
            if name.endswith(suffix) and candidate in self._places:
                return candidate
        return None

    def is_packed(self, name: str) -> bool:
        return self.kind(name) in ("U8", "I8") and self.scale_of(name) is not None

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self.place(name).shape
        return (*shape[:-1], 2 * shape[-1]) if self.is_packed(name) else shape

    def raw(self, name: str, index: int | None = None) -> NDArray[np.uint8]:
        p = self.place(name)
        if index is None:
            return self.shards[p.shard].bytes(p.begin, p.end)
        step = (p.end - p.begin) // p.shape[0]
        begin = p.begin + index * step
        return self.shards[p.shard].bytes(begin, begin + step)

    def read(self, name: str, index: int | None = None) -> Array:
        p = self.place(name)
        raw = self.raw(name, index)
        scale = self.scale_of(name)
        if scale is None:
            shape = p.shape if index is None else p.shape[1:]
            return codecs.plain_to_f32(p.kind, raw).reshape(shape)
        if index is not None or len(p.shape) != 2:
            raise GraftError(f"{self.path}: {name}: scaled stacks of matrices are not read here")
        if p.kind == "F8_E4M3":
            scales = codecs.block_scales(self.kind(scale), self.raw(scale),
                                         self.place(scale).shape)
            return codecs.fp8_decode(raw.reshape(p.shape), scales)
        rows, cols = self.shape(name)
        try:
            return mxfp4.decode(np.concatenate([raw, self.raw(scale)]), rows, cols)
        except mxfp4.Mxfp4Error as err:
            raise GraftError(f"{self.path}: {name}: {err}") from err

    def close(self) -> None:
        for shard in self.shards:
            shard.close()


def _shard_paths(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    index = path / INDEX
    if not index.is_file():
        found = sorted(path.glob("*.safetensors"))
        if not found:
            pickled = [p.name for p in path.iterdir() if p.suffix in (".pt", ".pth", ".bin")]
            hint = f" ({pickled[0]}: pickles are never read; convert it first)" if pickled else ""
            raise GraftError(f"{path}: no *.safetensors here{hint}")
        return found
    paths = [path / name for name in sorted(set(_weight_map(index).values()))]
    for p in paths:
        if p.parent != path or not p.is_file():
            raise GraftError(f"{index} names the shard {p.name}, which is not there")
    return paths


def _weight_map(index: Path) -> dict[str, str]:
    try:
        table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {str(k): str(v) for k, v in table.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as err:
        raise GraftError(f"{index}: not a usable index: {err!r}") from err


def _check_index(path: Path, places: dict[str, Place]) -> None:
    index = path / INDEX
    if path.is_dir() and index.is_file():
        missing = [name for name in _weight_map(index) if name not in places]
        if missing:
            raise GraftError(f"{index}: {missing[0]} is in none of the shards")


class MkimSource:
    """A `.bin` file; blobs are read where they lie, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.file = MkimFile(path)
        except MkimError as err:
            raise GraftError(str(err)) from err
        self.warnings = self.file.warnings

    def names(self) -> list[str]:
        return list(self.file.entries)

    def __contains__(self, name: str) -> bool:
        return name in self.file.entries

    def shape(self, name: str) -> tuple[int, ...]:
        return self.file.entry(name).dims

    def kind(self, name: str) -> str:
        return self.file.entry(name).dtype.name

    def read(self, name: str, index: int | None = None) -> Array:
        values = self.file.read(name)
        return values if index is None else values[index]

    def is_expert_type(self, name: str) -> bool:
        return self.file.entry(name).dtype in (DType.MXFP4, DType.MXFP4SQ, DType.VQ1)

    def close(self) -> None:
        self.file.close()
