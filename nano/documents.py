"""Reading documents from text, JSON Lines and JSON files, plain or compressed.

Formats by extension: `.txt` (documents separated by a line `<|endoftext|>`), `.jsonl` (one object
per line), `.json` (an array of objects, read one object at a time), each also as `.gz` or `.zst`;
`-` is standard input as text.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

SEPARATOR = b"<|endoftext|>"
FIELDS = ("text", "story")
BLOCK = 1 << 20
MAX_OBJECT = 64 << 20  # characters of one JSON object; longer means the file is not what it says


class DataError(ValueError):
    """Input that cannot be read as documents; the message names file and place."""


@dataclass
class ReadStats:
    """What was met while reading."""

    documents: int = 0
    bad_utf8: int = 0
    empty: int = 0
    problems: list[str] = field(default_factory=list)


def read_documents(
    path: str | Path, fields: tuple[str, ...] = FIELDS, stats: ReadStats | None = None,
    repair: bool = False,
) -> Iterator[str]:
    """Stripped, non-empty documents in file order.

    A document that is not valid UTF-8 is skipped and counted.  `repair` accepts a `.json` array
    that was cut off in the middle of an object.
    """
    stats = stats if stats is not None else ReadStats()
    name = str(path)
    if name == "-":
        raw = _split_text(sys.stdin.buffer)
    else:
        if not Path(name).is_file():
            raise FileNotFoundError(f"{name}: no such file")
        raw = _read_file(Path(name), fields, repair)
    for data in raw:
        try:
            text = data.decode("utf-8") if isinstance(data, bytes) else data
        except UnicodeDecodeError:
            stats.bad_utf8 += 1
            continue
        text = text.strip()
        if not text:
            stats.empty += 1
            continue
        stats.documents += 1
        yield text


def _read_file(path: Path, fields: tuple[str, ...], repair: bool) -> Iterator[bytes | str]:
    suffixes = [s for s in path.suffixes if s not in (".gz", ".zst")]
    kind = suffixes[-1] if suffixes else ".txt"
    with _open(path) as stream:
        if kind == ".jsonl":
            yield from _read_lines(path, stream, fields)
        elif kind == ".json":
            yield from _read_array(path, stream, fields, repair)
        else:
            yield from _split_text(stream)


def _open(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    if path.suffix == ".zst":
        if shutil.which("zstd") is None:
            raise DataError(f"{path}: needs the program `zstd` (install it or decompress the file)")
        done = subprocess.run(["zstd", "-dc", "--", str(path)], capture_output=True, check=False)
        if done.returncode != 0:
            raise DataError(f"{path}: zstd failed: {done.stderr.decode(errors='replace').strip()}")
        return io.BytesIO(done.stdout)
    return path.open("rb")


def _split_text(stream: BinaryIO) -> Iterator[bytes]:
    lines: list[bytes] = []
    for line in stream:
        if line.strip() == SEPARATOR:
            yield b"".join(lines)
            lines = []
        else:
            lines.append(line)
    if lines:
        yield b"".join(lines)


def _text_of(path: Path, where: str, item: object, fields: tuple[str, ...]) -> str:
    if isinstance(item, dict):
        for key in fields:
            if isinstance(item.get(key), str):
                return item[key]
    raise DataError(f"{path}: {where}: no text in any of the fields {', '.join(fields)}")


def _read_lines(path: Path, stream: BinaryIO, fields: tuple[str, ...]) -> Iterator[bytes | str]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            yield line  # counted as invalid by the caller
            continue
        try:
            item = json.loads(text)
        except ValueError as err:
            raise DataError(f"{path}:{number}: not JSON: {err}") from err
        yield _text_of(path, f"line {number}", item, fields)


def _read_array(
    path: Path, stream: BinaryIO, fields: tuple[str, ...], repair: bool
) -> Iterator[str]:
    """Decodes one object after the other from a growing buffer; memory stays at one object."""
    text = io.TextIOWrapper(stream, encoding="utf-8", errors="strict")
    decoder = json.JSONDecoder()
    buffer = text.read(BLOCK).lstrip()
    if not buffer.startswith("["):
        raise DataError(f"{path}: a .json file must be an array of objects")
    buffer, count = buffer[1:], 0
    while True:
        buffer = buffer.lstrip(" \t\r\n,")
        if buffer.startswith("]"):
            return
        try:
            item, end = decoder.raw_decode(buffer)
        except ValueError as err:
            more = text.read(BLOCK)
            if not more:
                if repair:
                    return
                raise DataError(
                    f"{path}: cut off or broken after object {count}: {err} "
                    "(--json-repair keeps the complete objects)"
                ) from err
            buffer += more
            if len(buffer) > MAX_OBJECT:
                raise DataError(f"{path}: object {count + 1} is longer than 64 MiB") from err
            continue
        count += 1
        buffer = buffer[end:]
        yield _text_of(path, f"object {count}", item, fields)
