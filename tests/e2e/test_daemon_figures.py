"""tests/bench/daemon: that it measures and judges; what it measures is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from daemon_harness import BIN, ROOT

BENCH = ROOT / "tests" / "bench"
sys.path.insert(0, str(BENCH))
from daemon_figures.figure import Figure, as_json, as_page, as_text, percentile  # noqa: E402

GOOD = Figure("One", "below its bar", 3.14159, "ms", 20, detail="of 7")
BAD = Figure("One", "above its bar", 20.5, "ms", 20)
FEW = Figure("Two", "too few", 2.1, "times", 2.2, at_least=True)
MORE = Figure("Two", "enough", 2.2, "times", 2.2, at_least=True)
TOLD = Figure("Two", "told", 1234.5, "tok/s")


def test_a_figure_knows_whether_its_bar_is_met() -> None:
    assert [one.met for one in (GOOD, BAD, FEW, MORE, TOLD)] == [True, False, False, True, True]


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(i) for i in range(100, 0, -1)]
    assert percentile(values, 0.5) == 51 and percentile(values, 0.99) == 100
    assert percentile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)


def test_text_page_and_json_tell_the_same() -> None:
    figures = [GOOD, BAD, FEW, MORE, TOLD]
    text, page = as_text(figures), as_page(figures, "a machine")
    told = as_json(figures, "a machine")
    assert text.count("MISSED") == page.count("**missed**") == 2
    assert text.splitlines()[0] == "One" and "\nTwo\n" in text
    assert page.startswith("# ") and "a machine." in page and page.count("\n## ") == 2
    assert "| below its bar | 3.14 ms | at most 20 ms | met | of 7 |" in page
    assert "| told | 1,234 tok/s |  |  |  |" in page
    assert told["met"] is False
    assert [one["met"] for one in told["figures"]] == [True, False, False, True, True]


def bench(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(BENCH / "daemon"), "--bin", str(BIN), *args],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == code, done
    return done


def test_it_measures(tmp_path) -> None:
    told = json.loads(bench("--quick", "--only", "idle,start", "--json").stdout)
    names = [one["name"] for one in told["figures"]]
    assert [name.split(",")[0] for name in names] == ["idle", "idle", "start to READY"]
    assert all(one["value"] >= 0 for one in told["figures"])  # a second may cost no tick
    assert "processors" in told["machine"]


@pytest.mark.slow
def test_every_part_measures() -> None:
    if not (BIN / "bench_generate").exists():
        pytest.skip("the benchmarks are not built here")
    told = json.loads(bench("--quick", "--json").stdout)
    assert len(told["figures"]) >= 18
    by_name = {one["name"]: one["value"] for one in told["figures"]}
    assert by_name["healthy after 2,000 clients, 256 descriptors"] == 1
    assert all(by_name[f"{p}: one client"] > 0 for p in ("exact", "bf16", "q8"))


def test_what_it_cannot_do_is_refused() -> None:
    assert "no part speed" in bench("--only", "speed", code=2).stderr
    assert "--write needs all parts" in bench("--write", "--quick", code=2).stderr
    missing = subprocess.run(
        [sys.executable, str(BENCH / "daemon"), "--bin", "/nowhere"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert missing.returncode == 1 and "build it" in missing.stderr
