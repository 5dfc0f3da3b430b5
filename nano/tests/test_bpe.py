"""Vocabulary training and the tokenizers, against independent implementations."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
import regex
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from nano import bpe
from nano.bpe import VocabError
from nano.tests.tiny import write_corpus

GOLDEN = Path(__file__).parents[2] / "tests" / "data" / "golden" / "tok"

CHUNKS = [
    ("Hello world", ["Hello", " world"]),
    ("a  b", ["a", " ", " b"]),
    ("a  1", ["a", " ", " ", "1"]),
    ("a\t\t!b", ["a", "\t", "\t", "!b"]),
    ("it's DON'T we'LL", ["it's", " DON'T", " we'LL"]),
    ("(don't)", ["(don't", ")"]),
    ("HTTPServer camelCase", ["HTTPServer", " camel", "Case"]),
    ("12345", ["123", "45"]),
    ("$5.00 — ok", ["$", "5", ".", "00", " —", " ok"]),
    ("hello 你好 world", ["hello", " ", "你好", " world"]),
    ("第123页", ["第", "123", "页"]),
    ("テストABC", ["テスト", "ABC"]),
    ("x = 1;\n\n\tfoo", ["x", " =", " ", "1", ";\n\n", "\tfoo"]),
    ("a\r\n b", ["a", "\r\n", " b"]),
    ("trail  ", ["trail", "  "]),
]


@pytest.mark.parametrize("text,want", CHUNKS)
def test_chunks_of_the_pattern(text: str, want: list[str]) -> None:
    assert regex.findall(bpe.PATTERN, text, flags=regex.V1) == want


def sample() -> Counter[bytes]:
    return bpe.count_chunks(["low low low low low lower lower newest newest newest newest newest "
                             "newest widest widest widest"])


def test_known_merges_and_tie_rule() -> None:
    tokens = bpe.train_bpe(sample(), 262)
    # " newest" 6, " widest" 3 -> "es" 9 times, then "est"; then " low"-family pairs with 7, where
    # ties go to the smallest pair of byte strings: (" ", "l") before ("l", "o").
    assert tokens[256:259] == [b"es", b"est", b"lo"]
    assert tokens[259] == b"low"


def naive_training(chunks: Counter[bytes], size: int) -> list[bytes]:
    """Recounts every pair in every round."""
    words = {chunk: [chunk[i : i + 1] for i in range(len(chunk))] for chunk in chunks}
    tokens = [bytes([b]) for b in range(256)]
    while len(tokens) < size:
        counts: Counter[tuple[bytes, bytes]] = Counter()
        for chunk, parts in words.items():
            for pair in itertools.pairwise(parts):
                counts[pair] += chunks[chunk]
        pair, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
        if count < 2:
            break
        if pair[0] + pair[1] not in tokens:
            tokens.append(pair[0] + pair[1])
        for parts in words.values():
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == pair:
                    parts[i : i + 2] = [pair[0] + pair[1]]
                i += 1
    return tokens


def test_training_equals_recounting_every_round(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "c.txt", 30).read_text() + " aaaa aaa aaaaaa banana bananana"
    chunks = bpe.count_chunks([text])
    assert bpe.train_bpe(chunks, 340) == naive_training(chunks, 340)


def test_compression_equals_the_tokenizers_library(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "c.txt", 60).read_text()
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(bpe.PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    theirs.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    ))
    path = bpe.save_own(tmp_path, "own", bpe.train_bpe(bpe.count_chunks([text]), 320))
    ours = len(bpe.load_tokenizer(path).encode(text))
    assert ours == pytest.approx(len(theirs.encode(text).ids), rel=0.02)  # tie rules differ


def test_encoding_equals_naive_merging(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "c.txt", 40).read_text()
    path = bpe.save_own(tmp_path, "own", bpe.train_bpe(bpe.count_chunks([text]), 330))
    tokenizer = bpe.load_tokenizer(path)
    ranks = {token: i for i, token in enumerate(tokenizer.tokens)}
    strange = "Ünïcode 你好 'quoted' 12345 \n\n  end\t"
    for sentence in (text[:500], strange):
        want = [
            ranks[part]
            for chunk in regex.findall(bpe.PATTERN, sentence, flags=regex.V1)
            for part in bpe.merge_bytes(chunk.encode(), ranks)
        ]
        assert tokenizer.encode(sentence) == want
        assert tokenizer.decode(want) == sentence
    assert tokenizer.vocab_size == 338
    assert tokenizer.specials["bos"] == 330 and tokenizer.specials["pad"] == 337


def test_text_that_looks_special_stays_text(tmp_path: Path) -> None:
    path = bpe.save_own(tmp_path, "own", bpe.train_bpe(sample(), 256))
    tokenizer = bpe.load_tokenizer(path)
    assert max(tokenizer.encode("<|open|>[BOS]<|endoftext|>")) < 256


def test_remap_respells_dropped_tokens(tmp_path: Path) -> None:
    text = write_corpus(tmp_path / "c.txt", 40).read_text()
    table = bpe.train_bpe(bpe.count_chunks([text]), 400)
    bpe.write_ranks(tmp_path / "full.tiktoken", table)
    kept = sorted({*range(256), *range(256, len(table), 3)})
    path = bpe.save_remap(tmp_path, "remap", kept, len(table))
    tokenizer = bpe.load_tokenizer(path, tmp_path / "full.tiktoken")
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert max(ids) < len(kept)
    with pytest.raises(VocabError, match="full rank file"):
        bpe.load_tokenizer(path)


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="tokenizer goldens are not in this checkout")
@pytest.mark.parametrize("name", ["k3_tiny", "k3_nano"])
def test_remapped_ids_equal_recorded_ones(name: str) -> None:
    ranks, vocab = GOLDEN / f"{name}.base.tiktoken", GOLDEN / f"{name}.vocab.json"
    if not ranks.is_file() or not vocab.is_file():
        pytest.skip(f"{name}: tokenizer files are not in this checkout")
    try:
        tokenizer = bpe.load_tokenizer(vocab, ranks)
    except VocabError as err:
        pytest.skip(f"{name}: {err}")
    unk, compared = tokenizer.specials["unk"], 0
    for case in json.loads((GOLDEN / "tokens.json").read_text()):
        want = case[name]["raw"][1:]
        if unk not in want:  # respelling differs from unk on purpose
            assert tokenizer.encode(case["text"]) == want, case["text"]
            compared += 1
    assert compared > 10


def damaged(tmp_path: Path, change: str) -> Path:
    path = bpe.save_own(tmp_path, "own", bpe.train_bpe(sample(), 260))
    ranks = tmp_path / "own.tiktoken"
    vocab = json.loads(path.read_text())
    if change == "digest":
        ranks.write_text(ranks.read_text().replace(" 259", " 260"))
    elif change == "missing":
        ranks.unlink()
    elif change == "outside":
        vocab["base"] = "../own.tiktoken"
    elif change == "special":
        vocab["specials"]["eos"] = vocab["specials"]["bos"]
    elif change == "table":
        vocab["nano_to_kimi"][3] = 4
    path.write_text(json.dumps(vocab))
    return path


@pytest.mark.parametrize(
    "change,message",
    [("digest", "base_sha256"), ("missing", "missing"), ("outside", "file name"),
     ("special", "distinct"), ("table", "distinct")],
)
def test_damaged_vocabularies_are_refused(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(VocabError, match=message):
        bpe.load_tokenizer(damaged(tmp_path, change))


@pytest.mark.parametrize(
    "text", ["!!! 0", "YQ==", "YQ== 0\nYQ== 1", "YQ== 1", "YQ== 0"],
    ids=["base64", "no rank", "twice", "gap", "bytes missing"],
)
def test_damaged_rank_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.tiktoken"
    path.write_text(text)
    with pytest.raises(VocabError):
        bpe.read_ranks(path)


def test_unreachable_tokens_are_refused() -> None:
    tokens = [bytes([b]) for b in range(256)] + [b"abc"]
    with pytest.raises(VocabError, match="no two lower-ranked"):
        bpe.check_ranks(tokens)
