"""Files of tensor rows as they come from the daemon: raw little-endian f32, row after row."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any, BinaryIO

from .errors import AccessDeniedError, InternalError, IoError, MicrokimiError
from .run_messages import Dump


def _cannot_write(path: str, error: OSError) -> MicrokimiError:
    cls = AccessDeniedError if isinstance(error, PermissionError) else IoError
    return cls(
        f"cannot write {path}: {error.strerror}",
        "check the folder, its permissions and its free space",
    )


class DumpFile:
    """Written beside its place under another name and put there by commit(), so that a file of the
    wanted name is always whole. A name that stands for a pipe or a device is written directly."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows = 0
        self._row_bytes = 0
        self._offset = 0  # in the row that is being written
        self._position: int | None = None
        try:
            self._direct = os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode)
            self._name = path if self._direct else f"{path}.part"
            self._file: BinaryIO | None = open(self._name, "wb")  # noqa: SIM115
        except OSError as error:
            raise _cannot_write(path, error) from error

    def append(self, body: dict[str, Any]) -> None:
        """The body of a chunk of kind "logits" or "hidden": a piece of a row."""
        position, row_bytes = body.get("position"), body.get("row_bytes")
        offset, data = body.get("offset"), body.get("data")
        if self._rows == 0 and self._offset == 0 and isinstance(row_bytes, int):
            self._row_bytes = row_bytes
        follows = self._position is None or position == self._position + (self._offset == 0)
        if (
            self._file is None
            or not isinstance(position, int)
            or not isinstance(data, bytes)
            or not 0 < len(data) <= self._row_bytes - self._offset
            or (row_bytes, offset) != (self._row_bytes, self._offset)
            or not follows
        ):
            raise InternalError(
                f"the daemon sent pieces of {body.get('kind')} that do not fit together, "
                f"at position {position}"
            )
        try:
            self._file.write(data)
        except OSError as error:
            raise _cannot_write(self._path, error) from error
        self._position = position
        self._offset += len(data)
        if self._offset == self._row_bytes:
            self._rows += 1
            self._offset = 0

    def commit(self) -> Dump:
        if self._offset != 0 or self._file is None:
            raise InternalError(f"the last row of {self._path} is not whole")
        try:
            self._file.flush()
            if not self._direct:
                os.fsync(self._file.fileno())
                os.rename(self._name, self._path)
            self._file.close()
        except OSError as error:
            raise _cannot_write(self._path, error) from error
        self._file = None
        return Dump(self._path, self._rows, self._row_bytes // 4)

    def discard(self) -> None:
        """Without commit() what was written is removed."""
        file, self._file = self._file, None
        if file is None:
            return
        with contextlib.suppress(OSError):
            file.close()
        if not self._direct:
            with contextlib.suppress(OSError):
                os.unlink(self._name)
