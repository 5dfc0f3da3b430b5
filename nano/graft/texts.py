"""Documents as tokens of each model, with the byte at which every token ends.

Two models with different vocabularies are compared at byte offsets where both have the end of a
token.  Documents are cut at spaces into pieces that fit `seq` tokens of every model; a piece is
read from an empty state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers
import torch
from torch import Tensor

from nano.bpe import Tokenizer as RankTokenizer
from nano.bpe import VocabError
from nano.documents import ReadStats, read_documents
from nano.dsv4.tokenizer import BYTE_CHARACTERS
from nano.dsv4.tokenizer import Tokenizer as Dsv4Tokenizer
from nano.graft.checkpoint import Checkpoint
from nano.graft.config import text_part
from nano.graft.errors import GraftError
from nano.loading import tokenizer_beside

BYTES = "bytes"  # in place of a tokenizer file: one token per byte


class Codec(Protocol):
    """Text to ids, and the bytes of each id."""

    name: str
    bos: int  # what every text begins behind

    def encode(self, text: str) -> list[int]: ...
    def spell(self, token: int) -> bytes | None:
        """None: the id stands for text that it does not spell, as unk does."""
        ...
    def size(self) -> int: ...


class ByteCodec:
    """Ids 0..255 are the bytes; a text begins behind a line feed."""

    name, bos = BYTES, 10

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8"))

    def spell(self, token: int) -> bytes | None:
        return bytes([token]) if 0 <= token < 256 else None

    def size(self) -> int:
        return 256


class OwnCodec:
    """The vocabularies of `.bin` models."""

    def __init__(self, inner: RankTokenizer | Dsv4Tokenizer) -> None:
        self.inner, self.bos, self.name = inner, inner.bos, inner.sha256

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text)

    def spell(self, token: int) -> bytes | None:
        if isinstance(self.inner, Dsv4Tokenizer):
            return self.inner._bytes.get(token)
        return self.inner.tokens[token] if 0 <= token < len(self.inner.tokens) else None

    def size(self) -> int:
        return self.inner.vocab_size


class LibraryCodec:
    """A `tokenizer.json`: byte-level, or pieces with a mark for spaces and byte fallback."""

    def __init__(self, path: Path, fallback: int | None) -> None:
        """`fallback`: the begin mark if the file itself puts none before a text."""
        try:
            self.inner = tokenizers.Tokenizer.from_file(str(path))
            text = path.read_text(encoding="utf-8")
        except Exception as err:  # the library raises plain Exception
            raise GraftError(f"{path}: not a usable tokenizer.json: {err}") from err
        self.name = hashlib.sha256(text.encode()).hexdigest()
        self.byte_level = '"ByteLevel"' in text
        self._values = {c: b for b, c in enumerate(BYTE_CHARACTERS)}
        begin = self.inner.encode("", add_special_tokens=True).ids
        if not begin and fallback is None:
            raise GraftError(f"{path}: neither it nor config.json has a mark that begins a text")
        self.bos = begin[0] if begin else int(fallback or 0)
        self._special = {i for i, t in self.inner.get_added_tokens_decoder().items() if t.special}

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text, add_special_tokens=False).ids

    def spell(self, token: int) -> bytes | None:
        piece = self.inner.id_to_token(token)
        if piece is None or token in self._special:
            return None
        if self.byte_level:
            if all(c in self._values for c in piece):
                return bytes(self._values[c] for c in piece)
            return piece.encode("utf-8")
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace("▁", " ").encode("utf-8")

    def size(self) -> int:
        return self.inner.get_vocab_size()


def open_codec(source: Checkpoint, given: str | None = None) -> Codec:
    """`given`: a vocabulary file, or `bytes`; else what lies beside the model."""
    if given == BYTES:
        if source.cfg.vocab < 256:
            raise GraftError(f"{source.path}: {source.cfg.vocab} ids are too few for bytes")
        return ByteCodec()
    try:
        if source.arch.startswith("mkim"):
            return OwnCodec(tokenizer_beside(source.path, Path(given) if given else None))
        path = Path(given) if given else source.path / "tokenizer.json"
        if given is None and not path.is_file() and (source.path / "vocab.json").is_file() \
                and source.arch == "kimi_k3":
            return OwnCodec(tokenizer_beside(source.path, source.path / "vocab.json"))
    except FileNotFoundError as err:
        raise FileNotFoundError(f"{err}, --tokenizer FILE or --tokenizer bytes") from err
    except VocabError as err:
        raise GraftError(str(err)) from err
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no tokenizer here (give --tokenizer FILE, or bytes)")
    raw = text_part(source.raw_cfg)
    marks = [raw.get(key) for key in ("bos_token_id", "eos_token_id")]
    codec: Codec = LibraryCodec(path, next((m for m in marks if type(m) is int), None))
    if codec.size() > source.cfg.vocab:
        raise GraftError(f"{path}: {codec.size()} ids, but the model has {source.cfg.vocab}")
    return codec


@dataclass
class Tokens:
    """One text in one model's tokens, a begin mark first; `ends[i]` is the byte behind token i,
    0 for the mark, -1 where it is unknown."""

    ids: list[int]
    ends: list[int]
    spelled: bool  # every token spells its text


def tokenize(codec: Codec, text: str) -> Tokens:
    data, ids = text.encode("utf-8"), codec.encode(text)
    ends, at, spelled = [0], 0, True
    for token in ids:
        piece = codec.spell(token)
        if piece is not None and at == 0 and piece[:1] == b" " and data[:1] != b" ":
            piece = piece[1:]  # the space that some tokenizers put before a text
        if not spelled or piece is None or data[at : at + len(piece)] != piece:
            spelled = False
            ends.append(-1)
            continue
        at += len(piece)
        ends.append(at)
    return Tokens([codec.bos, *ids], ends, spelled and at == len(data))


@dataclass
class Piece:
    """A stretch of a document, tokenized by every model."""

    doc: int
    bytes: int
    tokens: list[Tokens]


@dataclass
class Corpus:
    """Pieces of documents within a budget of tokens; documents are the units of resampling."""

    codecs: list[Codec]
    pieces: list[Piece]
    docs: int
    digest: str
    held_out: np.ndarray  # [docs] bool
    texts: list[str] = field(repr=False, default_factory=list)
    skipped: int = 0

    def info(self) -> dict[str, Any]:
        out = {"digest": self.digest, "docs": self.docs, "skipped": self.skipped,
               "bytes": sum(p.bytes for p in self.pieces),
               "held_out_docs": int(self.held_out.sum())}
        for name, i in zip(("tokens_a", "tokens_b"), range(len(self.codecs)), strict=False):
            out[name] = sum(len(p.tokens[i].ids) for p in self.pieces)
        return out


def is_held_out(text: str, share: float, seed: int) -> bool:
    """By a hash of the document, so that it does not depend on the others."""
    h = hashlib.sha1(f"{seed}:{text}".encode()).digest()
    return int.from_bytes(h[:8], "big") % 1_000_000 < share * 1_000_000


def read_corpus(path: str | Path, codecs: Sequence[Codec], tokens: int, seq: int,
                held_out: float = 0.2, seed: int = 0) -> Corpus:
    """Documents in order until the first model has `tokens` tokens."""
    stats, pieces, texts, held = ReadStats(), [], [], []
    total, digest = 0, hashlib.sha256()
    for text in read_documents(path, stats=stats):
        found = list(_pieces(text, codecs, seq, len(texts)))
        pieces += found
        texts.append(text)
        held.append(is_held_out(text, held_out, seed))
        digest.update(text.encode() + b"\0")
        total += sum(len(p.tokens[0].ids) for p in found)
        if total >= tokens:
            break
    if not pieces:
        raise GraftError(f"{path}: no text in it")
    return Corpus(list(codecs), pieces, len(texts), digest.hexdigest(), np.array(held), texts,
                  stats.bad_utf8)


def _pieces(text: str, codecs: Sequence[Codec], seq: int, doc: int) -> Iterable[Piece]:
    size = max(seq * 4, 16)
    start = 0
    while start < len(text):
        take = size
        while True:
            part = text[start : start + take]
            if start + take < len(text) and " " in part[1:]:
                part = part[: 1 + part[1:].rindex(" ")]
            tokens = [tokenize(codec, part) for codec in codecs]
            if all(len(t.ids) <= seq for t in tokens) or len(part) <= 1:
                break
            take = max(1, min(take, len(part)) // 2)
        yield Piece(doc, len(part.encode("utf-8")), tokens)
        start += len(part)


def shared_positions(a: Tokens, b: Tokens) -> tuple[list[int], list[int]]:
    """Indices of tokens of both that end at the same byte; begin marks do not count."""
    where = {end: i for i, end in enumerate(b.ends) if end > 0}
    pairs = [(i, where[end]) for i, end in enumerate(a.ends) if end > 0 and end in where]
    return [i for i, _ in pairs], [j for _, j in pairs]


def batches(lengths: Sequence[int], budget: int) -> Iterable[list[int]]:
    """Indices in order, so many at a time that padded rows hold at most `budget` tokens."""
    group: list[int] = []
    longest = 0
    for i, n in enumerate(lengths):
        if group and max(longest, n) * (len(group) + 1) > budget:
            yield group
            group, longest = [], 0
        group.append(i)
        longest = max(longest, n)
    if group:
        yield group


def padded(rows: Sequence[Sequence[int]]) -> Tensor:
    """[B, T] ids; zeros behind the end, where no causal model looks."""
    longest = max(len(r) for r in rows)
    return torch.tensor([list(r) + [0] * (longest - len(r)) for r in rows])
