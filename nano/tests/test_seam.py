"""Seam adapter: where it acts, its exact fold at zero and the refusal of a trained one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from nano import checkpoint, heal, merge, seam
from nano.lora import LoraSpec
from nano.mkim import MkimError, MkimFile
from nano.mkim_writer import MkimWriter, Spec
from nano.packed import load_packed
from nano.seam import SeamError, SeamSpec
from nano.tests.healing import heal_args, loaded, tokens

CPU = torch.device("cpu")


def adapted(path: Path, spec: SeamSpec, scale: float) -> tuple[torch.nn.Module, dict]:
    model = load_packed(path).eval()
    parts = seam.attach(model, spec, CPU, seed=4)
    generator = torch.Generator().manual_seed(8)
    parts[seam.B].data.normal_(0, scale, generator=generator)
    return model, parts


# The model has blocks of three layers: layer 3 starts a block, layer 2 does not.
@pytest.mark.parametrize("after", [1, 2])
def test_it_acts_on_the_sum_that_leaves_the_layer(heal_base: Path, after: int) -> None:
    """Against a layer loop written out here, on and off a block boundary."""
    model, parts = adapted(heal_base, SeamSpec(3, after), 0.5)
    a, b = parts[seam.A].detach(), parts[seam.B].detach()
    plain = loaded(heal_base)
    ids = tokens(280, 20)
    with torch.no_grad():
        h = plain.embed_tokens.weight[ids]
        blocks: list[torch.Tensor] = []
        from nano.model import Documents, ForwardOptions, mix, rms

        for index, layer in enumerate(plain.layers):
            out = layer(h, blocks, Documents.of(None, 4, h.dtype), ForwardOptions())
            if index % 3 == 0:
                blocks = [*blocks, h]
            h = out
            if index == after:
                h = h + (h @ a.T) @ b.T
        eps = plain.config.rms_eps
        y = mix([*blocks, h], plain.output_attn_res_norm.weight,
                plain.output_attn_res_proj.weight, eps)
        expected = rms(y, plain.norm.weight, eps) @ plain.lm_head.weight.T
        found = model(ids)
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
        assert (found - plain(ids)).abs().max() > 1e-2 * expected.abs().max()


def test_it_is_the_identity_at_the_start(heal_base: Path) -> None:
    model = load_packed(heal_base).eval()
    seam.attach(model, SeamSpec(4, 0), CPU, seed=1)
    with torch.no_grad():
        ids = tokens(280)
        assert torch.equal(model(ids), load_packed(heal_base).eval()(ids))


def test_fold_is_exact_algebra_and_exact_at_zero() -> None:
    rng = torch.Generator().manual_seed(1)
    w, a, b = (torch.randn(s, generator=rng) for s in ((7, 5), (2, 5), (5, 2)))
    h = torch.randn(5, generator=rng, dtype=torch.float64)
    corrected = h + b.double() @ (a.double() @ h)
    assert torch.allclose(seam.fold(w, a, b) @ h, w.double() @ corrected, atol=1e-12)
    assert torch.equal(seam.fold(w, a, torch.zeros_like(b)).float(), w)


@pytest.mark.parametrize("layer", [2, 3])
def test_fold_covers_every_direct_reader(heal_base: Path, layer: int) -> None:
    """Every attention matrix of the next layer whose inputs are the hidden width, and no other."""
    with MkimFile(heal_base) as f:
        d = f.k3().hidden
        expected = {
            n for n, e in f.entries.items()
            if n.startswith(f"layers.{layer}.self_attn.") and e.dims[1:] == (d,)
        }
        assert set(seam.readers(f.k3(), SeamSpec(1, layer - 1))) == expected


@pytest.mark.parametrize(("rank", "after"), [(0, 1), (4, 4), (4, -1), (4, 99)])
def test_bad_places_are_refused(heal_base: Path, rank: int, after: int) -> None:
    with pytest.raises(SeamError):
        seam.attach(load_packed(heal_base), SeamSpec(rank, after), CPU, seed=1)


def healed(base: Path, data: Path, run: Path, *more: str) -> None:
    args = heal_args(base, data, run, "--seam-adapter", "2", "--seam-after", "2", *more)
    assert heal.main(args) == 0


def test_untrained_seam_merges_to_the_same_bytes(
    heal_base: Path, heal_data: Path, tmp_path: Path
) -> None:
    config = heal.HealConfig(LoraSpec(), SeamSpec(4, 2), batch=2, seq=64, steps=1)
    heal.Healer(heal_base, heal.open_shards(heal_data), config).save(tmp_path / "run", 1)
    report = merge.merge(tmp_path / "run", heal_base, tmp_path / "m.bin")
    assert not report["seam_folded"]
    assert (tmp_path / "m.bin").read_bytes() == heal_base.read_bytes()


def test_trained_seam_is_refused_without_force(
    heal_base: Path, heal_data: Path, tmp_path: Path, capsys
) -> None:
    run, out = tmp_path / "run", tmp_path / "m.bin"
    healed(heal_base, heal_data, run, "--steps", "3")
    args = ["--ckpt", str(run), "--bin", str(heal_base), "--out", str(out)]
    assert merge.main(args) == 65
    assert "--force-seam-fold" in capsys.readouterr().err
    assert not out.exists()
    report = tmp_path / "r.json"
    assert merge.main([*args, "--force-seam-fold", "--json", str(report)]) == 0
    assert "logits differ by up to" in capsys.readouterr().err
    result = json.loads(report.read_text())
    assert 0 < result["logit_error"] < 0.5 * result["logit_span"]
    # Folded on top of the adapters, one rounding.
    values = checkpoint.open_checkpoint(run).model()
    name = "layers.3.self_attn.q_a_proj.weight"
    with MkimFile(heal_base) as f, MkimFile(out) as g:
        a, b = (values[f"{name}.lora_{x}"].double().numpy() for x in "AB")
        sa, sb = (values[x].double().numpy() for x in (seam.A, seam.B))
        w = f.read(name).astype(np.float64) + b @ a
        expected = (w @ (np.eye(96) + sb @ sa)).astype(np.float32)
        assert np.abs(g.read(name) - expected).max() <= 1e-7 * np.abs(expected).max()


def test_seam_can_join_and_leave_a_run(
    heal_base: Path, heal_data: Path, tmp_path: Path, capsys
) -> None:
    run = tmp_path / "run"
    assert heal.main(heal_args(heal_base, heal_data, run, "--steps", "2")) == 0
    healed(heal_base, heal_data, run, "--steps", "4", "--resume")
    assert "starts at zero" in capsys.readouterr().err
    first = checkpoint.open_checkpoint(run)
    assert float(first.model()[seam.B].abs().max()) > 0
    steps = {n: float(t) for n, t in first.optim().items() if n.endswith("|step")}
    assert steps[f"{seam.A}|step"] == 2
    assert steps["layers.0.self_attn.q_proj.weight.lora_A|step"] == 4
    assert heal.main(heal_args(heal_base, heal_data, run, "--steps", "5", "--resume")) == 0
    assert "is dropped" in capsys.readouterr().err
    assert seam.A not in checkpoint.open_checkpoint(run).model()
    assert merge.main(["--ckpt", str(run), "--bin", str(heal_base), "--out",
                       str(tmp_path / "m.bin")]) == 0


def test_a_file_with_a_seam_of_its_own_is_not_read_without_it(
    heal_base: Path, tmp_path: Path
) -> None:
    path = tmp_path / "seam.bin"
    with MkimFile(heal_base) as f:
        config = {**f.config, "seam": [{"after": 1, "rank": 1}]}
        specs = [Spec(e.name, e.dtype, e.dims) for e in f.entries.values()]
        with MkimWriter(path, config, specs, model_checks=False) as writer:
            for name in f.entries:
                writer.write_blob(name, f.read_blob(name))
            writer.commit()
    with pytest.raises(MkimError, match="seam"):
        load_packed(path)
