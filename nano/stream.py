"""Token streams on disk.

`<prefix>.bin`        token ids, little-endian u16 (u32 when the vocabulary exceeds 65536)
`<prefix>.idx`        u64 LE start of each document in tokens, one more entry for the end
`<prefix>.meta.json`  count, dtype, docs, bos, eos, vocab_size, specials, bytes, split, ...

A stream holds whole documents: bos, text, eos.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nano.documents import DataError
from nano.files import sha256_of, write_atomic, write_json

DTYPES = {"uint16le": np.dtype("<u2"), "uint32le": np.dtype("<u4")}


@dataclass
class TokenStream:
    """One memory-mapped stream."""

    prefix: Path
    tokens: np.ndarray  # [count], read-only
    starts: np.ndarray  # [docs + 1] u64
    meta: dict[str, Any]

    @property
    def docs(self) -> int:
        return len(self.starts) - 1

    def document(self, index: int) -> np.ndarray:
        return self.tokens[int(self.starts[index]) : int(self.starts[index + 1])]

    def fingerprint(self) -> str:
        """Digest of the ids; part of a checkpoint, so that a resume sees the same data."""
        return sha256_of(self.prefix.with_name(self.prefix.name + ".bin"))


def _file(prefix: Path, suffix: str) -> Path:
    return prefix.with_name(prefix.name + suffix)


def write_stream(prefix: Path, documents: list[list[int]], meta: dict[str, Any]) -> None:
    """Writes the three files; the meta file comes last, so its presence means complete."""
    vocab = int(meta["vocab_size"])
    name = "uint16le" if vocab <= 65536 else "uint32le"
    lengths = np.fromiter((len(d) for d in documents), dtype=np.uint64, count=len(documents))
    starts = np.concatenate([np.zeros(1, np.uint64), lengths.cumsum(dtype=np.uint64)])
    flat = np.fromiter(
        (token for d in documents for token in d), dtype=DTYPES[name], count=int(starts[-1])
    )
    write_atomic(_file(prefix, ".bin"), flat.tobytes())
    write_atomic(_file(prefix, ".idx"), starts.astype("<u8").tobytes())
    full = {"count": int(starts[-1]), "dtype": name, "docs": len(documents), **meta}
    write_json(_file(prefix, ".meta.json"), full)


def open_stream(prefix: Path, vocab: int | None = None) -> TokenStream:
    """Opens and checks a stream; `vocab` is the model's vocabulary size, if known."""
    try:
        meta = json.loads(_file(prefix, ".meta.json").read_text(encoding="utf-8"))
        dtype = DTYPES[meta["dtype"]]
        count, docs = int(meta["count"]), int(meta["docs"])
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise DataError(f"{prefix}.meta.json: not a stream description: {err!r}") from err
    size = _file(prefix, ".bin").stat().st_size
    if count < 1 or size != count * dtype.itemsize:
        raise DataError(f"{prefix}.bin: {size} bytes, but the meta file promises {count} ids")
    starts = np.fromfile(_file(prefix, ".idx"), dtype="<u8")
    if len(starts) != docs + 1 or starts[0] != 0 or starts[-1] != count:
        raise DataError(f"{prefix}.idx: does not fit {docs} documents of {count} tokens")
    if np.any(starts[1:] <= starts[:-1]):
        raise DataError(f"{prefix}.idx: document starts must ascend")
    tokens = np.memmap(_file(prefix, ".bin"), dtype=dtype, mode="r")
    stream = TokenStream(prefix, tokens, starts, meta)
    if vocab is not None and int(tokens.max()) >= vocab:
        raise DataError(f"{prefix}.bin: id {int(tokens.max())} does not fit vocabulary {vocab}")
    return stream


def open_shards(prefix: Path, vocab: int | None = None) -> list[TokenStream]:
    """`<prefix>` itself, or `<prefix>-000`, `<prefix>-001`, ... in order: one per epoch."""
    if _file(prefix, ".meta.json").is_file():
        return [open_stream(prefix, vocab)]
    metas = sorted(prefix.parent.glob(f"{prefix.name}-[0-9][0-9][0-9].meta.json"))
    if not metas:
        raise FileNotFoundError(f"{prefix}: no token stream here (run nano.prepare first)")
    names = [m.name.removesuffix(".meta.json") for m in metas]
    expected = [f"{prefix.name}-{i:03d}" for i in range(len(names))]
    if names != expected:
        raise DataError(f"{prefix}: shards are {names}, expected {expected}")
    return [open_stream(prefix.parent / name, vocab) for name in names]
