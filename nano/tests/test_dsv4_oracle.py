"""A certified random model: its golden, and deliberate mistakes that the golden must catch.

`--slow` runs the whole table of mistakes; the quick ones are those that show within a few tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from nano.dsv4 import mutations
from nano.dsv4.config import Dsv4Config
from nano.dsv4.decode import run
from nano.dsv4.golden import TOP, Record, disagreement
from nano.dsv4.golden_check import Golden
from nano.dsv4.random_model import RECIPES, as_model, random_state, token_ids, write_model
from nano.files import sha256_of
from nano.mkim import MkimError

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "golden" / "dsv4" / "a"
QUICK = [
    "no inverse rotation of the output", "rotation of half-split pairs", "one theta for all layers",
    "no YaRN", "compressed row rotated like the last token of its group",
    "halves of the overlap swapped", "group before never carried over",
    "one weight per pooled token, not per channel", "no FP8 rounding of rows",
    "stream mixing transposed", "Sinkhorn without eps", "Sinkhorn with 19 passes", "sink ignored",
    "output groups interleaved", "router bias ignored", "weights from biased scores",
    "shared expert not clamped", "clamp behind silu", "hashed layer routed by score",
    "eps of the norms ten times too large",
]


@pytest.fixture(scope="module")
def golden() -> Golden:
    return Golden.load(FOLDER)


def test_the_sequence_form_meets_the_golden_at_every_recorded_position(golden: Golden) -> None:
    """f64, all 300 tokens at once: states, sublayer outputs, logits, every selection."""
    seen: dict[tuple[int, str], Any] = {}
    ids = golden.config["tokens"]
    with torch.no_grad():
        logits = golden.model(torch.tensor([ids]), None,
                              lambda layer, name, v: seen.__setitem__((layer, name), v[0]))[0]
    seen[golden.model.config.n_layers, "logits"] = logits
    checked = 0
    for (position, layer, name), expected in golden.states.items():
        if (layer, name) in seen and name != "idx.score":
            got = seen[layer, name][position].float()
            torch.testing.assert_close(got, expected, atol=golden.config["limit"], rtol=0)
            checked += 1
    assert checked >= 20 * (6 * 4 + 1)
    for (layer, name), rows in golden.selections.items():
        table = seen[layer, name]
        for position, expected in enumerate(rows):
            if name == "idx.sel":
                assert table[position].nonzero().flatten().tolist() == expected
            else:
                assert table[position].tolist() == expected
    recorded = golden.tops
    assert [set(t.topk(TOP).indices.tolist()) for t in logits] == [set(t) for t in recorded]


def test_the_model_file_can_be_made_again(tmp_path: Path, golden: Golden) -> None:
    recipe, seed = RECIPES["a"], golden.config["seed"]
    config = golden.model.config
    write_model(tmp_path / "model.bin", config, random_state(recipe, config, seed))
    assert sha256_of(tmp_path / "model.bin") == golden.config["model_sha256"]
    assert token_ids(recipe, config, seed) == golden.config["tokens"]


@pytest.mark.parametrize("name", QUICK)
def test_mistakes_are_caught(golden: Golden, name: str) -> None:
    assert golden.find_difference(mutations.MISTAKES[name]) is not None


@pytest.mark.slow
def test_every_mistake_is_caught_and_nothing_else(golden: Golden) -> None:
    assert golden.find_difference(names=None) is None
    rows = mutations.survey(golden, list(mutations.MISTAKES))
    assert [row for row in rows if not row["ok"]] == []
    assert {row["mistake"] for row in rows if not row["noticed"]} == set(mutations.INVISIBLE)


@pytest.mark.slow
def test_without_rounding(golden: Golden) -> None:
    assert Golden.load(FOLDER, "exact.bin").find_difference(names=None) is None


def test_certification_refuses_what_hangs_on_the_last_bits() -> None:
    """Two runs that differ in one selection or by more than the bound do not certify."""
    recipe = RECIPES["a"]
    config = Dsv4Config.from_json(recipe.config)
    model = as_model(config, random_state(recipe, config, 1)).double()
    ids = token_ids(recipe, config, 1)[:9]

    def record(change: float) -> Record:
        out = Record(config)

        def observe(layer: int, name: str, v: Any) -> None:
            if (layer, name) == (0, "attn.mix.m"):
                out.values.append({})
            out.values[-1][layer, name] = v[0] + (change if name == "X" and layer == 3 else 0)

        run(model, ids, observe)
        return out

    assert disagreement(record(0.0), record(1e-6)) is None
    why = disagreement(record(0.0), record(6e-6))
    assert why is not None and "layer 3: X" in why
    other = record(0.0)
    other.values[5][2, "moe.sel"] = other.values[5][2, "moe.sel"].flip(0)
    why = disagreement(record(0.0), other)
    assert why is not None and "position 5, layer 2: moe.sel" in why


def test_a_golden_of_another_model_is_refused(tmp_path: Path) -> None:
    recipe = RECIPES["a"]
    config = Dsv4Config.from_json(recipe.config)
    write_model(tmp_path / "model.bin", config, random_state(recipe, config, 99))
    (tmp_path / "golden.bin").write_bytes((FOLDER / "golden.bin").read_bytes())
    with pytest.raises(MkimError, match="another model"):
        Golden.load(tmp_path)
    assert mutations.main([str(tmp_path)]) == 65
