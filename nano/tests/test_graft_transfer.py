"""`transfer` with known answers: what was rotated, permuted or damaged comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nano.graft.checkpoint import open_checkpoint
from nano.graft.cli import main
from nano.graft.errors import GraftError
from nano.graft.runner import open_runner
from nano.graft.sites import Site
from nano.graft.texts import ByteCodec, read_corpus
from nano.graft.transfer import Options, Plan, Step, read_plan, transfer
from nano.graft.write import Writer
from nano.tests import graft_models as models

pytest.importorskip("transformers", reason="the oracle of these tests is not installed")

DAMAGED = (0, 2)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.texts(tmp_path_factory.mktemp("texts") / "t.jsonl", 24)


def damage(state: dict[str, torch.Tensor]) -> None:
    g = torch.Generator().manual_seed(99)
    for name, t in state.items():
        if ".mlp." in name and int(name.split(".")[2]) in DAMAGED:
            state[name] = torch.randn(t.shape, generator=g) * t.shape[1] ** -0.5


def plan_file(path: Path, *sites: tuple[int, str, int, str], **more: Any) -> Path:
    path.write_text(json.dumps({"sites": [
        {"from": {"layer": a, "ffn": f}, "to": {"layer": b, "ffn": g}} for a, f, b, g in sites],
        **more}))
    return path


@pytest.mark.parametrize("permute", [False, True])
@torch.no_grad()
def test_a_rotated_copy_heals_the_original(permute: bool, tmp_path: Path, texts: Path) -> None:
    whole = models.save_library("llama", tmp_path / "whole")
    turned = models.rewrite(whole, tmp_path / "turned", lambda s: models.rotate(s, permute))
    broken = models.rewrite(whole, tmp_path / "broken", damage)
    plan = plan_file(tmp_path / "plan.json", *((i, "dense", i, "dense") for i in DAMAGED))
    out = tmp_path / "healed"
    assert main(["transfer", str(turned), str(broken), "--plan", str(plan), "--texts", str(texts),
                 "--tokenizer", "bytes", "--seq", "128", "--out", str(tmp_path / "report"),
                 "--write", str(out)]) == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert all(s["exact"] and s["after"]["r2"] > 0.999999 for s in report["results"]["sites"])
    assert report["results"]["sites"][0]["r2_before"] < 0.5
    ids = models.token_ids()
    with open_checkpoint(whole) as a, open_checkpoint(out) as b:
        if not permute:
            for i in DAMAGED:
                for part in ("gate", "up", "down"):
                    x, y = (c.value(f"layers.{i}.mlp.{part}_proj.weight") for c in (a, b))
                    assert np.abs(x - y).max() < 1e-4 * np.abs(x).max(), (i, part)
        x, y = open_runner(a).logits(ids), open_runner(b).logits(ids)
    assert float((x - y).abs().max()) < 1e-4 * float(x.abs().max())
    assert json.loads((out / "graft.json").read_text())["tool"] == "transfer"


def test_fits_say_how_much_text_they_need(tmp_path: Path, texts: Path) -> None:
    a = models.save_library("llama", tmp_path / "a")
    b = models.save_library("qwen2", tmp_path / "b", 1)
    plan = plan_file(tmp_path / "p.json", (0, "dense", 0, "dense"))
    with open_checkpoint(a) as x, open_checkpoint(b) as y:
        few = read_corpus(texts, [ByteCodec()] * 2, 300, 128)
        with pytest.raises(GraftError, match=r"needs 800 rows, there are .* times the text"):
            transfer(x, y, few, read_plan(plan, x, y), Options(score=False))


def test_a_site_below_the_gate_stays_as_it_was(tmp_path: Path, texts: Path) -> None:
    a = models.save_library("llama", tmp_path / "a")
    b = models.save_library("qwen2", tmp_path / "b", 1)
    plan = plan_file(tmp_path / "p.json", (1, "dense", 1, "dense"))
    args = ["transfer", str(a), str(b), "--plan", str(plan), "--texts", str(texts), "--tokenizer",
            "bytes", "--seq", "128", "--out", str(tmp_path / "r"), "--min-r2", "0.9999",
            "--no-score"]
    assert main([*args, "--write", str(tmp_path / "w")]) == 3
    assert not (tmp_path / "w").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "p.json", "r"]
    (site,) = json.loads((tmp_path / "r" / "report.json").read_text())["results"]["sites"]
    assert not site["grafted"] and site["after"]["r2"] > site["r2_before"]


def test_blend_keeps_part_of_the_target(tmp_path: Path, texts: Path) -> None:
    """Half of the donor and half of the target's own: what was wanted lies between."""
    whole = models.save_library("llama", tmp_path / "whole")
    other = models.rewrite(whole, tmp_path / "other", damage)
    with open_checkpoint(whole) as a, open_checkpoint(other) as b:
        corpus = read_corpus(texts, [ByteCodec()] * 2, 10_000, 128)
        step = Step(Site(0, "dense"), Site(0, "dense"), intent="blend", blend=0.5)
        r = transfer(a, b, corpus, Plan([step]), Options(score=False, min_r2=-9))
        (site,) = r["sites"]
        assert 0.05 < site["after"]["r2"] < 1 and not site["exact"]
    with open_checkpoint(whole) as a, open_checkpoint(other) as b:
        step = Step(Site(0, "dense"), Site(0, "dense"), intent="residual")
        r = transfer(a, b, corpus, Plan([step]), Options(score=False))
        assert r["sites"][0]["after"]["r2"] > 0.9999


def test_mixture_of_experts_into_a_dense_layer(tmp_path: Path, texts: Path) -> None:
    a = models.save_library("qwen3_5_moe", tmp_path / "a")
    b = models.save_library("llama", tmp_path / "b", 1)
    plan = plan_file(tmp_path / "p.json", (1, "mixture", 1, "dense"))
    with open_checkpoint(a) as x, open_checkpoint(b) as y:
        corpus = read_corpus(texts, [ByteCodec()] * 2, 10_000, 128)
        r = transfer(x, y, corpus, read_plan(plan, x, y), Options(score=False, min_r2=-9))
    (site,) = r["sites"]
    assert site["after"]["r2"] > max(site["r2_before"], site["r2_zero"])
    assert site["refit_lambda"] is not None


def test_experts_behind_a_latent(tmp_path: Path) -> None:
    """Dense donor into a routed expert of K3: only its rows count, MXFP4 is what is written."""
    a = models.save_library("llama", tmp_path / "a")
    b = models.mkim_k3(tmp_path / "b.bin", 1, moe_inter=32)
    plan = plan_file(tmp_path / "p.json", (1, "dense", 2, "expert:3"), (1, "dense", 2, "shared:0"))
    text = models.texts(tmp_path / "more.jsonl", 60)
    with open_checkpoint(a) as x, open_checkpoint(b) as y:
        corpus = read_corpus(text, [ByteCodec()] * 2, 10_000, 128)
        r = transfer(x, y, corpus, read_plan(plan, x, y), Options(score=False, min_r2=-9))
        expert, shared = r["sites"]
        assert expert["rows"] < shared["rows"]
        assert expert["r2_after_mxfp4"] <= expert["r2_before_mxfp4"] + 0.05
        assert expert["after"]["r2"] > expert["r2_before"]
        staged = y.layers[2].ffn.experts[3].read()
        Writer(y, tmp_path / "c.bin").commit({})
    with open_checkpoint(tmp_path / "c.bin") as again:
        for want, got in zip(staged, again.layers[2].ffn.experts[3].read(), strict=True):
            assert np.array_equal(want, got)


def test_gemma_keeps_its_size(tmp_path: Path, texts: Path) -> None:
    a = models.save_library("llama", tmp_path / "a")
    b = models.save_library("gemma3", tmp_path / "b", 1)
    plan = plan_file(tmp_path / "p.json", (1, "dense", 1, "dense"))
    results = []
    for fit_gain in (False, True):
        with open_checkpoint(a) as x, open_checkpoint(b) as y:
            corpus = read_corpus(texts, [ByteCodec()] * 2, 10_000, 128)
            r = transfer(x, y, corpus, read_plan(plan, x, y),
                         Options(score=False, min_r2=-9, fit_gain=fit_gain))
            results.append(r["sites"][0])
    for site in results:
        assert site["after"]["r2"] > site["r2_before"]
        assert 0 <= site["lost_to_fixed_size"] < 1
    assert results[1]["after"]["r2"] > results[0]["after"]["r2"] - 0.05


@pytest.mark.parametrize(("raw", "message"), [
    ({}, "lacks the list sites"), ({"sites": [3]}, "must be an object"),
    ({"sites": [{"from": {"layer": 9}, "to": {"layer": 0}}]}, "no layer 9"),
    ({"sites": [{"from": {"layer": 0}, "to": {"layer": 0, "ffn": "expert:1"}}]}, "has no part"),
    ({"sites": [{"from": {"layer": 0}, "to": {"layer": 0}, "linear": "magic"}]}, "linear is one"),
    ({"sites": [{"from": {"layer": 0}, "to": {"layer": 0}, "blend": 2}]}, "blend"),
    ({"sites": [{"from": {"layer": 0}, "to": {"layer": 0}}], "order": "odd"}, "order is"),
])
def test_plans_are_checked(raw: Any, message: str, tmp_path: Path) -> None:
    path = models.save_library("llama", tmp_path / "m")
    (tmp_path / "p.json").write_text(json.dumps(raw))
    with open_checkpoint(path) as source, pytest.raises(GraftError, match=message):
        read_plan(tmp_path / "p.json", source, source)
