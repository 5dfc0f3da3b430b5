"""MKIM model container (`.bin`): the writer.

Tensors are declared first and filled in any order.  The file appears at its path complete, synced
and checked by the reader, or not at all.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nano import mxfp4
from nano.files import sync_directory
from nano.mkim import (
    BLOB_ALIGN,
    EXTENDED_FORMAT,
    FIRST_EXTENSION,
    MAGIC_1,
    MAGIC_2,
    MAX_NAME,
    DType,
    Entry,
    MkimError,
    MkimFile,
    blob_bytes,
    f32_to_bf16,
)
from nano.mkim_config import render_config
from nano.tensors import EXPERT_NAME

DIGEST_KEY = "content_sha256"  # over all blobs in directory order, without padding


@dataclass(frozen=True)
class Spec:
    name: str
    dtype: DType
    dims: tuple[int, ...]


def _align(position: int, to: int) -> int:
    return -(-position // to) * to


def plan(
    config: Mapping[str, Any] | None, specs: Sequence[Spec], expert_align: int
) -> tuple[bytes, list[Entry]]:
    """Header and entries with offsets.

    `expert_align` is where the record w1, w2, w3 of a routed expert starts; every other blob, and
    w2 and w3 inside the record, start on 64 bytes.
    """
    if expert_align % BLOB_ALIGN or expert_align <= 0:
        raise MkimError(f"expert alignment {expert_align} is not a multiple of {BLOB_ALIGN}")
    head = MAGIC_1
    if config is not None:
        text = render_config(config)
        head = MAGIC_2 + struct.pack("<I", len(text)) + text
    head += struct.pack("<I", len(specs))
    position = len(head) + sum(20 + len(s.name) + 4 * len(s.dims) for s in specs)
    entries, directory, seen = [], [], set()
    for s in specs:
        raw = s.name.encode("ascii", "replace")
        if not 1 <= len(raw) <= MAX_NAME or not s.name.isprintable() or s.name in seen:
            raise MkimError(f"{s.name!r} cannot name a tensor: empty, too long or used twice")
        if s.dtype >= FIRST_EXTENSION and (config or {}).get("format") != EXTENDED_FORMAT:
            raise MkimError(f'{s.name}: type {s.dtype.name} needs "format": 3 in the config')
        seen.add(s.name)
        try:
            size = blob_bytes(s.dtype, s.dims)
        except ValueError as err:
            raise MkimError(f"{s.name}: {err}") from err
        starts_record = s.name.endswith(".w1") and EXPERT_NAME.fullmatch(s.name) is not None
        position = _align(position, expert_align if starts_record else BLOB_ALIGN)
        entries.append(Entry(s.name, s.dtype, tuple(s.dims), position, size))
        directory.append(
            struct.pack("<H", len(raw)) + raw + bytes([s.dtype, len(s.dims)])
            + struct.pack(f"<{len(s.dims)}IQQ", *s.dims, position, size)
        )
        position += size
    return head + b"".join(directory), entries


class MkimWriter:
    """Use as a context manager and call commit() at its end; leaving without it removes the file.

    Unless `config` is None (MKIM0001) the config gets the digest of all blobs.
    """

    def __init__(
        self, path: Path | str, config: Mapping[str, Any] | None, specs: Sequence[Spec],
        expert_align: int = BLOB_ALIGN, model_checks: bool = True,
    ) -> None:
        self.path = Path(path)
        self.model_checks = model_checks
        self.config = None if config is None else {**config, DIGEST_KEY: "0" * 64}
        self.header, entries = plan(self.config, specs, expert_align)
        self.expert_align = expert_align
        self.entries = {e.name: e for e in entries}
        self._specs = list(specs)
        self._left = set(self.entries)
        self._temporary = self.path.with_name(f"{self.path.name}.tmp.{os.getpid()}")
        try:
            self._fd = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as err:
            raise MkimError(f"{self._temporary}: cannot create: {err.strerror}") from err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._temporary.unlink(missing_ok=True)

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Encodes f32 values (i32 for I32) into the declared type."""
        entry = self._declared(name)
        if values.size != entry.elements:
            raise MkimError(f"{name}: {list(values.shape)} values for dims {list(entry.dims)}")
        try:
            self.write_blob(name, encode(entry.dtype, values.reshape(entry.dims)))
        except ValueError as err:
            raise MkimError(f"{self.path}: {name}: {err}") from err

    def write_blob(self, name: str, blob: NDArray[np.uint8] | bytes) -> None:
        """Writes bytes that are already encoded."""
        entry = self._declared(name)
        data = memoryview(np.ascontiguousarray(np.frombuffer(blob, np.uint8)))
        if len(data) != entry.size:
            raise MkimError(f"{name}: {len(data)} bytes, {entry.size} expected")
        write_at(self._fd, data, entry.offset)
        self._left.discard(name)

    def commit(self) -> None:
        if self._left:
            raise MkimError(f"{self.path}: {min(self._left)} was never written")
        if self.config is not None:
            self.config[DIGEST_KEY] = content_digest(self._fd, self.entries.values())
            self.header, _ = plan(self.config, self._specs, self.expert_align)
        write_at(self._fd, memoryview(self.header), 0)
        end = max((e.offset + e.size for e in self.entries.values()), default=len(self.header))
        os.ftruncate(self._fd, end)
        os.fsync(self._fd)
        MkimFile(self._temporary, self.model_checks).close()
        self._temporary.replace(self.path)
        sync_directory(self.path.resolve().parent)

    def _declared(self, name: str) -> Entry:
        if name not in self.entries:
            raise MkimError(f"{self.path}: {name} was not declared")
        return self.entries[name]


def content_digest(fd: int, entries: Iterable[Entry]) -> str:
    """SHA-256 of all blobs in directory order, without padding, as hex."""
    digest = hashlib.sha256()
    for entry in entries:
        done = 0
        while done < entry.size:
            block = os.pread(fd, min(1 << 20, entry.size - done), entry.offset + done)
            if not block:
                raise MkimError(f"{entry.name} cannot be read back")
            digest.update(block)
            done += len(block)
    return digest.hexdigest()


def encode(dtype: DType, values: NDArray[Any]) -> NDArray[np.uint8]:
    """Blob of values in their dims; ValueError for what the type cannot hold."""
    if dtype == DType.MXFP4:
        return mxfp4.encode(values)
    if dtype == DType.BF16:
        return f32_to_bf16(values).astype("<u2").reshape(-1).view(np.uint8)
    if dtype == DType.I32:
        return np.ascontiguousarray(values, "<i4").reshape(-1).view(np.uint8)
    if dtype == DType.F32:
        if not np.isfinite(values).all():
            raise ValueError("a value is not finite")
        return np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8)
    raise ValueError(f"there is no encoder for {dtype.name}")


def write_at(fd: int, data: memoryview, offset: int) -> None:
    data = data.cast("B") if data.format != "B" else data
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
