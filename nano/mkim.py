"""MKIM model container (`.bin`): the reader.

Layout, all little-endian: 8 bytes "MKIM0001" or "MKIM0002"; (0002) u32 length and a JSON config;
u32 count; a directory of {u16 name length, name, u8 dtype, u8 rank, u32 dims[rank], u64 offset,
u64 size}, packed; blobs, each on a 64-byte boundary, zeros between them.  Offsets are absolute.

`MkimFile` trusts nothing: when it opens, every entry lies inside the file, overlaps no other and
has the size that its type and dims imply, and with model checks every tensor that the config calls
for is there with its shape.  Blobs are read with pread, never mapped: a file that is cut later
gives an error.
"""

from __future__ import annotations

import math
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from nano import mxfp4
from nano.arch import Config, expert_count, model_tensors
from nano.config import ConfigError, K3Config
from nano.mkim_config import (
    ConfigBlockError,
    dsv4_config,
    is_dsv4,
    k3_config,
    parse_config,
)
from nano.tensors import EXPERT_NAME, Tensor

MAGIC_1, MAGIC_2 = b"MKIM0001", b"MKIM0002"
MAX_CONFIG = 16 << 20
MAX_TENSORS = 4_194_304
MAX_NAME = 512
MAX_DIMS = 4
MAX_ELEMENTS = 1 << 48
MIN_ENTRY = 22
BLOB_ALIGN = 64
CODEBOOK, CODEBOOK_DIMS, VECTOR = "vq_codebook", (256, 16), 16
EXTENDED_FORMAT = 3  # config key "format" of files with extension types
FIRST_EXTENSION = 16

F32 = NDArray[np.float32]


class MkimError(ValueError):
    """A container that cannot be used; the message names the file and what is wrong."""


class DType(IntEnum):
    F32 = 0
    MXFP4 = 1
    I32 = 2
    VQ1 = 3  # one byte per 16 columns, an index into vq_codebook [256, 16]
    MXFP4SQ = 4
    BF16 = 16  # upper half of an f32; spine matrices of files with "format": 3


COLUMN_GROUP = {DType.MXFP4: mxfp4.GROUP, DType.MXFP4SQ: mxfp4.GROUP, DType.VQ1: VECTOR}


def blob_bytes(dtype: DType, dims: tuple[int, ...]) -> int:
    """Bytes of a blob; ValueError when the type does not allow the dims."""
    if not 1 <= len(dims) <= MAX_DIMS or min(dims) < 1 or math.prod(dims) > MAX_ELEMENTS:
        raise ValueError(f"dims {list(dims)} are not 1..{MAX_DIMS} sizes of at least 1")
    count = math.prod(dims)
    group = COLUMN_GROUP.get(dtype)
    if group is not None and (len(dims) != 2 or dims[1] % group):
        raise ValueError(f"{dtype.name} needs a matrix with columns in multiples of {group}, "
                         f"not {list(dims)}")
    if dtype in (DType.F32, DType.I32):
        return 4 * count
    if dtype == DType.BF16:
        return 2 * count
    if dtype == DType.VQ1:
        return count // VECTOR
    return mxfp4.blob_bytes(*dims) + (4 if dtype == DType.MXFP4SQ else 0)


@dataclass(frozen=True)
class Entry:
    name: str
    dtype: DType
    dims: tuple[int, ...]
    offset: int
    size: int

    @property
    def elements(self) -> int:
        return math.prod(self.dims)


class MkimFile:
    """An open, checked container.  Use as a context manager or call close()."""

    def __init__(self, path: Path | str, model_checks: bool = True) -> None:
        """`model_checks` off: header, directory and config only, for any set of tensors."""
        self.path = Path(path)
        self.warnings: list[str] = []
        try:
            self._file: BinaryIO = self.path.open("rb", buffering=1 << 20)
        except OSError as err:
            raise MkimError(f"{path}: cannot open: {err.strerror}") from err
        try:
            self._read_header()
            self._check_layout()
            self._config: Config | None = None
            if model_checks:
                self._check_model()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    # -- header ------------------------------------------------------------------------------

    def _fail(self, what: str) -> MkimError:
        return MkimError(f"{self.path}: {what}")

    def _take(self, count: int, what: str) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise self._fail(f"the file ends inside {what}; it is truncated, copy it again")
        return data

    def _read_header(self) -> None:
        status = os.fstat(self._file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise self._fail("not a regular file")
        self.size = status.st_size
        if self.size < 16:
            raise self._fail(f"{self.size} bytes are too few for a model")
        magic = self._take(8, "the magic")
        if magic not in (MAGIC_1, MAGIC_2):
            raise self._fail(f"starts with {magic!r}, not MKIM0001 or MKIM0002: not a model file")
        self.version = 1 if magic == MAGIC_1 else 2
        self.config: dict[str, Any] = self._read_config() if self.version == 2 else {}
        (count,) = struct.unpack("<I", self._take(4, "the tensor count"))
        left = self.size - self._file.tell()
        if count > MAX_TENSORS or count * MIN_ENTRY > left:
            raise self._fail(f"{count} tensors cannot be in a file of {self.size} bytes")
        self.entries: dict[str, Entry] = {}
        for index in range(count):
            entry = self._read_entry(index)
            if entry.name in self.entries:
                raise self._fail(f"the tensor {entry.name} is listed twice")
            self.entries[entry.name] = entry
        self.data_start = self._file.tell()

    def _read_config(self) -> dict[str, Any]:
        (length,) = struct.unpack("<I", self._take(4, "the config length"))
        if length > MAX_CONFIG or 16 + length > self.size:
            raise self._fail(f"a config of {length} bytes does not fit the file")
        try:
            return parse_config(self._take(length, "the config"))
        except ConfigBlockError as err:
            raise self._fail(str(err)) from err

    def _read_entry(self, index: int) -> Entry:
        where = f"directory entry {index}"
        (length,) = struct.unpack("<H", self._take(2, where))
        if not 1 <= length <= MAX_NAME:
            raise self._fail(f"{where}: a name of {length} bytes (1..{MAX_NAME} allowed)")
        raw = self._take(length, where)
        if any(not 0x20 <= byte < 0x7F for byte in raw):
            raise self._fail(f"{where}: the name {raw!r} is not printable ASCII")
        name = raw.decode("ascii")
        code, rank = self._take(2, where)
        if not 1 <= rank <= MAX_DIMS:
            raise self._fail(f"{name}: {rank} dims (1..{MAX_DIMS} allowed)")
        dims = struct.unpack(f"<{rank}I", self._take(4 * rank, where))
        offset, size = struct.unpack("<QQ", self._take(16, where))
        entry = Entry(name, self._dtype(name, code), dims, offset, size)
        try:
            expected = blob_bytes(entry.dtype, dims)
        except ValueError as err:
            raise self._fail(f"{name}: {err}") from err
        if size != expected:
            raise self._fail(f"{name}: {size} bytes, but its dims {list(dims)} need {expected}")
        return entry

    def _dtype(self, name: str, code: int) -> DType:
        try:
            dtype = DType(code)
        except ValueError:
            raise self._fail(f"{name}: unknown element type {code}") from None
        if dtype >= FIRST_EXTENSION and self.config.get("format") != EXTENDED_FORMAT:
            raise self._fail(f'{name}: type {dtype.name} needs "format": 3 in the config')
        return dtype

    def _check_layout(self) -> None:
        end, before = self.data_start, "the directory"
        for e in sorted(self.entries.values(), key=lambda e: (e.offset, e.size)):
            if e.offset < end:
                raise self._fail(f"{e.name} starts at {e.offset}, inside {before}")
            end, before = e.offset + e.size, e.name
            if end > self.size:
                raise self._fail(
                    f"{e.name} ends at byte {end}, the file at {self.size}; "
                    "it is truncated, copy it again"
                )
            if e.dtype in (DType.F32, DType.I32) and e.offset % BLOB_ALIGN:
                if e.offset % 4:
                    raise self._fail(f"{e.name} starts at {e.offset}, not a multiple of 4")
                self.warnings.append(f"{e.name} is not on a {BLOB_ALIGN}-byte boundary")
        if any(e.dtype == DType.VQ1 for e in self.entries.values()):
            book = self.entries.get(CODEBOOK)
            if book is None or book.dtype != DType.F32 or book.dims != CODEBOOK_DIMS:
                raise self._fail("VQ1 tensors need vq_codebook, F32 of [256, 16]")

    # -- the model ---------------------------------------------------------------------------

    def model_config(self) -> Config:
        """The typed config; MkimError for an architecture that is not known here."""
        if self._config is None:
            counts = [e.elements for e in self.entries.values() if e.name.endswith(".A_log")]
            try:
                if is_dsv4(self.config):
                    self._config = dsv4_config(self.config, self.warnings)
                else:
                    count = counts[0] if counts else None
                    self._config = k3_config(self.config, count, self.warnings)
            except (ConfigBlockError, ConfigError) as err:
                raise self._fail(str(err)) from err
        return self._config

    def k3(self) -> K3Config:
        """The typed config of a K3 model; MkimError for another architecture."""
        config = self.model_config()
        if not isinstance(config, K3Config):
            raise self._fail("this works on Kimi K3 models only, and the file holds another kind")
        return config

    def _check_model(self) -> None:
        expected = 0
        for tensor in model_tensors(self.model_config()):
            entry = self.entries.get(tensor.name)
            if entry is None:
                raise self._fail(f"the tensor {tensor.name} is missing")
            if entry.elements != tensor.elements or (tensor.expert and entry.dims != tensor.dims):
                raise self._fail(
                    f"{tensor.name} is {list(entry.dims)}, the config calls for {list(tensor.dims)}"
                )
            self._check_type(entry, tensor)
            if tensor.integer:
                self._check_table(tensor)
            elif len(tensor.dims) == 1 and not np.isfinite(self.read(tensor.name)).all():
                raise self._fail(f"{tensor.name} holds values that are not finite")
            expected += 1
        extra = [n for n in self.entries if n != CODEBOOK]
        if len(extra) > expected:
            known = {tensor.name for tensor in model_tensors(self.model_config())}
            odd = next(name for name in extra if name not in known)
            self.warnings.append(f"{len(extra) - expected} unknown tensors, such as {odd}")

    def _check_table(self, tensor: Tensor) -> None:
        """The hash table of a layer holds expert numbers."""
        values, experts = self.read(tensor.name), expert_count(self.model_config())
        if values.min() < 0 or values.max() >= experts:
            raise self._fail(f"{tensor.name} holds a number that is no expert (0..{experts - 1})")

    def _check_type(self, entry: Entry, tensor: Tensor) -> None:
        allowed: tuple[DType, ...] = (DType.F32, DType.BF16)
        if tensor.integer:
            allowed = (DType.I32,)
        if tensor.expert:
            allowed = (DType.F32, DType.MXFP4, DType.VQ1, DType.MXFP4SQ)
        if entry.dtype not in allowed:
            raise self._fail(f"{entry.name} has the type {entry.dtype.name}, not "
                             + " or ".join(t.name for t in allowed))

    # -- blobs -------------------------------------------------------------------------------

    def entry(self, name: str) -> Entry:
        try:
            return self.entries[name]
        except KeyError:
            raise self._fail(f"there is no tensor {name}") from None

    def read_blob(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor as stored."""
        e = self.entry(name)
        data = bytearray(e.size)
        view, done = memoryview(data), 0
        while done < e.size:
            got = os.preadv(self._file.fileno(), [view[done:]], e.offset + done)
            if got == 0:
                raise self._fail(f"{name}: the file was cut while it was read")
            done += got
        return np.frombuffer(data, np.uint8)

    def read(self, name: str) -> NDArray[Any]:
        """The tensor in its dims: i32 for I32, decoded f32 for every other type."""
        e = self.entry(name)
        blob = self.read_blob(name)
        try:
            return self._decode(e, blob)
        except mxfp4.Mxfp4Error as err:
            raise self._fail(f"{name}: {err}") from err

    def _decode(self, e: Entry, blob: NDArray[np.uint8]) -> NDArray[Any]:
        if e.dtype == DType.F32:
            return blob.view("<f4").reshape(e.dims)
        if e.dtype == DType.I32:
            return blob.view("<i4").reshape(e.dims)
        if e.dtype == DType.BF16:
            return bf16_to_f32(blob.view("<u2")).reshape(e.dims)
        if e.dtype == DType.VQ1:
            return self.read(CODEBOOK)[blob].reshape(e.dims)
        rows, cols = e.dims
        decode = mxfp4.decode if e.dtype == DType.MXFP4 else mxfp4.decode_square
        return decode(blob, rows, cols)

    def spine(self) -> Iterator[Entry]:
        """Everything but routed experts and their codebook, in directory order."""
        for entry in self.entries.values():
            if entry.name != CODEBOOK and not EXPERT_NAME.fullmatch(entry.name):
                yield entry

    def verify_values(self) -> None:
        """Reads every tensor; MkimError at the first value that is not finite or decodable."""
        for entry in self.entries.values():
            if not np.isfinite(self.read(entry.name)).all():
                raise self._fail(f"{entry.name} holds values that are not finite")


# -- BF16 ----------------------------------------------------------------------------------------


def bf16_to_f32(halves: NDArray[np.uint16]) -> F32:
    return (halves.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Upper halves, rounded to nearest even; ValueError where the result is not finite."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    halves = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    if not np.isfinite(bf16_to_f32(halves)).all() or not np.isfinite(values).all():
        raise ValueError("a value is not finite in BF16")
    return halves
