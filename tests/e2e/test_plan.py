"""`mk plan`: predictions from headers, a machine that is given, and one that is measured."""

from __future__ import annotations

import json
import os
import shlex
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from daemon_harness import BIN, ROOT

STORY = ROOT / "models" / "story-k3.bin"
DSV4 = ROOT / "models" / "story-dsv4.bin"
# The first call measures the kernels.
PATIENCE = 240.0
DISK = ("--disk-latency", "2ms", "--disk-bandwidth", "500MB/s", "--disk-depth", "32")


class Planner:
    """mk with a state folder of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "MICROKIMI"))}
        self.env = kept | {
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_DATA_HOME": str(home / "data"),
        }
        self.profile = home / "state" / "microkimi" / "machine.json"

    def __call__(self, *args: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(BIN / "mk"), "plan", *map(str, args)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=self.env,
            cwd=self.home,
        )
        assert done.returncode == code, done
        return done

    def json(self, *args: str | Path, code: int = 0) -> dict[str, Any]:
        return json.loads(self(*args, "--json", code=code).stdout)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    planner = Planner(tmp_path_factory.mktemp("plan"))
    told = planner("k3", "--ram", "4TiB", *DISK).stderr
    assert "measuring the kernels" in told and "disk" not in told
    assert planner.profile.stat().st_mode & 0o777 == 0o600
    return planner


def test_what_was_measured_is_kept(plan: Planner) -> None:
    before = plan.profile.read_bytes()
    assert plan("k3", "--ram", "4TiB", *DISK).stderr == ""
    assert plan.profile.read_bytes() == before
    assert sorted(path.name for path in plan.profile.parent.iterdir()) == ["machine.json"]


def test_the_published_models(plan: Planner) -> None:
    k3 = plan.json("k3", "--ram", "4TiB", *DISK)
    assert k3["model"]["expert_file_bytes"] == 82_432 * 17_547_264
    assert k3["verdict"] == "resident" and k3["best"] is None
    assert k3["memory"]["exact"]["spine"] > 3 * k3["memory"]["q8"]["spine"]
    assert [row["share"] for row in k3["budgets"]] == [0.1, 0.25, 0.5, 0.75, 1]
    assert k3["budgets"][-1]["stall_ms_per_token"] < k3["budgets"][0]["stall_ms_per_token"]
    dsv4 = plan.json("dsv4", "--ram", "64GiB", "--precision", "q8", *DISK)
    assert dsv4["model"]["expert_file_bytes"] == 11_008 * 13_369_344
    assert dsv4["verdict"] == "stream"
    best = dsv4["best"]
    assert best["fits"] and best["memory_bytes"] <= 64 << 30 < best["memory_bytes"] + (2 << 20)
    mib = best["cache_bytes"] >> 20
    assert dsv4["next"] == f"mk load MODEL --precision q8 --stream --stream-ram {mib}MiB"


def test_what_does_not_fit_is_refused(plan: Planner) -> None:
    done = plan("k3", "--ram", "64GiB", "--precision", "exact", *DISK, code=1)
    assert "k3 does not fit: it needs" in done.stderr and "more memory" in done.stderr
    assert "next:" not in done.stdout
    told = plan.json("dsv4", "--ram", "16GiB", "--precision", "exact", *DISK, code=1)
    assert told["verdict"] == "too_large" and told["next"] is None
    assert not any(row["fits"] for row in told["budgets"])
    done = plan("dsv4", "--ram", "16GiB", "--precision", "exact", *DISK, code=1)
    assert "it fits in bf16" in done.stderr


@pytest.mark.parametrize("model", [STORY, DSV4])
def test_a_file(plan: Planner, model: Path) -> None:
    told = plan.json(model, "--ram", "8GiB", "--precision", "q8", *DISK)
    assert told["verdict"] == "resident"
    assert shlex.split(told["next"]) == ["mk", "load", str(model), "--precision", "q8"]
    assert told["compute"]["measured"] is False
    memory = told["memory"]["q8"]
    fixed = memory["spine"] + memory["tables"] + memory["sequence"] + memory["scratch"]
    for row in told["budgets"]:
        assert row["memory_bytes"] == fixed + memory["stream_tables"] + row["cache_bytes"]
        assert row["cache_bytes"] == int(row["share"] * memory["experts"])
        token_ms = told["compute"]["decode_ms"] + row["stall_ms_per_token"]
        assert row["decode_tokens_per_s"] == pytest.approx(1000 / token_ms)
    # One byte less than all.
    short = plan.json(model, "--ram", fixed + memory["experts"] - 1, "--precision", "q8", *DISK)
    assert short["verdict"] == "stream" and "--stream-ram" in short["next"]


def trace_file(path: Path, tokens: int, layers: range, experts: int) -> Path:
    """Four experts of every layer in turn, no neighbours: LRU keeps none of them in time."""
    records = [
        (layer, (token + i * experts // 4) % experts)
        for token in range(tokens)
        for layer in layers
        for i in range(4)
    ]
    path.write_bytes(b"".join(struct.pack("<II", *record) for record in records))
    return path


def test_recorded_demands(plan: Planner, tmp_path: Path) -> None:
    trace = trace_file(tmp_path / "trace", 48, range(1, 8), 48)
    told = plan.json(STORY, "--trace", trace, "--policy", "lru", "--ram", "8GiB", *DISK)
    # The 24 tokens that count read every expert twice; of four experts of a layer three are worked
    # on while the last one comes.
    read_ms = told["model"]["expert_read_bytes"] * 2 / 24 / 500e6 * 1e3
    stall = 7 * 2 + read_ms - told["compute"]["decode_overlap_ms"]
    assert told["trace"] == str(trace) and told["skew"] is None
    # All experts do not fit beside the buffers of reads, and the buffers of the smaller budgets are
    # too small for all reads of a layer at once.
    for row in told["budgets"]:
        assert row["hit_rate"] == 0
    for row in told["budgets"][:2]:
        assert row["stall_ms_per_token"] > stall - 1e-6
    for row in told["budgets"][2:]:
        assert row["stall_ms_per_token"] == pytest.approx(stall)
    text = plan(STORY, "--trace", trace, "--ram", "8GiB", *DISK).stdout
    assert f"demands of {trace}" in text
    wrong = trace_file(tmp_path / "wrong", 2, range(1, 9), 48)
    assert "layer 8, which the model does not have" in plan(
        STORY, "--trace", wrong, "--ram", "8GiB", *DISK, code=1
    ).stderr
    wrong.write_bytes(b"123")
    assert "no multiple of 8" in plan(STORY, "--trace", wrong, *DISK, code=1).stderr
    assert "No such file" in plan(STORY, "--trace", tmp_path / "none", *DISK, code=7).stderr


def test_a_faster_machine_is_faster(plan: Planner) -> None:
    slow = plan.json("dsv4", "--ram", "200GiB", "--memory-bandwidth", "10GB/s", *DISK)
    fast = plan.json("dsv4", "--ram", "200GiB", "--memory-bandwidth", "100GB/s", *DISK)
    assert fast["compute"]["decode_ms"] < slow["compute"]["decode_ms"] / 5
    one = plan.json("dsv4", "--ram", "200GiB", "--cores", "1", *DISK)
    many = plan.json("dsv4", "--ram", "200GiB", "--cores", "64", *DISK)
    assert many["compute"]["prompt_ms"] < one["compute"]["prompt_ms"] / 4
    near = plan.json("dsv4", "--disk-latency", "10us", "--disk-bandwidth", "7GB/s")
    far = plan.json("dsv4", "--disk-latency", "10ms", "--disk-bandwidth", "7GB/s")
    assert near["budgets"][0]["decode_tokens_per_s"] > far["budgets"][0]["decode_tokens_per_s"]
    hot = plan.json("dsv4", "--skew", "1.2", *DISK)["budgets"][0]["hit_rate"]
    assert hot > plan.json("dsv4", "--skew", "0", *DISK)["budgets"][0]["hit_rate"]


def test_the_text(plan: Planner) -> None:
    text = plan("dsv4", "--ram", "64GiB", "--precision", "q8", *DISK).stdout
    assert text.startswith("dsv4: deepseek_v4, 43 layers;")
    assert "machine: 64 GiB for the model" in text and "disk 2 ms and 500 MB/s" in text
    assert "demands at random, skew 0.6" in text
    assert "it does not fit whole" in text
    assert text.splitlines()[-1].startswith("next: mk load MODEL --precision q8 --stream")


def test_measuring(tmp_path: Path) -> None:
    planner = Planner(tmp_path)
    told = planner("--measure")
    assert "measuring the disk" in told.stderr and "running the model" not in told.stderr
    assert str(planner.profile) in told.stdout
    profile = json.loads(planner.profile.read_text())
    assert len(profile["disks"]) == 1 and profile["models"] == []
    assert set(profile["layer_costs"]) == {"k3", "deepseek_v4"}
    # A damaged profile is not used; measuring mends it.
    planner.profile.write_text("{}")
    failed = planner(STORY, *DISK, code=1).stderr
    assert "no profile of a machine" in failed and "mk plan --measure" in failed
    measured = planner.json(STORY, "--measure", "--precision", "q8", *DISK)
    assert measured["compute"]["measured"] is True
    profile = json.loads(planner.profile.read_text())
    assert [model["precision"] for model in profile["models"]] == ["q8"]
    assert planner.json(STORY, "--precision", "q8")["compute"] == measured["compute"]
    assert planner.json(STORY, "--precision", "bf16")["compute"]["measured"] is False
    names = sorted(path.name for path in planner.profile.parent.iterdir())
    assert names == ["machine.json"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ([], 2, "a model is missing"),
        (["k3", "--ram", "lots"], 2, "--ram: \"lots\" is no size"),
        (["k3", "--ram", "0"], 2, "is no size"),
        (["k3", "--disk-bandwidth", "1GB/h"], 2, "is no rate"),
        (["k3", "--memory-bandwidth", "-1"], 2, "is no rate"),
        (["k3", "--disk-latency", "2"], 2, "is no time"),
        (["k3", "--cores", "0"], 2, "--cores"),
        (["k3", "--skew", "3"], 2, "--skew"),
        (["k3", "--policy", "fifo"], 2, "--policy"),
        (["k3", "--precision", "q7"], 2, "--precision"),
        (["k3", "--context", "0"], 2, "--context"),
        (["no-such-model"], 7, "no-such-model"),
        (["./none.bin"], 7, "none.bin"),
        (["/etc/hostname"], 1, "/etc/hostname"),
    ],
)
def test_what_is_wrong_is_said(plan: Planner, args: list[str], code: int, words: str) -> None:
    assert words in plan(*args, code=code).stderr
