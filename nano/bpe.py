"""Byte-level BPE: training a small vocabulary, and the tokenizers built on rank files.

A vocabulary is a rank file (lines `base64(bytes) rank`) and a JSON beside it.  Text is cut into
chunks by the Kimi pattern, then each chunk is merged by lowest rank.  Two kinds of JSON exist:

* `microkimi-vocab-own-1`: the rank file is the model's own (`base`, `base_sha256`), token id =
  rank, the eight specials follow directly.
* `microkimi-vocab-remap-1`: `nano_to_kimi` lists ids of the full Kimi rank file, ascending; token
  id = position in the list.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import heapq
import itertools
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import regex
import tiktoken

from nano.config import SPECIAL_NAMES, default_specials
from nano.files import write_atomic

OWN_FORMAT = "microkimi-vocab-own-1"
REMAP_FORMAT = "microkimi-vocab-remap-1"
# Models trained here continue plain text; none is taught a chat template.
NO_CHAT = "none"

# The Kimi pre-tokenizer.  U: capitals and caseless letters, D: small and caseless letters, both
# without Han.  The same text serves tiktoken and the `regex` module (set operations, version 1).
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
_CUTTER = regex.compile(PATTERN, regex.V1)


class VocabError(ValueError):
    """A rank file or vocabulary JSON that cannot be used."""


def kimi_chunks(text: str) -> Iterator[str]:
    return (match.group() for match in _CUTTER.finditer(text))


def count_chunks(
    texts: Iterable[str], cut: Callable[[str], Iterable[str]] = kimi_chunks
) -> Counter[bytes]:
    """How often each pre-tokenizer chunk occurs, as UTF-8 bytes."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(cut(text))
    return Counter({word.encode("utf-8"): count for word, count in words.items()})


def train_bpe(chunks: Counter[bytes], size: int) -> list[bytes]:
    """Token bytes by rank: the 256 bytes, then merges in the order they were made.

    Stops at `size` tokens or when no pair occurs twice.
    """
    if size < 256:
        raise VocabError(f"a byte-level vocabulary needs at least 256 tokens, not {size}")
    merged = (a + b for a, b in train_merges(chunks, size - 256))
    # Two pairs can spell one token; it keeps its first rank.
    return list(dict.fromkeys([*(bytes([b]) for b in range(256)), *merged]))


def train_merges(chunks: Counter[bytes], count: int) -> list[tuple[bytes, bytes]]:
    """Pairs in the order they were merged, until they spell `count` different tokens.

    Each round merges the most frequent adjacent pair; ties go to the lexicographically smallest
    pair of byte strings.  Ends early when no pair occurs twice.
    """
    merges: list[tuple[bytes, bytes]] = []
    known: set[bytes] = set()
    words = [[bytes([b]) for b in chunk] for chunk in sorted(chunks)]
    freqs = [chunks[chunk] for chunk in sorted(chunks)]
    counts: Counter[tuple[bytes, bytes]] = Counter()
    where: defaultdict[tuple[bytes, bytes], set[int]] = defaultdict(set)
    for index, word in enumerate(words):
        for pair in itertools.pairwise(word):
            counts[pair] += freqs[index]
            where[pair].add(index)
    heap = [(-count, pair) for pair, count in counts.items()]
    heapq.heapify(heap)
    while len(known) < count and heap:
        negative, pair = heapq.heappop(heap)
        if counts[pair] != -negative:
            continue  # stale entry; the current count was pushed when it changed
        if -negative < 2:
            break
        merged = pair[0] + pair[1]
        known.add(merged)
        merges.append(pair)
        changed = _merge_pair(pair, merged, words, freqs, counts, where)
        for other in changed:
            if counts[other] > 0:
                heapq.heappush(heap, (-counts[other], other))
    return merges


def _merge_pair(
    pair: tuple[bytes, bytes],
    merged: bytes,
    words: list[list[bytes]],
    freqs: list[int],
    counts: Counter[tuple[bytes, bytes]],
    where: defaultdict[tuple[bytes, bytes], set[int]],
) -> set[tuple[bytes, bytes]]:
    """Replaces `pair` in every word; returns the pairs whose counts changed."""
    changed: set[tuple[bytes, bytes]] = set()
    for index in sorted(where.pop(pair, ())):
        old = words[index]
        new: list[bytes] = []
        i = 0
        while i < len(old):
            if i + 1 < len(old) and (old[i], old[i + 1]) == pair:
                new.append(merged)
                i += 2
            else:
                new.append(old[i])
                i += 1
        for gone in itertools.pairwise(old):
            counts[gone] -= freqs[index]
            changed.add(gone)
        for came in itertools.pairwise(new):
            counts[came] += freqs[index]
            where[came].add(index)
            changed.add(came)
        words[index] = new
    counts[pair] = 0
    changed.discard(pair)
    return changed


def check_ranks(tokens: list[bytes]) -> None:
    """Every merged token must be two lower-ranked ones: else merging cannot reach it."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    if len(ranks) != len(tokens):
        raise VocabError("rank table: two ranks share the same bytes")
    for rank, token in enumerate(tokens):
        if len(token) == 1:
            continue
        limit = len(tokens)
        cuts = range(1, len(token))
        if not any(
            ranks.get(token[:c], limit) < rank and ranks.get(token[c:], limit) < rank for c in cuts
        ):
            raise VocabError(f"rank {rank}: no two lower-ranked tokens spell {token!r}")


def write_ranks(path: Path, tokens: list[bytes]) -> str:
    """Writes a rank file; returns its SHA-256."""
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    data = "".join(lines).encode("ascii")
    write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()


def read_ranks(path: Path) -> list[bytes]:
    """Reads and checks a rank file; the list index is the rank."""
    tokens: dict[int, bytes] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            text, rank = line.split()
            token = base64.b64decode(text, validate=True)
            index = int(rank)
        except ValueError as err:
            raise VocabError(f"{path}:{number}: not a `base64 rank` line: {err}") from err
        if not token or len(token) > 4096 or index < 0 or index in tokens:
            raise VocabError(f"{path}:{number}: empty or repeated entry")
        tokens[index] = token
    if sorted(tokens) != list(range(len(tokens))):
        raise VocabError(f"{path}: ranks must be 0..{len(tokens) - 1}, each once")
    ordered = [tokens[i] for i in range(len(tokens))]
    if len(set(ordered)) != len(ordered):
        raise VocabError(f"{path}: two ranks share the same bytes")
    missing = [b for b in range(256) if bytes([b]) not in set(ordered)]
    if missing:
        raise VocabError(f"{path}: single byte {missing[0]} has no rank")
    return ordered


@dataclass
class Tokenizer:
    """Text to model ids and back.  `encode` never produces a special id."""

    tokens: list[bytes]  # bytes of each non-special model id
    specials: dict[str, int]
    vocab_size: int
    sha256: str  # of the rank file
    kept: dict[int, int] | None = None  # full id -> model id, for remapped vocabularies
    full: list[bytes] | None = None  # the full rank table, for remapped vocabularies

    def __post_init__(self) -> None:
        table = self.tokens if self.full is None else self.full
        self._encoding = _tiktoken("base", {token: rank for rank, token in enumerate(table)})
        self._split: dict[int, list[int]] = {}
        if self.full is not None:
            self._small = {token: index for index, token in enumerate(self.tokens)}

    def encode(self, text: str) -> list[int]:
        ids = self._encoding.encode_ordinary(text)
        if self.kept is None:
            return ids
        out: list[int] = []
        for full_id in ids:
            model_id = self.kept.get(full_id)
            if model_id is None:
                out.extend(self._respell(full_id))
            else:
                out.append(model_id)
        return out

    def _respell(self, full_id: int) -> list[int]:
        """A dropped token spelled by kept ones: BPE on its bytes with only the kept ranks."""
        if full_id not in self._split:
            assert self.full is not None
            parts = merge_bytes(self.full[full_id], self._small)
            self._split[full_id] = [self._small[part] for part in parts]
        return self._split[full_id]

    def decode(self, ids: Iterable[int]) -> str:
        """Specials have no text; invalid UTF-8 becomes U+FFFD."""
        data = b"".join(self.tokens[i] for i in ids if 0 <= i < len(self.tokens))
        return data.decode("utf-8", errors="replace")

    @property
    def bos(self) -> int:
        return self.specials["bos"]

    @property
    def eos(self) -> int:
        return self.specials["eos"]


def merge_bytes(data: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """Lowest-rank-first merging, leftmost on ties; a whole-string token is taken at once."""
    if data in ranks:
        return [data]
    parts = [data[i : i + 1] for i in range(len(data))]
    while len(parts) > 1:
        best = min(
            (ranks.get(a + b, sys.maxsize), i)
            for i, (a, b) in enumerate(itertools.pairwise(parts))
        )
        if best[0] == sys.maxsize:
            break
        i = best[1]
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


def _tiktoken(name: str, ranks: dict[bytes, int]) -> tiktoken.Encoding:
    return tiktoken.Encoding(name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})


# -- vocabulary files ----------------------------------------------------------------------------


def save_own(directory: Path, name: str, tokens: list[bytes]) -> Path:
    """Writes `<name>.tiktoken` and `<name>.vocab.json`; returns the path of the JSON."""
    check_ranks(tokens)
    digest = write_ranks(directory / f"{name}.tiktoken", tokens)
    vocab = {
        "format": OWN_FORMAT,
        "chat_dialect": NO_CHAT,
        "base": f"{name}.tiktoken",
        "base_sha256": digest,
        "nano_to_kimi": list(range(len(tokens))),
        "specials": default_specials(len(tokens)),
        "vocab_size": len(tokens) + len(SPECIAL_NAMES),
    }
    path = directory / f"{name}.vocab.json"
    write_atomic(path, (json.dumps(vocab) + "\n").encode())
    return path


def save_remap(directory: Path, name: str, kept: list[int], source_vocab: int) -> Path:
    """Writes `<name>.vocab.json` for ids `kept` (ascending) of the full rank file."""
    vocab = {
        "format": REMAP_FORMAT,
        "chat_dialect": NO_CHAT,
        "source_vocab": source_vocab,
        "nano_to_kimi": kept,
        "specials": default_specials(len(kept)),
        "vocab_size": len(kept) + len(SPECIAL_NAMES),
        "kimi_special_ids": {"open": 163587, "close": 163588, "sep": 163589, "end_of_msg": 163586},
    }
    path = directory / f"{name}.vocab.json"
    write_atomic(path, (json.dumps(vocab) + "\n").encode())
    return path


def load_tokenizer(vocab_path: Path, rank_file: Path | None = None) -> Tokenizer:
    """Tokenizer of a vocabulary JSON.  A remap needs the full `rank_file`."""
    try:
        vocab = json.loads(vocab_path.read_text(encoding="utf-8"))
        table = [int(i) for i in vocab["nano_to_kimi"]]
        specials = {str(k): int(v) for k, v in vocab["specials"].items()}
        size = int(vocab.get("vocab_size", len(table) + len(SPECIAL_NAMES)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise VocabError(f"{vocab_path}: not a vocabulary file: {err!r}") from err
    _check_vocab(vocab_path, table, specials, size)
    if "base" in vocab:
        return _load_own(vocab_path, vocab, table, specials, size)
    if rank_file is None:
        raise VocabError(f"{vocab_path}: this vocabulary is a remap; give the full rank file")
    full = read_ranks(rank_file)
    if max(table) >= len(full):
        raise VocabError(f"{vocab_path}: id {max(table)} is not in {rank_file}")
    digest = hashlib.sha256(rank_file.read_bytes()).hexdigest()
    kept = {full_id: index for index, full_id in enumerate(table)}
    return Tokenizer([full[i] for i in table], specials, size, digest, kept=kept, full=full)


def _load_own(
    path: Path, vocab: dict, table: list[int], specials: dict[str, int], size: int
) -> Tokenizer:
    name = str(vocab["base"])
    if name != Path(name).name:
        raise VocabError(f"{path}: base must be a file name in the same folder, is {name!r}")
    base = path.parent / name
    if not base.is_file():
        raise VocabError(f"{path}: rank file {base} is missing")
    digest = hashlib.sha256(base.read_bytes()).hexdigest()
    if digest != vocab.get("base_sha256"):
        raise VocabError(f"{base}: content does not match base_sha256 of {path}")
    tokens = read_ranks(base)
    if table != list(range(len(tokens))):
        raise VocabError(f"{path}: nano_to_kimi must be 0..{len(tokens) - 1} for an own vocabulary")
    return Tokenizer(tokens, specials, size, digest)


def _check_vocab(path: Path, table: list[int], specials: dict[str, int], size: int) -> None:
    if not table or len(set(table)) != len(table) or min(table) < 0:
        raise VocabError(f"{path}: nano_to_kimi must be distinct non-negative ids")
    required = set(SPECIAL_NAMES) - {"pad"}
    if not required <= set(specials):
        raise VocabError(f"{path}: specials lack {sorted(required - set(specials))}")
    ids = list(specials.values())
    if len(set(ids)) != len(ids) or any(not len(table) <= i < size for i in ids):
        raise VocabError(f"{path}: special ids must be distinct and in {len(table)}..{size - 1}")


def main(argv: list[str] | None = None) -> int:
    from nano.documents import read_documents

    parser = argparse.ArgumentParser(prog="nano.bpe", description="Train a byte-level BPE.")
    parser.add_argument("--data", nargs="+", required=True, help="text files, see nano.prepare")
    parser.add_argument("--size", type=int, required=True, help="tokens, without the 8 specials")
    parser.add_argument("--out", type=Path, required=True, help="directory")
    parser.add_argument("--name", default="own", help="stem of the two files")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    chunks = count_chunks(doc for path in args.data for doc in read_documents(path))
    tokens = train_bpe(chunks, args.size)
    path = save_own(args.out, args.name, tokens)
    print(f"{len(tokens)} tokens: {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
