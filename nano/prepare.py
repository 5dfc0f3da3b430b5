"""Text to token streams: `python -m nano.prepare`.

Three vocabularies: an own BPE trained here (`--train-bpe N`) or given (`--bpe`), the most
frequent N ids of a full rank file (`--tokenizer FILE --top N`), or a full rank file as it is.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nano import bpe
from nano.config import SPECIAL_NAMES, default_specials
from nano.documents import DataError, ReadStats, read_documents
from nano.dsv4 import tokenizer as dsv4
from nano.files import provenance, sha256_of, write_atomic, write_json
from nano.stream import write_stream

MAX_BAD_SHARE = 0.01
# Ids of the published full vocabulary, which has room for specials behind its rank table.
FULL_VOCAB = 163840
FULL_SPECIALS = {
    "bos": 163584, "eos": 163586, "open": 163587, "close": 163588, "sep": 163589,
    "end_of_msg": 163586, "unk": 163838, "pad": 163839,
}


@dataclass
class Splits:
    """Documents by split, in input order."""

    train: list[str] = field(default_factory=list)
    valid: list[str] = field(default_factory=list)
    duplicates: int = 0
    stats: ReadStats = field(default_factory=ReadStats)


def digest_of(document: str) -> bytes:
    return hashlib.sha1(document.encode("utf-8"), usedforsecurity=False).digest()


def is_valid_split(document: str, share: float) -> bool:
    """Split by content, so that it does not move when documents are added."""
    number = int.from_bytes(digest_of(document)[:8], "big")
    return number % 1_000_000 < share * 1_000_000


def collect(
    data: list[str], valid_files: list[str], valid_share: float, max_docs: int | None,
    fields: tuple[str, ...], lenient: bool = False, repair: bool = False,
) -> Splits:
    """Reads, drops exact duplicates and splits."""
    out = Splits()
    seen: set[bytes] = set()
    for path in valid_files:
        for document in read_documents(path, fields, out.stats, repair):
            seen.add(digest_of(document))
            out.valid.append(document)
    for path in data:
        for document in read_documents(path, fields, out.stats, repair):
            key = digest_of(document)
            if key in seen:
                out.duplicates += 1
                continue
            seen.add(key)
            to_valid = not valid_files and is_valid_split(document, valid_share)
            (out.valid if to_valid else out.train).append(document)
            if max_docs is not None and len(out.train) >= max_docs:
                break
    total = out.stats.documents + out.stats.bad_utf8
    if total and out.stats.bad_utf8 > MAX_BAD_SHARE * total and not lenient:
        raise DataError(
            f"{out.stats.bad_utf8} of {total} documents are not valid UTF-8 (--lenient skips them)"
        )
    if not out.train:
        raise DataError("no documents to train on")
    return out


@dataclass
class Vocabulary:
    encode: Callable[[str], list[int]]
    specials: dict[str, int]
    vocab_size: int
    sha256: str


def own_vocabulary(documents: list[str], size: int, out: Path, name: str) -> Vocabulary:
    tokens = bpe.train_bpe(bpe.count_chunks(documents), size)
    return _from_json(bpe.save_own(out, name, tokens), None)


def dsv4_vocabulary(documents: list[str], size: int, out: Path, name: str) -> Vocabulary:
    """`<name>.tokenizer.json` of `size` ids in all, for DeepSeek-V4 models."""
    return _from_tokenizer_json(dsv4.train(documents, size, out / (name + dsv4.SUFFIX)))


def _from_tokenizer_json(t: dsv4.Tokenizer) -> Vocabulary:
    return Vocabulary(t.encode, t.specials, t.vocab_size, t.sha256)


def remap_vocabulary(documents: list[str], ranks: Path, top: int, out: Path) -> Vocabulary:
    """The 256 bytes and the most frequent other ids; dropped ids are respelled by kept ones."""
    table = bpe.read_ranks(ranks)
    if not 256 <= top <= len(table):
        raise bpe.VocabError(f"--top must be in 256..{len(table)}, is {top}")
    encoder = bpe.Tokenizer(table, default_specials(len(table)), len(table) + 8, "")
    counts: Counter[int] = Counter()
    for ids in _encode_all(encoder.encode, documents):
        counts.update(ids)
    byte_ids = [i for i, token in enumerate(table) if len(token) == 1]
    others = [i for i, _ in sorted(counts.items(), key=lambda c: (-c[1], c[0]))]
    unseen = (i for i in range(len(table)) if counts[i] == 0)
    kept = set(byte_ids)
    for token in [*others, *unseen]:
        if len(kept) == top:
            break
        kept.add(token)
    path = bpe.save_remap(out, "remap", sorted(kept), len(table))
    return _from_json(path, ranks)


def full_vocabulary(ranks: Path) -> Vocabulary:
    """Ids of the rank file itself; the published one brings its own special ids."""
    table = bpe.read_ranks(ranks)
    published = len(table) == FULL_SPECIALS["bos"]
    specials = FULL_SPECIALS if published else default_specials(len(table))
    size = FULL_VOCAB if published else len(table) + len(SPECIAL_NAMES)
    tokenizer = bpe.Tokenizer(table, specials, size, sha256_of(ranks))
    return Vocabulary(tokenizer.encode, specials, size, tokenizer.sha256)


def _from_json(path: Path, ranks: Path | None) -> Vocabulary:
    t = bpe.load_tokenizer(path, ranks)
    return Vocabulary(t.encode, t.specials, t.vocab_size, t.sha256)


def _encode_all(encode: Callable[[str], list[int]], documents: list[str]) -> list[list[int]]:
    with ThreadPoolExecutor(max_workers=2) as pool:  # the encoder releases the interpreter lock
        return list(pool.map(encode, documents, chunksize=64))


def encode_split(
    vocabulary: Vocabulary, documents: list[str], prefix: Path, split: str,
    max_tokens: int | None = None, extra: dict[str, Any] | None = None,
) -> Counter[int]:
    """Writes one stream; returns how often each id occurs.  A cap keeps whole documents."""
    streams: list[list[int]] = []
    counts: Counter[int] = Counter()
    total, text_bytes = 0, 0
    bos, eos = vocabulary.specials["bos"], vocabulary.specials["eos"]
    for document, ids in zip(documents, _encode_all(vocabulary.encode, documents), strict=True):
        if max_tokens is not None and total + len(ids) + 2 > max_tokens:
            break
        streams.append([bos, *ids, eos])
        counts.update(streams[-1])
        total += len(ids) + 2
        text_bytes += len(document.encode("utf-8"))
    if not streams:
        raise DataError(f"the {split} split is empty: raise --max-tokens or give more documents")
    meta = {
        "bos": bos, "eos": eos, "vocab_size": vocabulary.vocab_size,
        "specials": vocabulary.specials, "tokenizer_sha256": vocabulary.sha256,
        "bytes": text_bytes, "split": split, **(extra or {}),
    }
    write_stream(prefix, streams, meta)
    return counts


def write_frequencies(path: Path, counts: Counter[int]) -> None:
    """`id count` lines, most frequent first, ties by id."""
    lines = ["# id count\n"]
    lines += [f"{i} {c}\n" for i, c in sorted(counts.items(), key=lambda x: (-x[1], x[0])) if c]
    write_atomic(path, "".join(lines).encode())


def choose_vocabulary(args: argparse.Namespace, documents: list[str]) -> Vocabulary:
    if args.train_bpe and args.arch == "dsv4":
        return dsv4_vocabulary(documents, args.train_bpe, args.out, args.name)
    if args.train_bpe:
        return own_vocabulary(documents, args.train_bpe, args.out, args.name)
    if args.bpe and args.bpe.name.endswith(dsv4.SUFFIX):
        return _from_tokenizer_json(dsv4.Tokenizer(args.bpe))
    if args.bpe:
        return _from_json(args.bpe, args.tokenizer)
    if args.top:
        return remap_vocabulary(documents, args.tokenizer, args.top, args.out)
    return full_vocabulary(args.tokenizer)


def parse(argv: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="nano.prepare", description=__doc__)
    p.add_argument("--data", nargs="+", required=True, help=".txt/.jsonl/.json, .gz/.zst, or -")
    p.add_argument("--out", type=Path, required=True, help="directory for the streams")
    p.add_argument("--train-bpe", type=int, metavar="N", help="train an own BPE of N tokens")
    p.add_argument("--arch", choices=("k3", "dsv4"), default="k3",
                   help="form of a trained BPE; dsv4: tokenizer.json, N counts the specials too")
    p.add_argument("--bpe", type=Path, help="an existing <name>.vocab.json or .tokenizer.json")
    p.add_argument("--tokenizer", type=Path, help="full rank file")
    p.add_argument("--top", type=int, help="keep the N most frequent ids of --tokenizer")
    p.add_argument("--name", default="own", help="stem of the trained vocabulary")
    p.add_argument("--valid", nargs="*", default=[], help="held-out files")
    p.add_argument("--valid-frac", type=float, default=0.01, help="share held out without --valid")
    p.add_argument("--field", action="append", help="JSON field with the text")
    p.add_argument("--max-docs", type=int)
    p.add_argument("--max-tokens", type=int)
    p.add_argument("--lenient", action="store_true", help="skip any number of invalid documents")
    p.add_argument("--json-repair", action="store_true", help="accept a cut-off .json array")
    p.add_argument("--json", type=Path, help="write a machine-readable result here")
    args = p.parse_args(argv)
    if sum(bool(x) for x in (args.train_bpe, args.bpe, args.top)) > 1:
        p.error("give one of --train-bpe, --bpe, --top")
    if not (args.train_bpe or args.bpe or args.tokenizer):
        p.error("give a vocabulary: --train-bpe N, --bpe FILE or --tokenizer FILE")
    if args.top and not args.tokenizer:
        p.error("--top needs the full rank file: --tokenizer FILE")
    if not 0 <= args.valid_frac < 1:
        p.error("--valid-frac must be in [0, 1)")
    return args


def run(args: argparse.Namespace) -> dict[str, Any]:
    args.out.mkdir(parents=True, exist_ok=True)
    fields = tuple(args.field) if args.field else ("text", "story")
    splits = collect(args.data, args.valid, args.valid_frac, args.max_docs, fields,
                     args.lenient, args.json_repair)
    vocabulary = choose_vocabulary(args, splits.train)
    files = [Path(f) for f in [*args.data, *args.valid] if f != "-"]
    extra = {"provenance": provenance(None, files)}
    counts = encode_split(
        vocabulary, splits.train, args.out / "train", "train", args.max_tokens, extra
    )
    write_frequencies(args.out / "freq.txt", counts)
    if splits.valid:
        encode_split(vocabulary, splits.valid, args.out / "valid", "valid", None, extra)
    result = {
        "train_docs": len(splits.train), "valid_docs": len(splits.valid),
        "tokens": sum(counts.values()), "vocab_size": vocabulary.vocab_size,
        "duplicates": splits.duplicates, "bad_utf8": splits.stats.bad_utf8,
        "empty": splits.stats.empty,
    }
    if args.json:
        write_json(args.json, result)
    return result


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        result = run(args)
    except FileNotFoundError as err:
        print(f"nano.prepare: {err}", file=sys.stderr)
        return 66
    except (DataError, bpe.VocabError) as err:
        print(f"nano.prepare: {err}", file=sys.stderr)
        return 65
    print(" ".join(f"{k}={v}" for k, v in result.items()), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
