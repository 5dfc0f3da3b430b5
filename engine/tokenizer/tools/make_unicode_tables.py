"""Writes engine/tokenizer/unicode_ranges.inc: Unicode properties of all code points, as ranges.

    pip install unicodedata2==16.0.0 regex tiktoken
    python make_unicode_tables.py [--check] > ../unicode_ranges.inc

General categories come from unicodedata2, whose version is the version of the tables. Script=Han
comes from the regex module, cut down to what that version had assigned. White_Space has not
changed since Unicode 6.3 and is listed here. --check compares every class that the splitter uses
with what tiktoken's regex engine says of all code points.

A line of the table holds ranges as numbers (first code point << 8) | properties; a range ends
where the next one starts. Properties: bits 0-4 general category (the order of CATEGORIES), bit 5
Script=Han, bit 6 White_Space.
"""

from __future__ import annotations

import argparse
import sys

import regex
import unicodedata2

UNICODE_VERSION = "16.0.0"
CATEGORY_NAMES = (
    "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn"
)
CATEGORIES = CATEGORY_NAMES.split()
HAN_BIT = 1 << 5
WHITE_SPACE_BIT = 1 << 6
LAST = 0x10FFFF
PER_LINE = 8


def white_space() -> set[int]:
    """The White_Space property."""
    single = {0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
    return single | set(range(0x09, 0x0E)) | set(range(0x2000, 0x200B))


def properties() -> list[int]:
    """One property byte per code point."""
    han = regex.compile(r"\p{Script=Han}")
    index = {name: number for number, name in enumerate(CATEGORIES)}
    spaces = white_space()
    table = []
    for point in range(LAST + 1):
        character = chr(point)
        category = unicodedata2.category(character)
        value = index[category]
        if category not in ("Cn", "Cs") and han.match(character):
            value |= HAN_BIT
        if point in spaces:
            value |= WHITE_SPACE_BIT
        table.append(value)
    return table


def ranges(table: list[int]) -> list[int]:
    """The table as (first << 8) | properties, one entry where the properties change."""
    return [
        (point << 8) | value
        for point, value in enumerate(table)
        if point == 0 or table[point - 1] != value
    ]


def check(table: list[int]) -> None:
    """Compares with tiktoken: a pattern that matches one class keeps just its characters."""
    import tiktoken

    text = "".join(chr(c) for c in range(LAST + 1) if not 0xD800 <= c <= 0xDFFF)
    byte_ranks = {bytes([value]): value for value in range(256)}

    def members(pattern: str) -> set[int]:
        encoding = tiktoken.Encoding(
            "class", pat_str=pattern, mergeable_ranks=byte_ranks, special_tokens={}
        )
        return {ord(c) for c in bytes(encoding.encode_ordinary(text)).decode("utf-8")}

    def having(mask: int) -> set[int]:
        return {point for point, value in enumerate(table) if value & mask}

    wanted = {r"\p{Han}": having(HAN_BIT), r"\s": having(WHITE_SPACE_BIT)}
    for number, name in enumerate(CATEGORIES):
        if name not in ("Cs", "Cn"):
            wanted[rf"\p{{{name}}}"] = {p for p, v in enumerate(table) if v & 31 == number}
    for pattern, ours in wanted.items():
        theirs = members(pattern)
        if ours != theirs:
            different = sorted(ours ^ theirs)
            sys.exit(f"{pattern}: {len(different)} code points differ, first {different[0]:#x}")
    print(f"{len(wanted)} classes equal tiktoken's", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with tiktoken first")
    args = parser.parse_args()
    if unicodedata2.unidata_version != UNICODE_VERSION:
        sys.exit(f"needs unicodedata2=={UNICODE_VERSION}, has {unicodedata2.unidata_version}")
    table = properties()
    if args.check:
        check(table)
    entries = ranges(table)
    print(f"// Unicode {UNICODE_VERSION}, written by tools/make_unicode_tables.py: do not edit.")
    print("// (first code point << 8) | properties; see unicode.h.")
    for start in range(0, len(entries), PER_LINE):
        print(" ".join(f"0x{entry:07x}," for entry in entries[start : start + PER_LINE]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
