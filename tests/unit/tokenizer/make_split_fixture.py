"""Writes random texts with their chunks and token ids, as the tests of the tokenizer expect them.

    pip install regex tiktoken
    python make_split_fixture.py --count 2000 > ../../data/tokenizer/split_fuzz.jsonl

Chunk ends come from the regex module, ids from tiktoken on tests/data/golden/tok/k3_nano.base; both
run the published Kimi pattern, and the script checks that they cut alike. A line is
[text, [chunk ends in code points], [ids]]. For a longer run write a larger file elsewhere and name
it in MK_SPLIT_FUZZ when running tokenizer_test.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
import unicodedata
from pathlib import Path

import regex
import tiktoken

PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
RANKS = Path(__file__).parents[2] / "data/golden/tok/k3_nano.base.tiktoken"
# Every class that the pattern tells apart, and characters that are easily put into the wrong one.
ALPHABET = [
    *"  \t\r\n\n''.,-!$&<|>\"\\#",
    *"aAbBsStTrReEvVmMlLdDkKzZ",
    *"0123456789",
    "\u00a0\u3000\u0085\u2028\u200b\u200d\u2060\u1680\u202f",
    "²Ⅷ½①٣\u0e53",
    "ǅʰªﬁßſ\u212aıİéÀЖжΩω",
    "かナテストー々〇⺀⼀你好世界㐀\U00020000\U0002ebf0〆〸",
    "שָׁ\u05bcعَب\u0301\u093f\u094dनमस\ufe0f\u20e3",
    "❤😀\U0001f468\U0001f469\U0001f3fb한글ㄱ",
    "’“”—…·¿",
    "\u0000\u001c\u001f\u007f\ufeff\ufffd\ue000\U000e0001\U0010ffff\u0378",
]
LETTERS = [c for group in ALPHABET for c in group]
WORDS = ["it's", "DON'T", "we'LL", "I'D", "they'Ve", "o'RE", "x'\u017f", "HTTPServer", "camelCase",
         "12345", "3.14", "\r\n", "\n\n", "  ", " \n ", "foo_bar", "();", "<|open|>", "[EOS]",
         "テスト", "ABC", "नमस्ते", "第123页", "a  b", "https://x.y/z?q=1", "e\u0301"]  # fmt: skip


def random_text(rng: random.Random) -> str:
    """Up to 40 characters, from one of several mixtures."""
    kind = rng.random()
    size = rng.randint(0, 40)
    if kind < 0.45:
        return "".join(rng.choice(LETTERS) for _ in range(size))
    if kind < 0.65:
        few = rng.sample(LETTERS, 4)
        return "".join(rng.choice(few) for _ in range(size))
    if kind < 0.85:
        parts = [rng.choice(WORDS) if rng.random() < 0.6 else rng.choice(LETTERS) for _ in range(8)]
        return "".join(parts)[:60]
    points = [rng.choice((0x250, 0x800, 0x3100, 0x10000, 0x20000)) for _ in range(size // 2)]
    return "".join(assigned(rng, limit) for limit in points)


def assigned(rng: random.Random, limit: int) -> str:
    """A random assigned character below `limit` that all versions of Unicode class alike.

    Python's tables are older than those of tiktoken, the regex module's are newer.
    """
    while True:
        character = chr(rng.randrange(limit))
        category = unicodedata.category(character)
        if category not in ("Cn", "Cs") and regex.match(rf"\p{{{category}}}", character):
            return character


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    ranks = {}
    for line in RANKS.read_text().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    encoding = tiktoken.Encoding(
        "fixture", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}
    )
    piece = tiktoken.Encoding("piece", pat_str="(?s:.+)", mergeable_ranks=ranks, special_tokens={})
    cutter = regex.compile(PATTERN, regex.V1)
    rng = random.Random(args.seed)
    for _ in range(args.count):
        text = random_text(rng)
        chunks = list(cutter.finditer(text))
        ids = encoding.encode_ordinary(text)
        one_by_one = [token for m in chunks for token in piece.encode_ordinary(m.group())]
        if ids != one_by_one or "".join(m.group() for m in chunks) != text:
            sys.exit(f"regex and tiktoken cut differently: {text!r}")
        row = [text, [m.end() for m in chunks], ids]
        print(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
