"""`mk cachereplay`: a trace whose figures the reference engine has printed, and bad ones."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_harness import BIN, PATIENCE, ROOT

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
    assert len(lines) == 12 and lines[:4] == lines[4:8]
    assert lines[0].endswith("12800 requests of 459 experts; K 16, 16 predicted")
    assert lines[2].split()[:4] == ["64", "20.5", "19.1", "19.9"]
    assert lines[8].startswith("all together: 25600 requests of 459 experts")


def lru_hits(records: list[tuple[int, int]], entries: int) -> int:
    held: dict[tuple[int, int], None] = {}
    hits = 0
    for record in records:
        if record in held:
            hits += 1
            del held[record]
        elif len(held) == entries:
            del held[next(iter(held))]
        held[record] = None
    return hits


def records_of(path: Path) -> list[tuple[int, int]]:
    return list(struct.iter_unpack("<II", path.read_bytes()))


def write_trace(path: Path, records: list[tuple[int, int]]) -> Path:
    path.write_bytes(b"".join(struct.pack("<II", *record) for record in records))
    return path


def passes_of(records: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    passes: list[list[tuple[int, int]]] = [[]]
    for record in records:
        if passes[-1] and record[0] < passes[-1][-1][0]:
            passes.append([])
        passes[-1].append(record)
    return passes


def test_traces_run_together_a_pass_in_turn(trace: Path, tmp_path: Path) -> None:
    records = records_of(trace)
    other = write_trace(tmp_path / "b", [(layer, 63 - e) for layer, e in records[: 64 * 32]])
    told = json.loads(replay("--entries", "200", "--json", trace, other).stdout)
    a, b = passes_of(records), passes_of(records_of(other))
    woven = []
    for i, one in enumerate(a):
        woven += one + (b[i] if i < len(b) else [])
    row = told["together"]["rows"][0]
    assert told["together"]["passes"] == len(a) + len(b)
    assert row["hits"]["lru"] == lru_hits(woven, 200)
    assert len(told["traces"]) == 2


def test_budgets_are_bytes(trace: Path) -> None:
    told = json.loads(
        replay("--budgets", "128KiB,1MiB", "--expert-bytes", "1K", "--json", trace).stdout
    )
    rows = told["traces"][0]["rows"]
    assert [row["bytes"] for row in rows] == [128 << 10, 1 << 20]
    assert (rows[0]["hits"]["lru"], rows[0]["hits"]["belady"]) == (HITS[128][0], HITS[128][3])
    assert "timed" not in rows[0]


def test_the_wait_for_a_disk(trace: Path) -> None:
    """LRU by layers, and a disk that is idle when a layer begins."""
    disk = ("--latency", "2ms", "--bandwidth", "10MB/s", "--depth", "8")
    options = ("--budgets", "200kB", "--expert-bytes", "1kB", *disk)
    told = json.loads(replay(*options, "--json", trace).stdout)
    held: dict[tuple[int, int], None] = {}
    stalls = []
    for one in passes_of(records_of(trace)):
        stall = 0.0
        for layer in sorted({record[0] for record in one}):
            wanted = [record for record in one if record[0] == layer]
            missing = sorted(record for record in wanted if record not in held)
            # What is there is used while the rest is read.
            for record in [one for one in wanted if one in held] + missing:
                held.pop(record, None)
                held[record] = None
            while len(held) > 200:
                del held[next(iter(held))]
            if missing:
                stall += 2 + len(missing) * 1000 / 10e6 * 1e3
        stalls.append(stall)
    timed = told["traces"][0]["rows"][0]["timed"]
    assert list(timed) == ["lru", "lfu", "arc", "aged", "markov"]
    assert timed["lru"]["stall_ms_per_pass"] == pytest.approx(sum(stalls) / len(stalls))
    assert timed["lru"]["stall_ms_max"] == pytest.approx(max(stalls))
    text = replay(*options, trace).stdout
    assert "2 ms, 10 MB/s, 8 at once" in text


def routebuild(*args: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(BIN / "mk"), "routebuild", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == code, done
    return done


def test_a_store_as_the_reference_writes_it(tmp_path: Path) -> None:
    records = [(1, 5), (1, 2), (3, 9), (1, 5)]
    one = write_trace(tmp_path / "one", records)
    store = tmp_path / "store.routes"
    assert "1 session, 1 of them new" in routebuild(store, one).stdout
    assert store.read_bytes() == bytes.fromhex(
        "4d4b525453303031 01000000 04000000 0a000000 01000000 00000000"
        "0400000000000000 04000000 0a000000 00000000"
        "02000000 02000000 01000000 05000000 02000000"
        "00000000 01000000 09000000 01000000"
    )
    told = json.loads(routebuild(store, one, one, "--json").stdout)
    assert told["added"] == 2 and len(told["sessions"]) == 3
    assert told["sessions"][2] == {"requests": 4, "layers": 4, "experts": 10}
    for _ in range(2):
        routebuild(store, *[one] * 20)
    assert len(json.loads(routebuild(store, one, "--json").stdout)["sessions"]) == 32


def test_a_bad_trace_leaves_the_store_alone(trace: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    routebuild(store, trace)
    before = store.read_bytes()
    bad = tmp_path / "bad"
    for content, words in (
        (b"", "empty"),
        (b"123456789", "no multiple of 8"),
        (b"\xff" * 16, "which no model has"),
        (b"MKTRC002" + b"\0" * 8, "cut off"),
    ):
        bad.write_bytes(content)
        assert words in routebuild(store, trace, bad, code=2).stderr
    assert "No such file" in routebuild(store, tmp_path / "none", code=7).stderr
    assert store.read_bytes() == before
    bad.write_bytes(b"MKRTS001" + b"\0" * 3)
    assert "it is not overwritten" in routebuild(bad, trace, code=2).stderr
    assert "TRACE" in routebuild(store, code=2).stderr


def test_sessions_of_before_help_a_cold_cache(trace: Path, tmp_path: Path) -> None:
    # Three topics: other experts are the frequent ones.
    def topic(shift: int) -> list[tuple[int, int]]:
        return [(layer, (expert + shift) % 64) for layer, expert in records_of(trace)]

    store = tmp_path / "store"
    half = 6400  # records
    routebuild(
        store,
        *[write_trace(tmp_path / f"t{s}", topic(s)[:half]) for s in (0, 20, 40)],
    )
    today = write_trace(tmp_path / "today", topic(20)[half:])
    options = ("--top-k", "4", "--predict", "4", "--tracesim", store)
    told = json.loads(replay(*options, "--json", today).stdout)
    (one,) = told["sessions"]
    assert one["match"]["session"] == one["by_overlap"] == 1
    assert one["passes"] == 50 and one["requests"] == 50 * 32
    assert [row["entries"] for row in one["rows"]] == [128, 256, 512, 1024]
    first = records_of(today)[: 50 * 32]
    for row in one["rows"]:
        assert row["hits"]["lru"] == lru_hits(first, row["entries"])
    assert one["rows"][0]["hits"]["tracesim"] > one["rows"][0]["hits"]["lru"]
    assert replay(*options, "--json", today).stdout == replay(*options, "--json", today).stdout
    lines = replay(*options, "--entries", "64", "--first", "10", today).stdout.splitlines()
    assert lines[3].startswith(f"{today}: the first 10 passes, 320 requests; like session 1, ")
    assert lines[5].split()[0] == "64"


def test_a_store_that_is_none(trace: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_bytes(b"nonsense")
    assert "MKRTS001 is missing" in replay("--tracesim", bad, trace, code=1).stderr
    assert "No such file" in replay("--tracesim", tmp_path / "none", trace, code=7).stderr
    store = tmp_path / "store"
    routebuild(store, trace)
    bad.write_bytes(store.read_bytes()[:-3])
    assert "damaged from number 1 on" in replay("--tracesim", bad, trace, code=1).stderr


SIZES = ("--budgets", "1M", "--expert-bytes", "1K")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--budgets", "1M"], "how large are experts"),
        (["--budgets", "1M,,", "--expert-bytes", "1K"], "no size"),
        (["--budgets", "0", "--expert-bytes", "1K"], "no size"),
        (["--budgets", "1M", "--expert-bytes", "-1"], "no size"),
        (["--budgets", "1M", "--entries", "3"], "--entries"),
        (["--expert-bytes", "1K"], "--budgets"),
        (["--bandwidth", "1MB/s"], "--budgets"),
        (["--latency", "1ms"], "--bandwidth"),
        (["--depth", "3"], "--bandwidth"),
        (["--first", "3"], "--tracesim"),
        ([*SIZES, "--bandwidth", "fast"], "no rate"),
        ([*SIZES, "--bandwidth", "1M", "--latency", "3"], "no time"),
        ([*SIZES, "--model", "x"], "--model"),
    ],
)
def test_options_that_do_not_go_together(trace: Path, options: list[str], words: str) -> None:
    assert words in replay(*options, trace, code=2).stderr


def test_sizes_of_a_model(trace: Path, tmp_path: Path) -> None:
    model = ROOT / "models" / "story-k3.bin"
    assert "does not have" in replay("--budgets", "1M", "--model", model, trace, code=1).stderr
    with model.open("rb") as file:
        assert file.read(8) == b"MKIM0002"
        config = json.loads(file.read(int.from_bytes(file.read(4), "little")))
    weights = config["routed_hidden"] * config["moe_inter"]
    size = 3 * (weights // 2 + weights // 32)
    # Two experts in turn: both fit, or each drives the other out.
    one = write_trace(tmp_path / "one", [(1, 0), (2, 1), (1, 0), (2, 1)])
    budgets = f"{2 * size},{2 * size - 1}"
    told = json.loads(replay("--budgets", budgets, "--model", model, "--json", one).stdout)
    assert [row["hits"]["lru"] for row in told["traces"][0]["rows"]] == [2, 0]
    assert "No such file" in replay("--budgets", "1M", "--model", "none", one, code=7).stderr


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
