"""`mk cachereplay`: a trace whose figures the reference engine has printed, and bad ones."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_harness import BIN, PATIENCE

MASK = (1 << 64) - 1
# Of 12,800 requests, by entries: lru, lfu, arc, belady.
HITS = {
    64: (2630, 2439, 2541, 6774),
    128: (5035, 5549, 5325, 9192),
    256: (9618, 10295, 9733, 11535),
    512: (12341, 12341, 12341, 12341),
}


def splitmix64(state: int) -> Iterator[int]:
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        yield z ^ z >> 31


def golden_trace() -> bytes:
    random = splitmix64(1)
    records = []
    for _ in range(400):
        for layer in range(1, 9):
            picked: list[int] = []
            while len(picked) < 4:
                expert = min(next(random) % 64 for _ in range(3))
                if expert not in picked:
                    picked.append(expert)
            records += [(layer, expert) for expert in picked]
    return b"".join(struct.pack("<II", *record) for record in records)


def replay(*args: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(BIN / "mk"), "cachereplay", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == code, done
    return done


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "golden.trace"
    path.write_bytes(golden_trace())
    digest = "dc917106b9bc6ad3d9b720abdf75d1c560c915f905a56261a89f586f8edbdad4"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    return path


def test_the_figures_of_the_reference(trace: Path) -> None:
    out = replay("--top-k", "4", "--predict", "4", "--json", trace).stdout
    (told,) = json.loads(out)["traces"]
    assert (told["requests"], told["distinct"]) == (12800, 459)
    rows = {row["entries"]: row["hits"] for row in told["rows"]}
    assert list(rows) == [64, 128, 256, 512, 1024, 2048, 4096]
    for entries, hits in HITS.items():
        got = rows[entries]
        assert (got["lru"], got["lfu"], got["arc"], got["belady"]) == hits
        assert got["aged"] <= got["belady"]


def test_the_table_and_several_traces(trace: Path) -> None:
    lines = replay("--entries", "64,300", trace, trace).stdout.splitlines()
    assert len(lines) == 8 and lines[:4] == lines[4:]
    assert lines[0].endswith("12800 requests of 459 experts; K 16, 16 predicted")
    assert lines[2].split()[:4] == ["64", "20.5", "19.1", "19.9"]


def test_what_is_wrong_is_said(trace: Path, tmp_path: Path) -> None:
    assert "No such file" in replay(tmp_path / "none", code=7).stderr
    odd = tmp_path / "odd"
    odd.write_bytes(b"123456789")
    assert "no multiple of 8" in replay(odd, code=1).stderr
    empty = tmp_path / "empty"
    empty.touch()
    assert "empty" in replay(empty, code=1).stderr
    wild = tmp_path / "wild"
    wild.write_bytes(b"\xff" * 8)
    assert "which no model has" in replay(wild, code=1).stderr
    for entries in ("0", "64,", "x", "64,-1", "99999999999999999999"):
        assert "no list of sizes" in replay("--entries", entries, trace, code=2).stderr
    assert "TRACE" in replay(code=2).stderr
