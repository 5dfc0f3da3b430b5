"""The table of docs/graft.md: every family through every instrument, by the command line.

A model is compared with a copy whose feed-forward parts were damaged in one layer; `transfer` heals
the copy.  Reading and writing are in test_graft_checkpoint.py, for the same list of families.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nano.graft.checkpoint import open_checkpoint
from nano.graft.cli import main
from nano.graft.write import Writer
from nano.tests import graft_models as models

pytest.importorskip("transformers", reason="the oracle of these tests is not installed")

LAYER = 2
ROOT = Path(__file__).parents[2]


def damaged(path: Path, out: Path) -> Path:
    """A copy whose shared expert or dense part in one layer is random."""
    rng = np.random.default_rng(4)
    with open_checkpoint(path) as source:
        ffn = source.layers[LAYER].ffn
        mlp = ffn.dense or ffn.shared[0]
        for m in (mlp.gate, mlp.up, mlp.down):
            values = m.read()
            m.set(rng.standard_normal(values.shape).astype(np.float32) * values.std())
        Writer(source, out).commit()
    return out


def results(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text())["results"]


@pytest.mark.parametrize("kind", models.FAMILIES)
def test_every_instrument(kind: str, tmp_path: Path) -> None:
    model = models.make(kind, tmp_path / "m")
    other = damaged(model, tmp_path / ("d.bin" if model.is_file() else "d"))
    texts = models.texts(tmp_path / "t.jsonl", 32)
    common = ["--texts", str(texts), "--tokenizer", "bytes", "--seq", "128"]
    with open_checkpoint(model) as source:
        dense = source.layers[LAYER].ffn.kind == "dense"
    part = "dense" if dense else "shared:0"

    assert main(["scan", str(model), str(other), *common, "--out", str(tmp_path / "scan")]) == 0
    pairs = results(tmp_path / "scan")["pairs"]
    assert results(tmp_path / "scan")["verdict"] != "rotated copy"
    assert pairs[0]["procrustes_residual"] < 1e-6 and pairs[0]["a_to_b"]["r2"] > 0.999

    code = main(["utility", f"{model}#layers={LAYER}", *common, "--out", str(tmp_path / "u"),
                 "--tokens", "400", "--exact", "2"])
    assert code == (65 if dense else 0)  # a dense family has no experts to weigh, and is told so
    if not dense:
        (layer,) = results(tmp_path / "u")["layers"].values()
        assert layer["projection_sum"] == pytest.approx(1, abs=1e-5)

    assert main(["paired", str(other), str(model), *common, "--out", str(tmp_path / "p")]) == 0
    before = results(tmp_path / "p")["bits_per_byte"]
    assert before["estimate"] != 0 and before["interval"][0] < before["estimate"]

    plan = {"sites": [{"from": {"layer": LAYER, "ffn": part}, "to": {"layer": LAYER, "ffn": part}}]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    healed = tmp_path / ("h.bin" if model.is_file() else "h")
    assert main(["transfer", str(model), str(other), *common, "--plan",
                 str(tmp_path / "plan.json"), "--out", str(tmp_path / "t"), "--write",
                 str(healed), "--no-score"]) == 0
    (site,) = results(tmp_path / "t")["sites"]
    # Behind Gemma's norm only directions can be met, and those are fitted, not composed.
    assert site["after"]["r2"] > (0.95 if kind == "gemma3" else 0.99) > site["r2_before"]
    assert main(["paired", str(model), str(healed), *common, "--out", str(tmp_path / "q")]) == 0
    assert abs(results(tmp_path / "q")["bits_per_byte"]["estimate"]) < max(
        0.02, 0.2 * abs(before["estimate"]))


def test_the_documented_table_has_all_families() -> None:
    text = (ROOT / "docs" / "graft.md").read_text()
    for kind in models.FAMILIES:
        assert f"| `{kind}` |" in text, kind
