"""Vocabularies in the form of `tokenizer.json`: training, writing and reading.

Layout of the ids, as in the published vocabulary: 0, 1, 2 the begin, end and padding marks; 3..258
the single bytes in the order of their characters in the byte alphabet; then one token for each
merge; last the marks of the chat template.  Merges are keyed by pairs of tokens, not by the bytes
they spell.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import regex
import tokenizers

from nano.bpe import VocabError, count_chunks, train_merges
from nano.dsv4.config import SPECIALS
from nano.files import sha256_of, write_atomic

SUFFIX = ".tokenizer.json"
BEGIN = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
CHAT = ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜")
# Three cuts, each of the pieces that the one before left; matches and gaps are pieces.
PATTERNS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
_CUTTERS = [regex.compile(p, regex.V0) for p in PATTERNS]


def byte_characters() -> list[str]:
    """Character of each byte: printable Latin-1 stands for itself, the rest from U+0100 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


BYTE_CHARACTERS = byte_characters()


def spell(token: bytes) -> str:
    """A token in the byte alphabet."""
    return "".join(BYTE_CHARACTERS[b] for b in token)


def pieces(text: str) -> Iterator[str]:
    """The text cut as before merging."""
    parts: Iterable[str] = [text]
    for cutter in _CUTTERS:
        parts = [piece for part in parts for piece in _isolate(cutter, part)]
    yield from parts


def _isolate(cutter: regex.Pattern[str], text: str) -> Iterator[str]:
    at = 0
    for match in cutter.finditer(text):
        if match.start() > at:
            yield text[at : match.start()]
        yield match.group()
        at = match.end()
    if at < len(text):
        yield text[at:]


# -- training ------------------------------------------------------------------------------------


def train(documents: Iterable[str], vocab_size: int, path: Path) -> Tokenizer:
    """Learns merges until the vocabulary has `vocab_size` ids, all marks included; writes it."""
    room = vocab_size - len(BEGIN) - 256 - len(CHAT)
    if room < 0:
        raise VocabError(f"a vocabulary needs at least {vocab_size - room} ids, not {vocab_size}")
    merges = train_merges(count_chunks(documents, pieces), room)
    write_atomic(path, render(merges).encode("utf-8"))
    return Tokenizer(path)


def render(merges: list[tuple[bytes, bytes]]) -> str:
    """The text of a `tokenizer.json`."""
    vocab = {text: i for i, text in enumerate(BEGIN)}
    for character in sorted(BYTE_CHARACTERS):
        vocab[character] = len(vocab)
    for a, b in merges:
        vocab.setdefault(spell(a + b), len(vocab))
    marks = {**{text: vocab[text] for text in BEGIN},
             **{text: len(vocab) + i for i, text in enumerate(CHAT)}}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    splits = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in PATTERNS
    ]
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                "use_regex": False}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, **plain, "special": True}
                         for t, i in marks.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, by_bytes]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": vocab,
            "merges": [f"{spell(a)} {spell(b)}" for a, b in merges],
        },
    }, ensure_ascii=False) + "\n"


# -- reading -------------------------------------------------------------------------------------


class Tokenizer:
    """Text to model ids and back.  `encode` never produces a special id."""

    def __init__(self, path: Path) -> None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            self.vocab_size, self._bytes = _table(data)
            self._plain = tokenizers.Tokenizer.from_str(json.dumps({**data, "added_tokens": []}))
        except FileNotFoundError:
            raise
        except Exception as err:  # the library raises plain Exception for what it cannot read
            raise VocabError(f"{path}: not a usable tokenizer.json: {err!r}") from err
        self.sha256 = sha256_of(path)
        self.specials = dict(SPECIALS)

    def encode(self, text: str) -> list[int]:
        """Marks in the text are ordinary characters; bos and eos are not added."""
        return self._plain.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """Marks have no text; invalid UTF-8 becomes U+FFFD."""
        return b"".join(self._bytes.get(i, b"") for i in ids).decode("utf-8", errors="replace")

    @property
    def bos(self) -> int:
        return self.specials["bos"]

    @property
    def eos(self) -> int:
        return self.specials["eos"]


def _table(data: dict[str, Any]) -> tuple[int, dict[int, bytes]]:
    """Number of ids and the bytes of each that is not a mark."""
    marks = {int(t["id"]): str(t["content"]) for t in data["added_tokens"]}
    for name, expected in zip(BEGIN, range(len(BEGIN)), strict=True):
        if marks.get(expected) != name:
            raise ValueError(f"id {expected} must be the added token {name}")
    vocab = {str(text): int(i) for text, i in data["model"]["vocab"].items()}
    ids = set(vocab.values()) | set(marks)
    if ids != set(range(len(ids))):
        raise ValueError("the ids have gaps")
    values = {character: b for b, character in enumerate(BYTE_CHARACTERS)}
    return len(ids), {
        i: bytes(values[c] for c in text) for text, i in vocab.items() if i not in marks
    }
