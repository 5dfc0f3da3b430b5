"""DeepSeek-V4 on disk: the container, checkpoints, the vocabulary, and the story command."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import regex
import tokenizers
import torch

from nano import checkpoint, evaluate, mxfp4, prepare, train
from nano.bin2pt import import_model, read_state
from nano.bpe import VocabError
from nano.dsv4 import tokenizer as dsv4
from nano.dsv4.config import SPECIALS, Dsv4Config
from nano.export import ExportOptions, export
from nano.loading import load_model, tokenizer_beside
from nano.mkim import DType, MkimError, MkimFile
from nano.story import __main__ as story
from nano.tests.test_dsv4_golden import GOLDEN
from nano.tests.test_dsv4_parts import TINY, tiny_model
from nano.tests.tiny import write_corpus


def save(run: Path, model: Any) -> Path:
    return checkpoint.save(run, 1, model.config, {"step": 1}, dict(model.state_dict()), {}, None)


# -- container -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spine", ["f32", "bf16"])
def test_every_tensor_arrives(tmp_path: Path, spine: str) -> None:
    model = tiny_model()
    save(tmp_path / "run", model)
    export(tmp_path / "run", tmp_path / "m.bin", ExportOptions(spine=spine, expert_align=4096))
    with MkimFile(tmp_path / "m.bin") as f:
        assert f.warnings == [] and f.config["arch"] == "deepseek_v4"
        assert f.model_config() == Dsv4Config.from_json(f.config)
        state = read_state(f)
        assert f.entry("layers.1.ffn.gate.tid2eid").dtype == DType.I32
        assert f.entry("layers.2.ffn.experts.5.w1").offset % 4096 == 0
        rounded = {e.name for e in f.spine() if e.dtype == DType.BF16}
    assert ("head.weight" in rounded) == (spine == "bf16")
    assert not any(".gate.weight" in n or "ape" in n or "hc_" in n for n in rounded)
    for name, t in model.state_dict().items():
        values = t.numpy()
        if ".experts." in name:
            flat = values.reshape(-1, values.shape[-1])
            values = mxfp4.decode(mxfp4.encode(flat), *flat.shape).reshape(values.shape)
        elif name in rounded:
            values = t.to(torch.bfloat16).float().numpy()
        assert np.array_equal(state[name], values), name


def test_export_of_an_import_is_byte_identical(tmp_path: Path) -> None:
    save(tmp_path / "run", tiny_model())
    export(tmp_path / "run", tmp_path / "a.bin")
    import_model(tmp_path / "a.bin", tmp_path / "back")
    export(tmp_path / "back", tmp_path / "b.bin")
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()


@pytest.mark.parametrize("case", ["d1", "d3"])
def test_recorded_models_keep_their_values_through_a_round_trip(tmp_path: Path, case: str) -> None:
    """d3 lacks keys of its config and has a short list of ratios."""
    import_model(GOLDEN / case / "model.bin", tmp_path / "a")
    export(tmp_path / "a", tmp_path / "a.bin")
    with MkimFile(GOLDEN / case / "model.bin") as old, MkimFile(tmp_path / "a.bin") as new:
        assert set(old.entries) == set(new.entries) and not new.warnings
        assert bool(old.warnings) == (case == "d3")
        for name in old.entries:
            assert np.array_equal(old.read(name), new.read(name)), name


def test_broken_files_are_refused(tmp_path: Path) -> None:
    data = bytearray((GOLDEN / "d1" / "model.bin").read_bytes())
    with MkimFile(GOLDEN / "d1" / "model.bin") as f:
        table = f.entry("layers.0.ffn.gate.tid2eid")
    bad = tmp_path / "bad.bin"

    def refused(changed: bytes, message: str) -> None:
        bad.write_bytes(changed)
        with pytest.raises(MkimError, match=message):
            MkimFile(bad)

    refused(data[: table.offset] + b"\x08\0\0\0" + data[table.offset + 4 :], "no expert")
    # The default of the missing key does not fit the tensors.
    refused(data.replace(b'"index_head_dim"', b'"index_head_xxx"'), r"the config calls for \[")
    refused(regex.sub(rb'("o_groups": ?)2', rb"\g<1>3", bytes(data)), "o_groups")
    refused(data.replace(b"attn_sink", b"attn_sunk"), "attn_sink is missing")
    with pytest.raises(MkimError, match="another kind"), MkimFile(GOLDEN / "d1/model.bin") as f:
        f.k3()


# -- vocabulary ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocab")
    corpus = write_corpus(folder / "c.txt", 200).read_text()
    documents = [*corpus.split("<|endoftext|>"), "It's 1234567 o'clock!\n\n\nNo... 漢字 かな é"]
    dsv4.train(documents, 380, folder / "v.tokenizer.json")
    return folder / "v.tokenizer.json"


def test_layout_of_the_ids(vocabulary: Path) -> None:
    data = json.loads(vocabulary.read_text())
    vocab = data["model"]["vocab"]
    known = {"!": 3, "0": 18, "A": 35, "a": 67, "~": 96, "\u0120": 223, "\u010a": 201}
    assert {text: vocab[text] for text in known} == known
    marks = {t["content"]: t["id"] for t in data["added_tokens"]}
    assert [marks[t] for t in dsv4.BEGIN] == [0, 1, 2]
    assert [marks[t] for t in dsv4.CHAT] == list(range(375, 380))
    assert len(vocab) == 375 and len(data["model"]["merges"]) >= 375 - 259


def test_ids_equal_the_library_and_a_plain_merger(vocabulary: Path) -> None:
    ours = dsv4.Tokenizer(vocabulary)
    library = tokenizers.Tokenizer.from_file(str(vocabulary))
    data = json.loads(vocabulary.read_text())
    vocab = data["model"]["vocab"]
    ranks = {tuple(m.split(" ")): i for i, m in enumerate(data["model"]["merges"])}

    def plain(text: str) -> list[int]:
        out = []
        for piece in dsv4.pieces(text):
            parts = list(dsv4.spell(piece.encode()))
            while True:
                pairs = [(ranks[p], i) for i, p in enumerate(itertools.pairwise(parts))
                         if p in ranks]
                if not pairs:
                    break
                i = min(pairs)[1]
                parts[i : i + 2] = [parts[i] + parts[i + 1]]
            out += [vocab[p] for p in parts]
        return out

    rng = random.Random(1)
    alphabet = " \n\tabcLily.,!?'\"0123 was the cat é漢か\u2028\u00a0_-<>｜👍🏽\u0301"
    texts = ["".join(rng.choices(alphabet, k=rng.randrange(1, 40))) for _ in range(400)]
    for text in texts:
        ids = ours.encode(text)
        assert ids == plain(text) == library.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(ids) == text
    assert ours.vocab_size == library.get_vocab_size() == 380


def test_marks_in_text_stay_text(vocabulary: Path) -> None:
    ours = dsv4.Tokenizer(vocabulary)
    text = "a<｜User｜>b</think><｜end▁of▁sentence｜>"
    ids = ours.encode(text)
    assert not set(ids) & {0, 1, 2, *range(375, 380)} and ours.decode([0, *ids, 1]) == text


def test_pieces_by_hand() -> None:
    known = {
        "don't DON'T": ["don", "'t", " DON", "'T"], "12345678901": ["123", "456", "789", "01"],
        "漢a字1仮\n名": ["漢", "a", "字", "1", "仮", "\n", "名"],
        "foo!!!\n\nbar": ["foo", "!!!\n\n", "bar"], "a  b\t\tc": ["a", " ", " b", "\t", "\tc"],
        "x\n  y": ["x", "\n", " ", " y"], "a!b !a!b": ["a", "!b", " !", "a", "!b"], "   ": ["   "],
    }
    for text, expected in known.items():
        assert list(dsv4.pieces(text)) == expected
    assert all(regex.compile(p) for p in dsv4.PATTERNS)


@pytest.mark.parametrize("change", [
    lambda d: d["model"]["vocab"].pop("a"),
    lambda d: d["added_tokens"].pop(0),
    lambda d: d["model"].pop("vocab"),
    lambda d: d["model"]["merges"].append("Q zz"),
])
def test_bad_vocabularies_are_refused(vocabulary: Path, tmp_path: Path, change: Any) -> None:
    data = json.loads(vocabulary.read_text())
    change(data)
    bad = tmp_path / "bad.tokenizer.json"
    bad.write_text(json.dumps(data))
    with pytest.raises(VocabError, match=r"bad\.tokenizer\.json"):
        dsv4.Tokenizer(bad)
    with pytest.raises(VocabError, match="at least 264"):
        dsv4.train(["a"], 263, bad)


# -- commands ------------------------------------------------------------------------------------


SETTINGS = [f"--set={k}={json.dumps(v)}" for k, v in TINY.items() if k != "vocab"]


def test_training_resumes_bit_by_bit(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.txt", 60)
    assert prepare.main(["--data", str(corpus), "--out", str(tmp_path), "--arch", "dsv4",
                         "--train-bpe", "320", "--valid-frac", "0.1"]) == 0

    def flags(out: str, *more: str) -> list[str]:
        return ["--arch", "dsv4", "--data", str(tmp_path / "train"), "--out", str(tmp_path / out),
                "--batch", "2", "--seq", "64", "--warmup", "2", "--eval-every", "100", "--steps",
                "8", "--threads", "1", "--dropout", "0.1", "--ema", "0.9", "--qat-frac", "0.3",
                "--optimizer", "muon", *SETTINGS, *more]

    assert train.main(flags("a")) == 0
    args = train.parse(flags("b"))
    (tmp_path / "b").mkdir()
    trainer = train.build(args, train.distributed.Group())
    loop = train.Loop(trainer, args)
    loop.dog.reason = lambda: "test" if trainer.step >= 3 else None  # type: ignore[method-assign]
    assert loop.run() == 75
    assert train.main(flags("b", "--resume")) == 0
    a, b = (checkpoint.open_checkpoint(tmp_path / name) for name in "ab")
    for mine, other in ((a.model(), b.model()), (a.ema(), b.ema()), (a.optim(), b.optim())):
        assert mine is not None and other is not None
        assert all(torch.equal(mine[k], other[k]) for k in mine)
    table = a.model()["layers.0.ffn.gate.tid2eid"]
    assert table.dtype == torch.int32 and all(len(set(row)) == 2 for row in table.tolist())


def test_story_command_makes_every_file(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "t.txt", 100)
    valid = write_corpus(tmp_path / "v.txt", 8, seed=9)
    out = tmp_path / "models"
    command = ["--arch", "dsv4", "--corpus", str(corpus), "--valid", str(valid), "--out", str(out),
               "--work", str(tmp_path / "work"), "--steps", "4", "--vocab-tokens", "312",
               "--epochs", "2", "--max-tokens", "12", "--train-flag=--seq=64",
               "--train-flag=--batch=2", "--train-flag=--log-every=2", *SETTINGS]
    assert story.main(command) in (0, 1)  # four steps cannot pass the battery
    for suffix in ("bin", "tokenizer.json", "report.md", "samples.txt", "train.jsonl", "curve.png"):
        assert (out / f"story-dsv4.{suffix}").stat().st_size > 0, suffix
    assert "DeepSeek-V4" in (out / "story-dsv4.report.md").read_text()
    model = out / "story-dsv4.bin"
    config = load_model(model).config
    assert config.specials == SPECIALS and config.tokenizer == "tokenizer.json"
    tokenizer = tokenizer_beside(model, None)
    assert tokenizer.vocab_size == config.vocab == 320
    code = evaluate.main([str(model), "--valid", str(tmp_path / "work/data/valid"), "--no-battery",
                          "--out", str(tmp_path / "e")])
    assert code == 0
