"""`utility`, exact ablation and `drop` with known answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nano.graft.ablation import Change, measure
from nano.graft.activations import choose_rows, collect
from nano.graft.checkpoint import open_checkpoint
from nano.graft.cli import main
from nano.graft.drop import drop_experts, read_keep, remap_table
from nano.graft.errors import GraftError
from nano.graft.functions import Ablation
from nano.graft.redundancy import clusters, redundancy
from nano.graft.runner import open_runner
from nano.graft.texts import ByteCodec, Corpus, Piece, Tokens, read_corpus
from nano.graft.utility import expert_table, install, one_pass, sample_experts
from nano.tests import graft_models as models

pytest.importorskip("transformers", reason="the oracle of these tests is not installed")

EXPERTS = ("qwen3_5_moe", "kimi_k3", "mkim_k3", "deepseek_v4", "mkim_dsv4")


def corpus(tmp_path: Path, count: int = 12) -> Corpus:
    return read_corpus(models.texts(tmp_path / "t.jsonl", count), [ByteCodec()], 100_000, 128)


def edited(path: Path, out: Path, layer: int, change: Any) -> Path:
    """A copy whose experts of one layer `change` alters through the view."""
    from nano.graft.write import Writer

    with open_checkpoint(path) as source:
        change(source.layers[layer].ffn)
        Writer(source, out).commit()
    return out


@pytest.mark.parametrize("kind", EXPERTS)
def test_shares_of_the_mixture_sum_to_one(kind: str, tmp_path: Path) -> None:
    with open_checkpoint(models.make(kind, tmp_path)) as source:
        runner = open_runner(source)
        layers = [i for i in range(source.cfg.n_layers) if source.layers[i].ffn.experts]
        text = corpus(tmp_path)
        sums = one_pass(runner, text, install(runner, layers))
        tokens = sum(len(p.tokens[0].ids) for p in text.pieces)
        for s in sums.values():
            rows = expert_table(s)
            assert sum(r["projection"] for r in rows) == pytest.approx(1, abs=1e-6)
            assert sum(r["load"] for r in rows) == pytest.approx(1)
            assert s.calls.sum() == tokens * source.cfg.top_k
            assert s.histogram is not None and s.histogram.sum() == s.calls.sum()
            assert all(r["g2"] > 0 for r in rows)


@pytest.mark.parametrize("kind", ["qwen3_5_moe", "mkim_k3"])
def test_an_expert_that_gives_nothing(kind: str, tmp_path: Path) -> None:
    out = tmp_path / ("z.bin" if kind == "mkim_k3" else "z")
    path = edited(models.make(kind, tmp_path / "m"), out, 2,
                  lambda ffn: ffn.experts[1].set(down=np.zeros(ffn.experts[1].down.shape,
                                                               np.float32)))
    with open_checkpoint(path) as source:
        runner = open_runner(source)
        modules = install(runner, [2])
        text = corpus(tmp_path)
        row = expert_table(one_pass(runner, text, modules)[2])[1]
        assert row["load"] > 0
        for column in ("energy", "projection", "effect", "g1", "g2", "taylor"):
            assert row[column] == 0
        delta, _, _ = measure(runner, text, modules, [Change(2, (1,))], "drop")
        assert not delta.any()


def test_second_order_equals_exact_for_small_experts(tmp_path: Path) -> None:
    """In f64 (the library computes norms and softmax in f32), an expert of a thousandth."""
    def shrink(ffn: Any) -> None:
        ffn.experts[2].set(down=ffn.experts[2].down.read() * np.float32(2.0**-10))

    path = edited(models.make("mkim_k3", tmp_path / "m"), tmp_path / "s.bin", 2, shrink)
    with open_checkpoint(path) as source:
        runner = open_runner(source, dtype=torch.float64)
        modules = install(runner, [2])
        text = corpus(tmp_path, 6)
        row = expert_table(one_pass(runner, text, modules)[2])[2]
        delta, _, _ = measure(runner, text, modules, [Change(2, (2,))], "drop")
    assert abs(delta.sum()) > 1e-7
    assert row["taylor"] == pytest.approx(delta.sum(), rel=0.01)


def twins(state: dict[str, torch.Tensor]) -> None:
    """Experts 0 and 1 are one function; half of the tokens want it, and differ in which copy."""
    g = torch.Generator().manual_seed(1)
    for name in list(state):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")) and ".layers.1." in name:
            state[name][1] = state[name][0]
            if name.endswith("down_proj"):
                state[name][:2] *= 8
        if name.endswith("layers.1.mlp.gate.weight"):
            v, d = (torch.randn(state[name].shape[1], generator=g) for _ in range(2))
            state[name] *= 0.01
            state[name][0], state[name][1] = v + 0.1 * d, v - 0.1 * d


@torch.no_grad()
def written_by(runner: Any, docs: int, length: int) -> Corpus:
    """Texts drawn from the model itself: nothing predicts them better than the model."""
    g = torch.Generator().manual_seed(0)
    ids = torch.full((docs, 1), 10)
    for _ in range(length):
        p = (1.5 * runner.head(runner.trunk(ids)[:, -1])).softmax(dim=-1)
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=g)], dim=1)
    pieces = [Piece(i, length, [Tokens(row, [0, *range(1, length + 1)], True)])
              for i, row in enumerate(ids.tolist())]
    return Corpus([ByteCodec()], pieces, docs, "", np.zeros(docs, bool))


def test_two_copies_of_an_expert(tmp_path: Path) -> None:
    base = models.save_raw("qwen3_5_moe", tmp_path / "a")
    path = models.rewrite(base, tmp_path / "b", twins)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_experts_per_tok": 1}))
    with open_checkpoint(path) as source:
        runner = open_runner(source)
        text = written_by(runner, 24, 40)
        modules = install(runner, [1])
        site = (1, "ffn_in_gained")
        x = collect(runner, text, 0, choose_rows(text), [site])[site]
        found = redundancy(modules[1], torch.from_numpy(x), None)
        assert found["substitutes"][0]["expert"] == 1
        assert found["substitutes"][0]["r2"] == pytest.approx(1, abs=1e-9)
        assert [0, 1] in found["clusters"]
        changes = [Change(1, (0,)), Change(1, (1,)), Change(1, (0, 1)),
                   Change(1, redirect=((0, 1),)), Change(1, redirect=((1, 0),))]
        delta, _, tokens = measure(runner, text, modules, changes, "reroute")
        one, two, both, swapped, back = delta.sum(axis=1) / tokens.sum()
    assert abs(swapped) < 1e-6 and abs(back) < 1e-6
    assert both - one - two > 0.05  # where the next best is the copy, leaving one out costs nothing
    assert max(abs(one), abs(two)) < both / 2


@pytest.mark.parametrize("kind", ["qwen3_5_moe", "mkim_k3", "deepseek_v4"])
@torch.no_grad()
def test_ablation_of_a_tail_equals_the_whole_model(kind: str, tmp_path: Path) -> None:
    """Layers before the changed one are not run again; the loss is that of a full forward pass."""
    text = corpus(tmp_path, 4)
    with open_checkpoint(models.make(kind, tmp_path / "m")) as source:
        runner = open_runner(source)
        layers = [i for i in range(source.cfg.n_layers) if source.layers[i].ffn.experts]
        modules = install(runner, layers)
        changes = [Change(i, (e,)) for i in layers for e in (0, 1)]
        delta, base, _ = measure(runner, text, modules, changes, "reroute")
        assert delta.any(axis=1).sum() >= len(changes) - 2
        for change, d in zip(changes, delta, strict=True):
            modules[change.layer].ablation = Ablation(set(change.banned))
            ids = text.pieces[0].tokens[0].ids
            hidden = runner.trunk(torch.tensor([ids]))
            modules[change.layer].ablation = None
            nats = float(runner.token_nats(hidden[0, :-1], torch.tensor(ids[1:])).sum())
            assert nats == pytest.approx(base[0] + d[0], rel=1e-6)


@pytest.mark.parametrize("kind", EXPERTS)
@torch.no_grad()
def test_dropping_experts_is_leaving_them_out_of_the_choice(kind: str, tmp_path: Path) -> None:
    path = models.make(kind, tmp_path / "m")
    out = tmp_path / ("d.bin" if path.is_file() else "d")
    ids = models.token_ids()
    with open_checkpoint(path) as source:
        n = source.cfg.n_experts
        rng = np.random.default_rng(0)
        keep = {i: sorted(rng.permutation(n)[: n - 2].tolist()) for i in range(source.cfg.n_layers)
                if source.layers[i].ffn.experts}
        drop_experts(source, keep, out)
        runner = open_runner(source)
        modules = install(runner, list(keep))
        for i, m in modules.items():
            m.ablation = Ablation(set(range(n)) - set(keep[i]))
            if m.table is not None:
                table = remap_table(m.table.numpy(), m.gate.numpy(), keep[i])
                m.table = torch.from_numpy(np.array(keep[i])[table])
                m.ablation = None
        want = runner.logits(ids)
        kept = source.layers[max(keep)].ffn.experts[keep[max(keep)][0]].up.read()
    with open_checkpoint(out) as smaller:
        assert smaller.cfg.n_experts == n - 2 and smaller.cfg.top_k == min(source.cfg.top_k, n - 2)
        assert np.array_equal(smaller.layers[max(keep)].ffn.experts[0].up.read(), kept)
        got = open_runner(smaller).logits(ids)
    assert float((got - want).abs().max()) < 1e-5 * float(want.abs().max())
    if kind == "qwen3_5_moe":
        import transformers

        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            out, attn_implementation="eager", dtype=torch.float32)(ids).logits
        assert float((got - theirs).abs().max()) < 1e-5 * float(want.abs().max())


def test_dropping_from_fused_stacks(tmp_path: Path) -> None:
    path = models.save_raw("qwen3_5_moe", tmp_path / "m")
    with open_checkpoint(path) as source:
        drop_experts(source, {i: [0, 2, 4] for i in range(4)}, tmp_path / "d")
    state = load_file(tmp_path / "d" / "model.safetensors")
    before = load_file(path / "model.safetensors")
    name = "model.layers.2.mlp.experts.gate_up_proj"
    assert torch.equal(state[name], before[name][[0, 2, 4]])
    with open_checkpoint(tmp_path / "d") as smaller:
        assert smaller.cfg.n_experts == 3


def test_tables_of_token_ids_after_a_drop() -> None:
    gate = np.array([[1.0, 0], [0.9, 0.1], [0, 1], [0.1, 0.9]])
    table = np.array([[0, 2], [1, 3], [3, 2], [0, 1]])
    # Kept 1, 2 (new 0, 1): 0 becomes 1, 3 becomes 2, unless they stand in the row already.
    assert remap_table(table, gate, [1, 2]).tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
    assert remap_table(table, gate, [2]).tolist() == [[0], [0], [0], [0]]


@pytest.mark.parametrize(("keep", "message"), [
    ({"0": [0, 1]}, "lists layers"), ({str(i): [0, 9] for i in range(4)}, "distinct"),
    ({**{str(i): [0, 1] for i in range(3)}, "3": [0]}, "the same number"),
    ({str(i): [] for i in range(4)}, "the same number"), ({"a": 1}, "must be"),
])
def test_keep_lists_are_checked(keep: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "k.json").write_text(json.dumps(keep))
    with open_checkpoint(models.make("qwen3_5_moe", tmp_path)) as source, pytest.raises(
            GraftError, match=message):
        read_keep(tmp_path / "k.json", source)


def test_samples_for_exact_ablation() -> None:
    tables = {i: [{"taylor": float(i * 100 + e)} for e in range(100)] for i in range(4)}
    picked = sample_experts(tables, 40, 0)
    assert len(picked) == 50 and {(0, e) for e in range(20)} <= set(picked)
    assert {(3, e) for e in range(80, 100)} <= set(picked)
    assert len(sample_experts(tables, None, 0)) == 400
    assert len(sample_experts({0: tables[0]}, 40, 0)) == 100


def test_clusters_by_average_linkage() -> None:
    s = np.array([[1, 0.9, 0.75, 0], [0.9, 1, 0.95, 0], [0.75, 0.95, 1, 0], [0, 0, 0, 1.0]])
    assert clusters(s) == [[0, 1, 2]]  # 1 and 2 first; 0 with them has mean (.9 + .75) / 2
    assert clusters(s, 0.84) == [[1, 2]]


def test_reports_repeat(tmp_path: Path) -> None:
    """Same inputs and seed: the same bytes but for the time it took."""
    path = models.make("mkim_k3", tmp_path)
    texts = models.texts(tmp_path / "t.jsonl", 12)
    reports = []
    for out in ("one", "two"):
        args = ["utility", str(path), "--texts", str(texts), "--tokenizer", "bytes", "--out",
                str(tmp_path / out), "--keep", "3", "--pairs", "--layers", "1,3"]
        assert main(args) == 0
        report = json.loads((tmp_path / out / "report.json").read_text())
        del report["seconds"]
        reports.append(report)
    assert reports[0] == reports[1]
    for name in ("experts.csv", "keep-3.json", "report.md", "mass.png"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    rows = (tmp_path / "one" / "experts.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 6
    pairs = reports[0]["results"]["pairs"]
    assert pairs and pairs[0]["interaction"] == pytest.approx(
        pairs[0]["both"] - sum(pairs[0]["delta"]))
