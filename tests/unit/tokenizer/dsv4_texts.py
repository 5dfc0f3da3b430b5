"""Random texts over everything that the DeepSeek-V4 cuts tell apart."""

from __future__ import annotations

import random
from collections.abc import Iterator

# As tokenizer.json files write them.
PATTERNS = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
_GROUPS = [
    "  \t\r\n\n''.,-!$&<|>\"\\#_+/:;=?@[]^`{}~()*%",
    "aAbBsStTrReEvVmMlLdDkKzZoinuhc",
    "0123456789",
    "\u00a0\u3000\u0085\u2028\u2029\u200b\u200d\u2060\u1680\u202f\u2003\u205f\v\f",
    "²Ⅷ½①٣\u0e53〇〡𝟘𝟛",
    "ǅʰªﬁßſ\u212aıİéÀЖжΩωⒶ",
    "かナテストー々〆⺀⼀你好世界㐀一龥龦\u303f\u3040\u3097\u3099゛゠・ヿ㄀𠮷ｶﾅ",
    "שָׁ\u05be\u05bcعَب،؟\u0301\u093f\u094d।नमस\ufe0f\u20e3",
    "❤😀\U0001f468\U0001f469\U0001f3fb한글ㄱ€₹₿",
    "’“”—…·¿¡§¨¯´¸×÷｜▁",
    "\u0000\u0001\u001b\u007f\u00ad\u0378\ufeff\ufffd\ue000\U000e0001\U0010ffff",
]  # fmt: skip
_LETTERS = [c for group in _GROUPS for c in group]
_WORDS = [
    "it's", "DON'T", "HTTPServer", "camelCase", "12345", "3.14", "\r\n", "\n\n", "  ", " \n ",
    "foo_bar", "();", "テスト", "नमस्ते", "第123页", "a  b", "https://x.y/z?q=1", "e\u0301", "the ",
    " and ", "hello world ", "!!!a", " !a", "aaaa", "été", "漢字かな", "{\n\t\"k\": [1, 20]\n}",
    "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜", "[MASK]", "[MASK][MASK]x",
    "[MASK][MASK", "<|ab|>", "<|a", "b|>", "<｜User｜", "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>",
]  # fmt: skip


def random_text(rng: random.Random) -> str:
    """Up to about 80 characters, from one of several mixtures."""
    kind = rng.random()
    size = rng.randint(0, 40)
    if kind < 0.35:
        return "".join(rng.choice(_LETTERS) for _ in range(size))
    if kind < 0.55:
        few = rng.sample(_LETTERS, 4)
        return "".join(rng.choice(few) for _ in range(2 * size))
    if kind < 0.85:
        return "".join(rng.choice(_WORDS if rng.random() < 0.6 else _LETTERS) for _ in range(10))
    limits = [rng.choice((0x250, 0x800, 0x3100, 0x10000, 0x20000, 0x110000)) for _ in range(size)]
    return "".join(_any_character(rng, limit) for limit in limits)


def _any_character(rng: random.Random, limit: int) -> str:
    while True:
        point = rng.randrange(limit)
        if not 0xD800 <= point < 0xE000:
            return chr(point)


def random_texts(count: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    return (random_text(rng) for _ in range(count))


def every_character() -> Iterator[str]:
    """Every code point, each between letters, behind a space and before a sign."""
    points = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for start in range(0, len(points), 64):
        yield "".join(f"a{chr(c)}b {chr(c)}! " for c in points[start : start + 64])
