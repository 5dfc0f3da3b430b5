"""From files of every kind to token streams."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from nano import prepare
from nano.bpe import load_tokenizer, train_bpe, write_ranks
from nano.documents import DataError, ReadStats, read_documents
from nano.stream import open_shards, open_stream, write_stream
from nano.tests.tiny import write_corpus

META = {"bos": 8, "eos": 9, "vocab_size": 12, "specials": {}, "bytes": 5}


def run(tmp_path: Path, *args: str) -> int:
    return prepare.main(["--out", str(tmp_path / "out"), *args])


def test_own_vocabulary_round_trip(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.txt", 80)
    assert run(tmp_path, "--data", str(corpus), "--train-bpe", "400", "--valid-frac", "0.2") == 0
    out = tmp_path / "out"
    tokenizer = load_tokenizer(out / "own.vocab.json")
    train, valid = open_stream(out / "train"), open_stream(out / "valid")
    texts = set()
    for stream in (train, valid):
        for i in range(stream.docs):
            ids = stream.document(i).tolist()
            assert ids[0] == tokenizer.bos and ids[-1] == tokenizer.eos
            texts.add(tokenizer.decode(ids))
    assert texts == set(read_documents(corpus))
    assert train.docs + valid.docs == 80 and 4 <= valid.docs <= 32
    counts = [line.split() for line in (out / "freq.txt").read_text().splitlines()[1:]]
    assert sum(int(c) for _, c in counts) == len(train.tokens)


def test_split_does_not_move_when_documents_are_added(tmp_path: Path) -> None:
    few = list(read_documents(write_corpus(tmp_path / "a.txt", 40)))
    held = {d for d in few if prepare.is_valid_split(d, 0.25)}
    splits = prepare.collect([str(write_corpus(tmp_path / "b.txt", 80))], [], 0.25, None, ("text",))
    assert held <= set(splits.valid) and 0 < len(held) < 40


def test_remap_mode_covers_everything(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.txt", 50)
    from nano.bpe import count_chunks

    write_ranks(tmp_path / "full", train_bpe(count_chunks(read_documents(corpus)), 420))
    code = run(tmp_path, "--data", str(corpus), "--tokenizer", str(tmp_path / "full"),
               "--top", "300", "--valid-frac", "0")
    assert code == 0
    tokenizer = load_tokenizer(tmp_path / "out" / "remap.vocab.json", tmp_path / "full")
    stream = open_stream(tmp_path / "out" / "train")
    assert tokenizer.specials["bos"] == 300  # specials follow the kept ids, whatever their number
    assert tokenizer.specials["unk"] not in stream.tokens
    texts = {tokenizer.decode(stream.document(i).tolist()) for i in range(stream.docs)}
    assert texts == set(read_documents(corpus))


def test_every_input_format_gives_the_same_documents(tmp_path: Path) -> None:
    docs = ["One day.", "Two\n\nparts."]
    (tmp_path / "a.txt").write_text("One day.\n<|endoftext|>\nTwo\n\nparts.\n")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": d}) for d in docs))
    (tmp_path / "a.json").write_text(json.dumps([{"story": d, "x": [1, {"y": 2}]} for d in docs]))
    with gzip.open(tmp_path / "a.txt.gz", "wb") as out:
        out.write((tmp_path / "a.txt").read_bytes())
    for name in ("a.txt", "a.jsonl", "a.json", "a.txt.gz"):
        assert list(read_documents(tmp_path / name)) == docs, name


def test_bad_documents_are_counted_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.txt"
    path.write_bytes(b"good\n<|endoftext|>\nbad \xff\n<|endoftext|>\n\n<|endoftext|>\ngood\n")
    stats = ReadStats()
    assert list(read_documents(path, stats=stats)) == ["good", "good"]
    assert (stats.bad_utf8, stats.empty) == (1, 1)
    assert run(tmp_path, "--data", str(path), "--train-bpe", "256") == 65
    ok = run(tmp_path, "--data", str(path), "--train-bpe", "256", "--lenient", "--valid-frac", "0")
    assert ok == 0
    assert open_stream(tmp_path / "out" / "train").docs == 1  # the exact duplicate is dropped


def test_cut_off_array_is_refused_or_repaired(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('[{"text": "whole"}, {"text": "cut o')
    with pytest.raises(DataError, match="after object 1"):
        list(read_documents(path))
    assert list(read_documents(path, repair=True)) == ["whole"]


def test_missing_and_empty_inputs_have_their_exit_codes(tmp_path: Path) -> None:
    assert run(tmp_path, "--data", str(tmp_path / "none.txt"), "--train-bpe", "256") == 66
    (tmp_path / "empty.txt").write_text("\n\n")
    assert run(tmp_path, "--data", str(tmp_path / "empty.txt"), "--train-bpe", "256") == 65
    with pytest.raises(SystemExit):
        run(tmp_path, "--data", "x.txt")


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    write_stream(tmp_path / "s", [[70000, 1], [2, 70001]], {**META, "vocab_size": 80000})
    stream = open_stream(tmp_path / "s", 80000)
    assert stream.tokens.dtype == np.dtype("<u4") and stream.document(1).tolist() == [2, 70001]
    with pytest.raises(DataError, match="does not fit vocabulary"):
        open_stream(tmp_path / "s", 70001)


def test_cap_keeps_whole_documents(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.txt", 30)
    run(tmp_path, "--data", str(corpus), "--train-bpe", "300", "--max-tokens", "500",
        "--valid-frac", "0")
    stream = open_stream(tmp_path / "out" / "train")
    assert len(stream.tokens) <= 500
    assert all(stream.document(i)[-1] == stream.meta["eos"] for i in range(stream.docs))


@pytest.mark.parametrize("damage", ["bin", "idx", "order", "meta"])
def test_damaged_streams_are_refused(tmp_path: Path, damage: str) -> None:
    write_stream(tmp_path / "s", [[8, 1, 9], [8, 2, 9]], META)
    if damage == "bin":
        (tmp_path / "s.bin").write_bytes(b"\0" * 10)
    elif damage == "idx":
        (tmp_path / "s.idx").write_bytes(np.array([0, 6], "<u8").tobytes())
    elif damage == "order":
        (tmp_path / "s.idx").write_bytes(np.array([0, 0, 6], "<u8").tobytes())
    else:
        (tmp_path / "s.meta.json").write_text("{}")
    with pytest.raises(DataError):
        open_stream(tmp_path / "s")


def test_shards_must_be_numbered_without_gaps(tmp_path: Path) -> None:
    for i in (0, 2):
        write_stream(tmp_path / f"train-{i:03d}", [[8, 1, 9]], META)
    with pytest.raises(DataError, match="expected"):
        open_shards(tmp_path / "train")
