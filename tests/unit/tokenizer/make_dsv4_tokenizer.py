"""Writes the small tokenizer.json of the tests.

    pip install tokenizers
    python make_dsv4_tokenizer.py > ../../data/tokenizer/dsv4.tokenizer.json

Layout as published: begin, end and padding marks, the single bytes, the merges, the other marks.
The merges are learnt from random texts of many scripts, so that pieces of all kinds merge. Among
the added tokens are one that begins another, one without "<", and two that overlap where only one
is "normalized".
"""

from __future__ import annotations

import json
import sys

from dsv4_texts import PATTERNS, random_texts
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

BEGIN = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"]
MARKS = [
    *[(name, False) for name in ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")],
    ("｜DSML｜", True), ("[MASK]", False), ("[MASK][MASK]x", False), ("<|ab", True), ("b|>", False),
]  # fmt: skip
SIZE = 1600
TEXTS = 6000


def main() -> int:
    tokenizer = Tokenizer(models.BPE())
    cuts = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in PATTERNS]
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, by_bytes])
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=BEGIN,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(random_texts(TEXTS, seed=7), trainer)
    data = json.loads(tokenizer.to_str())
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    data["added_tokens"] += [
        {"id": SIZE + i, "content": name, **flags, "normalized": normalized, "special": False}
        for i, (name, normalized) in enumerate(MARKS)
    ]
    json.dump(data, sys.stdout, ensure_ascii=False, separators=(",", ":"))
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
