"""Batches from token streams, in an order that a checkpoint can continue exactly.

Shapes: B rows per batch, T tokens per row.  A batch carries tokens [B, T], targets [B, T] (IGNORE
where there is none) and document numbers [B, T], so that no state or attention crosses documents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nano.model import IGNORE
from nano.stream import TokenStream


@dataclass
class Batch:
    tokens: Tensor  # [B, T] int64
    targets: Tensor  # [B, T] int64
    docs: Tensor | None  # [B, T] int32

    @property
    def target_count(self) -> int:
        return int((self.targets != IGNORE).sum())


@dataclass
class Row:
    """Pieces of documents that fill one row: (document, first token, tokens)."""

    pieces: list[tuple[int, int, int]]


def pack_documents(lengths: np.ndarray, seq: int, order: np.ndarray) -> list[Row]:
    """Fills rows of `seq` tokens with whole documents (first fit over a bounded open list).

    A document longer than a row is cut into row-sized parts; a part that starts inside a document
    overlaps its predecessor by nothing, its first target is its second token.
    """
    rows: list[Row] = []
    open_rows: list[tuple[int, int]] = []  # (free tokens, row number)
    for doc in order:
        length, begin = int(lengths[doc]), 0
        while length - begin > seq:
            rows.append(Row([(int(doc), begin, seq)]))
            begin += seq
        rest = length - begin
        if rest < 2:  # a lone token predicts nothing
            continue
        for slot, (free, index) in enumerate(open_rows):
            if rest <= free:
                rows[index].pieces.append((int(doc), begin, rest))
                open_rows[slot] = (free - rest, index)
                if free - rest < 16:
                    open_rows.pop(slot)
                break
        else:
            rows.append(Row([(int(doc), begin, rest)]))
            open_rows.append((seq - rest, len(rows) - 1))
            if len(open_rows) > 64:
                open_rows.pop(0)
    return rows


def window_rows(stream: TokenStream, seq: int, offset: int) -> list[Row]:
    """Consecutive windows of `seq` tokens from `offset`, cut at document borders into pieces."""
    count = int(stream.starts[-1])
    rows = []
    for begin in range(offset, count - seq + 1, seq):
        doc = int(np.searchsorted(stream.starts, begin, side="right")) - 1
        pieces, at = [], begin
        while at < begin + seq:
            end = min(begin + seq, int(stream.starts[doc + 1]))
            pieces.append((doc, at - int(stream.starts[doc]), end - at))
            at, doc = end, doc + 1
        rows.append(Row(pieces))
    return rows


def make_batch(stream: TokenStream, rows: list[Row], seq: int, pad: int) -> Batch:
    """Materialises rows; unused places hold `pad`, an own document and no target."""
    tokens = np.full((len(rows), seq), pad, dtype=np.int64)
    targets = np.full((len(rows), seq), IGNORE, dtype=np.int64)
    docs = np.zeros((len(rows), seq), dtype=np.int32)
    for r, row in enumerate(rows):
        at = 0
        for number, (doc, begin, size) in enumerate(row.pieces):
            ids = stream.document(doc)
            tokens[r, at : at + size] = ids[begin : begin + size]
            following = ids[begin + 1 : begin + size + 1]  # one shorter at the document's end
            targets[r, at : at + len(following)] = following
            docs[r, at : at + size] = number
            at += size
        docs[r, at:] = len(row.pieces)
    return Batch(torch.from_numpy(tokens), torch.from_numpy(targets), torch.from_numpy(docs))


class EpochSampler:
    """Endless shuffled batches; epoch e reads shard e modulo the number of shards.

    The order of epoch e is a function of (seed, e) alone.  With several ranks, position i of the
    global order belongs to rank i mod world, so the union of a step's batches depends on the
    global batch size only.
    """

    def __init__(
        self, shards: list[TokenStream], batch: int, seq: int, seed: int, kind: str = "docs",
        rank: int = 0, world: int = 1, pad: int = 0,
    ) -> None:
        if kind not in ("docs", "windows"):
            raise ValueError(f"sampler {kind!r}: must be docs or windows")
        self.shards, self.batch, self.seq, self.seed, self.kind = shards, batch, seq, seed, kind
        self.rank, self.world, self.pad = rank, world, pad
        self.epoch, self.index = 0, 0
        self._rows: list[Row] = []
        self._built = -1

    def state(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "index": self.index}

    def load(self, state: dict[str, Any]) -> None:
        self.epoch, self.index = int(state["epoch"]), int(state["index"])

    def next(self) -> Batch:
        """This rank's rows of the next global batch; a short rest of an epoch is left out."""
        step = self.batch * self.world
        self._build()
        if self.index + step > len(self._rows):
            self.epoch, self.index = self.epoch + 1, 0
            self._build()
            if step > len(self._rows):
                raise ValueError(
                    f"an epoch has {len(self._rows)} rows, fewer than one batch of {step}: "
                    "use a smaller batch, shorter rows or more data"
                )
        rows = self._rows[self.index : self.index + step][self.rank :: self.world]
        self.index += step
        return make_batch(self._stream(), rows, self.seq, self.pad)

    def _stream(self) -> TokenStream:
        return self.shards[self.epoch % len(self.shards)]

    def _build(self) -> None:
        if self._built == self.epoch:
            return
        key = [self.seed & 0xFFFFFFFFFFFFFFFF, self.epoch]
        rng = np.random.Generator(np.random.Philox(key=np.array(key, dtype=np.uint64)))
        stream = self._stream()
        if self.kind == "docs":
            lengths = np.diff(stream.starts.astype(np.int64))
            rows = pack_documents(lengths, self.seq, rng.permutation(stream.docs))
        else:
            rows = window_rows(stream, self.seq, int(rng.integers(0, self.seq)))
        self._rows = [rows[i] for i in rng.permutation(len(rows))]
        self._built = self.epoch


def sequential_batches(stream: TokenStream, batch: int, seq: int, pad: int) -> list[Batch]:
    """Every document once, packed; for held-out loss."""
    lengths = np.diff(stream.starts.astype(np.int64))
    rows = pack_documents(lengths, seq, np.arange(stream.docs))
    return [
        make_batch(stream, rows[i : i + batch], seq, pad) for i in range(0, len(rows), batch)
    ]
