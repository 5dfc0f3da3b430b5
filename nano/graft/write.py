"""Writing a checkpoint back: everything that was not changed is copied byte for byte.

A directory appears under its name complete, by rename, or not at all; so does a `.bin`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nano import mxfp4
from nano.files import sync_directory, write_json
from nano.graft import codecs
from nano.graft.checkpoint import Checkpoint
from nano.graft.errors import GraftError
from nano.graft.source import INDEX, MkimSource, SafetensorsSource, Shard
from nano.mkim import DType, MkimError
from nano.mkim_writer import DIGEST_KEY, MkimWriter, Spec, content_digest, encode, plan, write_at

Bytes = NDArray[np.uint8]
RECORD = "graft.json"
PLAN_FILES = re.compile(r".*\.(json|txt|model|jinja|tiktoken|md)")


@dataclass
class Item:
    """A tensor of a file to write; `data` gives its bytes when asked."""

    name: str
    kind: str
    shape: tuple[int, ...]
    data: Callable[[], Bytes]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * codecs.ITEM_BYTES[self.kind]


def write_safetensors(path: Path, items: list[Item], metadata: Any = None,
                      header: bytes | None = None) -> None:
    """One file with `items` in this order; `header` if the layout is that of another file."""
    if header is None:
        entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        position = 0
        for item in items:
            entries[item.name] = {"dtype": item.kind, "shape": list(item.shape),
                                  "data_offsets": [position, position + item.size]}
            position += item.size
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(header)) + header)
        for item in items:
            data = item.data()
            if data.size != item.size:
                raise GraftError(f"{item.name}: {data.size} bytes for {item.size}")
            out.write(data)
        out.flush()
        os.fsync(out.fileno())


def refuse_existing(out: Path) -> None:
    if out.exists():
        raise GraftError(f"{out} exists already; choose another name")


class Directory:
    """A directory that appears whole: fill `path`, then `commit`."""

    def __init__(self, out: Path) -> None:
        refuse_existing(out)
        self.out = out
        self.path = out.with_name(f".tmp-{out.name}-{os.getpid()}")

    def __enter__(self) -> Directory:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def commit(self) -> None:
        sync_directory(self.path)
        self.path.rename(self.out)
        sync_directory(self.out.resolve().parent)


class Writer:
    """Writes a checkpoint with its staged changes in the format it has."""

    def __init__(self, source: Checkpoint, out: Path, keep_f32: bool = False) -> None:
        """`keep_f32`: changed matrices become F32 where the format allows it."""
        self.source, self.out, self.keep_f32 = source, out, keep_f32
        if isinstance(source.source, MkimSource) and out.suffix != ".bin":
            raise GraftError(f"{out}: a model file must end in .bin")
        refuse_existing(out)

    def commit(self, record: dict[str, Any] | None = None) -> None:
        """`record` goes into graft.json (beside a `.bin`: `<stem>.graft.json`)."""
        try:
            if isinstance(self.source.source, MkimSource):
                self._write_mkim(self.source.source)
                copy_vocabulary(self.source.path, self.out)
                if record is not None:
                    write_json(self.out.with_suffix("." + RECORD), record)
            else:
                self._write_directory(self.source.source, record)
        except MkimError as err:
            raise GraftError(str(err)) from err

    # -- safetensors -------------------------------------------------------------------------

    def _write_directory(self, files: SafetensorsSource, record: dict[str, Any] | None) -> None:
        with Directory(self.out) as target:
            changed = self._encoded(files)
            for number, shard in enumerate(files.shards):
                self._write_shard(files, number, shard, changed, target.path / shard.path.name)
            copy_side_files(self.source.path, target.path, {s.path.name for s in files.shards})
            if record is not None:
                write_json(target.path / RECORD, record)
            target.commit()

    def _encoded(self, files: SafetensorsSource) -> dict[str, Item]:
        out: dict[str, Item] = {}
        for name, values in self.source.staged.items():
            for item in encode_item(files, name, values, self.keep_f32):
                out[item.name] = item
        return out

    def _write_shard(self, files: SafetensorsSource, number: int, shard: Shard,
                     changed: dict[str, Item], path: Path) -> None:
        items, same = [], True
        places = [(n, p) for n, p in ((n, files.place(n)) for n in files.names())
                  if p.shard == number]
        for name, place in sorted(places, key=lambda item: item[1].begin):
            item = changed.get(name)
            if item is None:
                item = Item(name, place.kind, place.shape, lambda n=name: files.raw(n))
            same &= (item.kind, item.shape) == (place.kind, place.shape)
            items.append(item)
        write_safetensors(path, items, shard.metadata, shard.header if same else None)

    # -- MKIM --------------------------------------------------------------------------------

    def _write_mkim(self, files: MkimSource) -> None:
        file, staged = files.file, self.source.staged
        kinds = {}
        for name in staged:
            kind = file.entry(name).dtype
            if kind in (DType.VQ1, DType.MXFP4SQ):  # have no encoder
                kinds[name] = DType.MXFP4
            if self.keep_f32 and kind not in (DType.F32, DType.I32):
                kinds[name] = DType.F32
        if kinds:
            self._rewrite_mkim(files, kinds)
        else:
            self._patch_mkim(files)

    def _patch_mkim(self, files: MkimSource) -> None:
        """A copy with changed blobs written over: layout and padding stay."""
        file = files.file
        temporary = self.out.with_name(f"{self.out.name}.tmp.{os.getpid()}")
        try:
            shutil.copyfile(self.source.path, temporary)
            fd = os.open(temporary, os.O_RDWR)
            try:
                for name, values in self.source.staged.items():
                    entry = file.entry(name)
                    blob = _encode_named(name, entry.dtype, values.reshape(entry.dims))
                    write_at(fd, memoryview(blob), entry.offset)
                if self.source.staged and DIGEST_KEY in file.config:
                    self._renew_digest(files, fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            MkimSource(temporary).close()
            temporary.replace(self.out)
            sync_directory(self.out.resolve().parent)
        finally:
            temporary.unlink(missing_ok=True)

    def _renew_digest(self, files: MkimSource, fd: int) -> None:
        old = str(files.file.config[DIGEST_KEY]).encode()
        new = content_digest(fd, files.file.entries.values()).encode()
        head = os.pread(fd, files.file.data_start, 0)
        if len(old) == len(new) and head.count(old) == 1:
            write_at(fd, memoryview(head.replace(old, new)), 0)
        else:
            raise GraftError(f"{self.out}: the digest in its header cannot be renewed")

    def _rewrite_mkim(self, files: MkimSource, kinds: dict[str, DType]) -> None:
        file = files.file
        specs = [Spec(e.name, kinds.get(e.name, e.dtype), e.dims) for e in file.entries.values()]
        with MkimWriter(self.out, file.config, specs) as writer:
            for e in file.entries.values():
                if e.name in self.source.staged:
                    writer.write(e.name, self.source.staged[e.name].reshape(e.dims))
                else:
                    writer.write_blob(e.name, file.read_blob(e.name))
            writer.commit()


def _encode_named(name: str, kind: DType, values: NDArray[Any]) -> Bytes:
    try:
        return np.ascontiguousarray(encode(kind, values))
    except ValueError as err:
        raise GraftError(f"{name}: {err}") from err


def encode_item(files: SafetensorsSource, name: str, values: NDArray[Any],
                keep_f32: bool = False) -> list[Item]:
    """A tensor in its type, with its scales if it has them."""
    place, scale = files.place(name), files.scale_of(name)

    def item(name: str, kind: str, shape: Iterable[int], data: Bytes) -> Item:
        return Item(name, kind, tuple(shape), lambda: data)

    try:
        if scale is None:
            kind = place.kind
            if keep_f32 and kind not in codecs.INTEGERS:
                kind = "F32"
            return [item(name, kind, values.shape, codecs.plain_from_f32(kind, values))]
        scale_place = files.place(scale)
        if place.kind == "F8_E4M3":
            codes, scales = codecs.fp8_encode(values, scale_place.kind in ("F8_E8M0", "U8"))
            if scale_place.kind in ("F8_E8M0", "U8"):
                raw = (np.frexp(scales)[1] + 126).astype(np.uint8).reshape(-1)
            else:
                raw = codecs.plain_from_f32(scale_place.kind, scales.astype(np.float32))
            return [item(name, place.kind, values.shape, codes.reshape(-1)),
                    item(scale, scale_place.kind, scales.shape, raw)]
        rows, cols = values.shape
        blob = mxfp4.encode(values)
    except ValueError as err:
        raise GraftError(f"{name}: {err}") from err
    half = rows * cols // 2
    return [item(name, place.kind, (rows, cols // 2), blob[:half]),
            item(scale, scale_place.kind, (rows, cols // mxfp4.GROUP), blob[half:])]


def copy_side_files(source: Path, target: Path, besides: set[str]) -> None:
    """Config and tokenizer; never weights of another format, never code."""
    for path in sorted(source.iterdir()):
        if path.is_file() and path.name not in besides and (
                PLAN_FILES.fullmatch(path.name)):
            shutil.copyfile(path, target / path.name)


def vocabulary_files(model: Path) -> list[Path]:
    suffixes = (".vocab.json", ".tokenizer.json", ".chat.json", ".tiktoken")
    found = [model.with_name(model.stem + suffix) for suffix in suffixes]
    return [path for path in found if path.is_file()]


def copy_vocabulary(model: Path, out: Path) -> None:
    """The files beside a `.bin` that its stem names, under the new stem."""
    for path in vocabulary_files(model):
        target = out.with_name(out.stem + path.name.removeprefix(model.stem))
        if path.name.endswith(".vocab.json"):
            vocab = json.loads(path.read_text(encoding="utf-8"))
            if vocab.get("base") == f"{model.stem}.tiktoken":
                vocab["base"] = f"{out.stem}.tiktoken"
            target.write_text(json.dumps(vocab) + "\n", encoding="utf-8")
        else:
            shutil.copyfile(path, target)


__all__ = ["INDEX", "Directory", "Item", "Writer", "copy_side_files", "copy_vocabulary",
           "encode_item", "plan", "write_safetensors"]
