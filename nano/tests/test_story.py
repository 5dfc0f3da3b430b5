"""Corpus cleaning and name exchange, the story command, evaluation, smoke run and services."""

from __future__ import annotations

import configparser
import json
from pathlib import Path

import numpy as np
import pytest

from nano import evaluate, smoke
from nano.documents import read_documents
from nano.ngram import KneserNey, five_gram
from nano.ops import __main__ as ops
from nano.ops.unit import RunFileError, read_run_file, unit_text
from nano.story import __main__ as story
from nano.story import corpus
from nano.stream import open_stream, write_stream
from nano.tests.tiny import TINY, write_corpus

GIRL = "Once there was a girl named {0}. She and her mom went out. {0} saw her cat. She smiled."
BOY = "Once there was a boy named {0}. He and his dad went out. {0} saw his dog. He smiled."


def test_names_get_the_gender_of_their_introduction() -> None:
    stories = [GIRL.format("Lily")] * 3 + [BOY.format("Tom")] * 3
    stories += ["A dog named Spot ran. Spot barked at it. Spot sat down."] * 3
    assert corpus.collect_names(stories) == {"Lily": "girl", "Tom": "boy", "Spot": "animal"}


def test_exchange_is_consistent_and_keeps_the_gender() -> None:
    stories = [t.format(n) for t, ns in ((GIRL, ("Lily", "Mia")), (BOY, ("Tom", "Ben"))) for n in ns
               for _ in range(3)]
    names = corpus.collect_names(stories)
    pools = corpus.name_pools(stories, names)
    rng = np.random.default_rng(0)
    assert corpus.swap_names(GIRL.format("Lily"), names, pools, rng) == GIRL.format("Mia")
    assert corpus.swap_names("Tom's mom saw Ann.", names, pools, rng) == "Ben's mom saw Ann."
    assert corpus.augmented_epoch(stories, names, 1, 0) == stories
    first = corpus.augmented_epoch(stories, names, 1, 1)
    assert first != stories and first == corpus.augmented_epoch(stories, names, 1, 1)


def test_cleaning_drops_and_parts() -> None:
    text = " ".join(f"She had toy number {i}." for i in range(30))
    whole = f"Lily was a girl. Lily sang. Lily ran. {text}"
    other = f"Max was a dog. Max dug. Max slept. {text.replace('She', 'He')}"
    long_story = "Word by word. " * 300
    held = "Held out story. " + text
    out = corpus.clean(
        [f"{whole}\n\n{other}", "Too short.", long_story, whole + " and then", "“Hi” " + text,
         held],
        [held], {"Lily", "Max"},
    )
    assert out.stories[:2] == [whole, other]
    assert out.dropped["short"] == 1 and out.dropped["long"] == 1 and out.dropped["no end"] == 1
    assert out.dropped["near duplicate"] >= 1
    assert not any("“" in s for s in out.stories)


def test_kneser_ney_probabilities_sum_to_one(tmp_path: Path) -> None:
    docs = [[8, 1, 2, 3, 1, 2, 9], [8, 1, 2, 4, 9], [8, 3, 1, 5, 9]]
    meta = {"bos": 8, "eos": 9, "vocab_size": 10, "specials": {}, "bytes": 12}
    write_stream(tmp_path / "s", docs, meta)
    stream = open_stream(tmp_path / "s")
    model = KneserNey(10)
    model.train(stream)
    for context in ((), (8,), (8, 1), (1, 2), (7, 7), (3, 1, 2)):
        assert sum(model.probability(context, w) for w in range(10)) == pytest.approx(1.0)
    assert model.probability((8, 1), 2) > model.probability((8, 1), 4)
    assert five_gram(stream, stream)["nats_per_token"] < np.log(10) / 2


def test_story_command_makes_every_file(tmp_path: Path) -> None:
    train = write_corpus(tmp_path / "t.txt", 150)
    valid = write_corpus(tmp_path / "v.txt", 8, seed=9)
    out = tmp_path / "models"
    changes = [f"--set={k}={json.dumps(v)}" for k, v in {**TINY, "n_layers": 3,
               "mla_layers": [1]}.items() if k != "vocab"]
    command = ["--corpus", str(train), "--valid", str(valid), "--out", str(out), "--work",
               str(tmp_path / "work"), "--steps", "6", "--vocab-tokens", "312", "--epochs", "2",
               "--max-tokens", "16",
               "--train-flag=--seq=64", "--train-flag=--batch=2", "--train-flag=--log-every=2",
               *changes]
    code = story.main(command)
    assert code in (0, 1)  # six steps cannot pass the battery
    for suffix in ("bin", "vocab.json", "tiktoken", "report.md", "samples.txt", "train.jsonl",
                   "curve.png"):
        assert (out / f"story-k3.{suffix}").stat().st_size > 0, suffix
    report = (out / "story-k3.report.md").read_text()
    assert "bits per byte" in report and "| 2 |" in report
    before = (out / "story-k3.bin").read_bytes()
    assert story.main(command) == code  # a finished run is not trained again
    assert (out / "story-k3.bin").read_bytes() == before
    strict = evaluate.main([str(out / "story-k3.bin"), "--valid", str(tmp_path / "work/data/valid"),
                            "--no-battery", "--out", str(tmp_path / "e")])
    assert strict == 0
    held = json.loads((tmp_path / "e" / "report.json").read_text())["held_out"]
    total = sum(len(d.encode()) for d in read_documents(valid))
    assert held["bytes"] == total
    assert held["bits_per_byte"] == pytest.approx(
        held["nats_per_token"] * held["targets"] / np.log(2) / total
    )


@pytest.mark.slow
def test_smoke_run_survives_a_kill(tmp_path: Path) -> None:
    result = smoke.smoke(tmp_path / "s", steps=60)
    assert Path(result["model"]).is_file()
    assert 0 < result["killed_after_step"] < 60
    assert result["last_loss"] < result["first_loss"] - 1


RUN = """
name = "story"
directory = "/opt/microkimi"
python = "/usr/bin/python3"
out = "/data/run one"
memory_gb = 10
[train]
data = "/data/train"
steps = 100
ckpt_layers = true
set = ["hidden=64", "top_k=2"]
[export]
out = "/data/100%.bin"
"""


def test_units_restart_only_what_can_succeed(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RUN)
    text = unit_text(read_run_file(tmp_path / "r.toml"))
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    service = unit["Service"]
    assert service["Type"] == "notify" and service["RestartForceExitStatus"] == "75"
    assert service["RestartPreventExitStatus"] == "64 65 66 70 76"
    command = service["ExecStart"]
    assert "--steps 100 --ckpt-layers --set hidden=64 --set top_k=2" in command
    assert '--out "/data/run one" --rss-cap 9' in command
    assert "100%%.bin" in service["ExecStopPost"]
    assert int(service["MemoryMax"]) == 10_000_000_000


@pytest.mark.parametrize(
    "old,new,message",
    [('"story"', '"a/b"', "name"), ("/opt/microkimi", "opt", "absolute"),
     ("memory_gb = 10", "memory_gb = -1", "memory_gb"), ("[train]", "[trian]", "unknown key"),
     ("steps = 100", "steps = ", "r.toml"), ("[train]", 'watchdog_seconds = 5\n[train]', "120")],
)
def test_bad_run_files_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "r.toml"
    path.write_text(RUN.replace(old, new))
    with pytest.raises(RunFileError, match=message):
        read_run_file(path)


def test_export_waits_for_the_end(tmp_path: Path) -> None:
    target = tmp_path / "m.bin"
    assert ops.main(["export-when-finished", str(tmp_path), "--out", str(target)]) == 0
    assert not target.exists()
