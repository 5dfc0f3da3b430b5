"""DeepSeek-V4 models do through mk and the daemon what K3 models do."""

from __future__ import annotations

import json
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_harness import BIN, PATIENCE, Daemon

from conftest import MakeDaemon

LAYERS, STREAMS, HIDDEN, VOCAB, TOP_K = 6, 4, 64, 264, 2
PROMPTS = ["one", "two boats", "a lamp", "the old stone", "wind", "seven", "left on", "kettle"]


class Mk:
    """mk in a place of its own, with a small random model."""

    def __init__(self, place: Daemon, folder: Path) -> None:
        self.place = place
        self.model = str(folder / "tiny.bin")
        self("build", "--arch", "dsv4", "--preset", "tiny", "--out", self.model)

    def __call__(self, *args: str, stdin: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [str(BIN / "mk"), *args],
            env=self.place.env(),
            input=stdin.encode(),
            capture_output=True,
            timeout=PATIENCE,
        )
        assert done.returncode == code, (done.returncode, done.stdout[:500], done.stderr[:2000])
        return done.stdout.decode()

    def run(self, prompt: str, *args: str) -> dict:
        return json.loads(
            self("run", "-m", self.model, "--precision", "exact", "--json", *args, prompt)
        )


@pytest.fixture
def mk(make_daemon: MakeDaemon, tmp_path: Path) -> Iterator[Mk]:
    made = Mk(make_daemon(), tmp_path)
    yield made
    made("stop")


def test_built_models_are_sound_and_spell_bytes(mk: Mk) -> None:
    assert ": sound" in mk("verify", mk.model)
    assert mk("tokenize", "-m", mk.model, "hi").split() == [str(VOCAB - 8), "104", "105"]


def test_a_map_of_eight_prompts_equals_each_run_alone(mk: Mk) -> None:
    options = ["-m", mk.model, "--precision", "exact", "-n", "40", "--jsonl"]
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS)
    answers = [json.loads(line) for line in mk("map", *options, stdin=lines).splitlines()]
    alone = [mk.run(prompt, "-n", "40")["text"] for prompt in PROMPTS]
    assert [answer["text"] for answer in answers] == alone
    assert len(set(alone)) == len(PROMPTS)


def test_a_long_prompt_is_read_in_pieces_of_any_size(mk: Mk) -> None:
    ids = [(37 * i) % 256 for i in range(1200)]
    text = ",".join(map(str, ids))
    options = ["-m", mk.model, "--precision", "exact", "-n", "3", "--json", "--ids"]
    whole = json.loads(mk("run", *options, text))
    # The same tokens, but seen layer by layer, which takes the prompt in smaller pieces.
    shown = json.loads(mk("run", "--routes", *options, text))
    assert whole["ids"] == shown["ids"]


def test_hidden_states_logits_and_routes_are_shown(mk: Mk, tmp_path: Path) -> None:
    hidden, logits = tmp_path / "hidden.f32", tmp_path / "logits.f32"
    answer = mk.run(
        "one day", "-n", "4", "--routes", "--dump-hidden", str(hidden), "--dump-logits", str(logits)
    )
    positions = len(answer["prompt_ids"]) + len(answer["ids"])
    assert hidden.stat().st_size == 4 * positions * LAYERS * STREAMS * HIDDEN
    rows = array("f", logits.read_bytes())
    assert len(rows) == VOCAB * (len(answer["ids"]) + 1)
    picked = [max(range(VOCAB), key=rows[VOCAB * i : VOCAB * (i + 1)].__getitem__)
              for i in range(len(answer["ids"]))]
    assert picked == answer["ids"]
    assert len(answer["routes"]) == positions
    for row in answer["routes"]:
        assert [layer["layer"] for layer in row["layers"]] == list(range(LAYERS))
        assert all(len(layer["experts"]) == TOP_K for layer in row["layers"])


def test_picks_of_indexers_and_compressed_rows_are_shown(mk: Mk) -> None:
    ids = ",".join(str(37 * i % 256) for i in range(150))
    told = json.loads(mk("run", "-m", mk.model, "--precision", "exact", "--json", "--routes",
                         "-n", "4", "--ids", ids))  # fmt: skip
    made: dict[int, list[tuple[int, int]]] = {}
    for route in told["routes"]:
        for row in route["compressed"]:
            made.setdefault(row["layer"], []).append((route["position"], row["row"]))
    ratios = {layer: places[0][0] + 1 for layer, places in made.items()}
    assert set(ratios.values()) == {4, 8}
    for layer, places in made.items():
        ratio = ratios[layer]
        assert places == [((i + 1) * ratio - 1, i) for i in range(len(places))]
    chosen = 0
    for route in told["routes"]:
        for pick in route["indexed"]:
            assert ratios[pick["layer"]] == 4
            rows = pick["rows"]
            assert rows == sorted(set(rows))
            assert all(4 * row + 3 <= route["position"] for row in rows)
            assert len(pick["scores"]) in (0, len(rows))
            chosen += len(pick["scores"]) > 0
    assert chosen > 0


@pytest.mark.parametrize("precision", ["bf16", "q8"])
def test_every_precision_runs(mk: Mk, precision: str) -> None:
    answer = json.loads(
        mk("run", "-m", mk.model, "--precision", precision, "--json", "-n", "20", "one day")
    )
    assert len(answer["ids"]) == 20
    assert answer["trust"]["precision"] == precision


def test_the_model_may_limit_the_context(mk: Mk, tmp_path: Path) -> None:
    path = str(tmp_path / "short.bin")
    mk("build", "--arch", "dsv4", "--preset", "tiny", "--set", "max_seq_len=20", "--out", path)
    mk("run", "-m", path, "--ids", "1,2,3", "-n", "17")
    assert mk("run", "-m", path, "--ids", "1,2,3", "-n", "18", code=1) == ""


def test_the_bench_measures_it(mk: Mk) -> None:
    report = json.loads(
        mk("bench", mk.model, "--quick", "--json", "--precision", "exact", "--threads", "1")
    )
    text = json.dumps(report)
    assert "decode" in text and "prefill" in text
