"""Healing straight from a `.bin`: packed model, adapters, resume and merge."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from nano import checkpoint, heal, lora, merge
from nano.export import ExportOptions, export
from nano.export import main as export_main
from nano.lora import LoraError, LoraSpec, parse_layers
from nano.mkim import DType, MkimError, MkimFile
from nano.mkim_writer import MkimWriter, Spec
from nano.packed import PackedMoe, SpineWeight, load_packed, spine_weights
from nano.stream import write_stream
from nano.tests.healing import heal_args, loaded, tokens
from nano.tests.random_model import GOLDEN, save_checkpoint, tiny_model


def same_logits(path: Path) -> None:
    ids = tokens(loaded(path).config.vocab)
    with torch.no_grad():
        expected = loaded(path)(ids)
        found = load_packed(path, moe_chunk=3).eval()(ids)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_packed_model_equals_the_loaded_one(heal_base: Path) -> None:
    same_logits(heal_base)


@pytest.mark.parametrize("case", ["k3a", "k3b", "k3c"])
def test_packed_model_on_recorded_models(case: str) -> None:
    same_logits(GOLDEN / case / "model.bin")


def test_packed_model_reads_a_bf16_spine(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "run", tiny_model(12))
    export(path, tmp_path / "half.bin", ExportOptions(spine="bf16"))
    same_logits(tmp_path / "half.bin")


@pytest.mark.parametrize("kind", [DType.F32, DType.VQ1, DType.MXFP4SQ])
def test_packed_model_reads_other_expert_types(
    heal_base: Path, tmp_path: Path, kind: DType
) -> None:
    path = tmp_path / "other.bin"
    rng = np.random.default_rng(6)
    with MkimFile(heal_base) as f:
        specs = [Spec(e.name, kind if e.dtype == DType.MXFP4 else e.dtype, e.dims)
                 for e in f.entries.values()]
        specs.append(Spec("vq_codebook", DType.F32, (256, 16)))
        with MkimWriter(path, f.config, specs) as writer:
            for name, entry in writer.entries.items():
                if name == "vq_codebook":
                    writer.write(name, rng.standard_normal(entry.dims) * 0.1)
                elif entry.dtype == f.entries[name].dtype:
                    writer.write_blob(name, f.read_blob(name))
                elif kind == DType.F32:
                    writer.write(name, f.read(name))
                else:
                    blob = rng.integers(0, 256, entry.size, dtype=np.uint8)
                    if kind == DType.MXFP4SQ:
                        blob[-4:] = np.array([0.05], "<f4").view(np.uint8)
                    writer.write_blob(name, blob)
            writer.commit()
    same_logits(path)


def test_experts_stay_packed_and_the_spine_is_mapped(heal_base: Path) -> None:
    model = load_packed(heal_base)
    owned = sum(p.numel() for p in model.parameters())
    with MkimFile(heal_base) as f:
        spine = sum(e.elements for e in f.spine())
    assert owned < 0.1 * spine  # routers, decay rates and biases
    assert all(isinstance(moe, PackedMoe) for _, moe in model.moe_layers())
    # Views of the map: one storage of the file's size.
    storages = {w.base.untyped_storage().data_ptr() for w in spine_weights(model).values()}
    assert len(storages) == 1


def test_gradients_equal_those_of_dense_weights(heal_base: Path) -> None:
    """d loss / d A and B against the chain rule on the full matrix's gradient."""
    spec = LoraSpec(rank=3, alpha=6.0, targets=("attn", "g", "f", "shared", "latent", "dense"))
    model = load_packed(heal_base, moe_chunk=2).train()
    trainable = lora.attach(model, spec, seed=1)
    generator = torch.Generator().manual_seed(2)
    for name, p in trainable.items():
        if name.endswith(lora.B):
            p.data.normal_(0, 0.02, generator=generator)
    dense = loaded(heal_base).train()
    wanted = dict(dense.named_parameters())
    for name in {n.removesuffix(lora.A).removesuffix(lora.B) for n in trainable}:
        a, b = trainable[name + lora.A].detach(), trainable[name + lora.B].detach()
        wanted[name].data += 2.0 * b @ a
    ids = tokens(280, 40)
    for m in (model, dense):
        m.loss(ids[:, :-1], ids[:, 1:]).backward()
    names = {n.removesuffix(lora.A) for n in trainable if n.endswith(lora.A)}
    assert len(names) == 3 * 7 + 2 * 6 + 4 * 5 + 3  # KDA, MLA, MoE, dense
    for name in names:
        a, b = trainable[name + lora.A], trainable[name + lora.B]
        full = wanted[name].grad
        pairs = ((a.grad, 2 * b.detach().T @ full), (b.grad, 2 * full @ a.detach().T))
        for found, expected in pairs:
            assert (found - expected).abs().max() <= 1e-4 * expected.abs().max() + 1e-7, name


def test_adapter_is_the_identity_at_the_start(heal_base: Path) -> None:
    ids = tokens(280)
    with torch.no_grad():
        plain = load_packed(heal_base).eval()(ids)
        model = load_packed(heal_base).eval()
        lora.attach(model, LoraSpec(norms="all"), seed=1)
        assert torch.equal(model(ids), plain)


def test_targets_and_layers_choose_the_tensors(heal_base: Path) -> None:
    def names(**spec: object) -> set[str]:
        model = load_packed(heal_base)
        return set(lora.attach(model, LoraSpec(**spec), seed=1))

    q = names(targets=("q",), layers=(0, 3))
    assert q == {
        f"layers.{n}.weight{end}" for end in (lora.A, lora.B)
        for n in ("0.self_attn.q_proj", "3.self_attn.q_a_proj", "3.self_attn.q_b_proj")
    }
    final = names(targets=("o",), layers=(1,), norms="final")
    assert {"norm.weight", "output_attn_res_norm.weight"} == {n for n in final if "norm" in n}
    everything = names(norms="all")
    assert "layers.1.block_sparse_moe.routed_expert_norm.weight" in everything
    assert not any("experts." in n and "shared" not in n for n in everything)
    assert not any("gate.weight" in n or "f_a_proj" in n for n in everything)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"rank": 0}, "rank 0"), ({"targets": ("moe",)}, "choose from"),
        ({"targets": ()}, "choose from"), ({"layers": (5,)}, "layers 0..4"),
        ({"targets": ("dense",), "layers": (3,)}, "nothing would train"),
        ({"alpha": float("nan")}, "not an adapter"),
    ],
)
def test_bad_specs_are_refused(heal_base: Path, spec: dict, message: str) -> None:
    with pytest.raises(LoraError, match=message):
        lora.attach(load_packed(heal_base), LoraSpec(**spec), seed=1)


def test_layer_lists() -> None:
    assert parse_layers("19-21") == (19, 20, 21)
    assert parse_layers("3, 0,5-6") == (0, 3, 5, 6)
    for bad in ("", "a", "3-1", "1,,2", "0-99999999"):
        with pytest.raises(LoraError):
            parse_layers(bad)


def test_bf16_matrices_cannot_be_healed(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "run", tiny_model(13))
    export(path, tmp_path / "half.bin", ExportOptions(spine="bf16"))
    with pytest.raises(LoraError, match="--spine f32"):
        lora.attach(load_packed(tmp_path / "half.bin"), LoraSpec(), seed=1)


# -- the command ---------------------------------------------------------------------------------


def read_all(path: Path) -> dict[str, np.ndarray]:
    with MkimFile(path) as f:
        return {n: f.read(n) for n in f.entries}


def test_healing_lowers_the_loss_and_merges(
    heal_base: Path, heal_data: Path, tmp_path: Path
) -> None:
    run, report = tmp_path / "run", tmp_path / "r.json"
    args = heal_args(heal_base, heal_data, run, "--steps", "20", "--valid", str(heal_data),
                     "--lora-norms", "--json", str(report))
    assert heal.main(args) == 0
    result = json.loads(report.read_text())
    # The heal_base is random: adapters on attention alone cannot do more in 20 steps.
    assert result["valid_after"] < result["valid_before"] - 0.05
    out = tmp_path / "healed.bin"
    assert merge.main(["--ckpt", str(run), "--bin", str(heal_base), "--out", str(out)]) == 0
    # The merged file computes what the adapters computed.
    found = checkpoint.open_checkpoint(run)
    spec = LoraSpec.from_json(found.state["heal"]["lora"])
    model = load_packed(heal_base).eval()
    trained, values = lora.attach(model, spec, 0), found.model()
    with torch.no_grad():
        for name, p in trained.items():
            p.copy_(values[name])
        ids = tokens(280)
        expected = model(ids)
        assert (loaded(out)(ids) - expected).abs().max() < 2e-5 * expected.abs().max()
    # Norms that trained along are in the file too.
    before, after = read_all(heal_base), read_all(out)
    assert not np.array_equal(before["norm.weight"], after["norm.weight"])
    assert np.array_equal(after["norm.weight"], values["norm.weight"].numpy())


def test_merge_changes_nothing_else(heal_base: Path, heal_data: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "healed.bin"
    assert heal.main(heal_args(heal_base, heal_data, run, "--steps", "2", "--lora-layers", "1,3",
                               "--targets", "o")) == 0
    report = merge.merge(run, heal_base, out)
    assert report["patched"] == [f"layers.{n}.self_attn.o_proj.weight" for n in (1, 3)]
    old, new = (np.fromfile(p, np.uint8) for p in (heal_base, out))
    assert len(old) == len(new)
    allowed = np.zeros(len(old), bool)
    with MkimFile(heal_base) as f:
        for name in report["patched"]:
            e = f.entries[name]
            allowed[e.offset : e.offset + e.size] = True
        digest = heal_base.read_bytes().index(f.config["content_sha256"].encode())
        allowed[digest : digest + 64] = True
    changed = old != new
    assert changed.any()
    assert not (changed & ~allowed).any()
    # The digest is that of the new blobs, and each patched value is W + BA rounded once.
    values = checkpoint.open_checkpoint(run).model()
    with MkimFile(heal_base) as f, MkimFile(out) as g:
        with MkimWriter(tmp_path / "again.bin", g.config,
                        [Spec(e.name, e.dtype, e.dims) for e in g.entries.values()]) as writer:
            for name in g.entries:
                writer.write_blob(name, g.read_blob(name))
            writer.commit()
        assert (tmp_path / "again.bin").read_bytes() == out.read_bytes()
        for name in report["patched"]:
            a, b = (values[name + end].numpy().astype(np.float64) for end in (lora.A, lora.B))
            expected = (f.read(name).astype(np.float64) + b @ a).astype(np.float32)
            assert np.array_equal(g.read(name), expected)


def test_merge_of_an_untrained_adapter_is_a_copy(
    heal_base: Path, heal_data: Path, tmp_path: Path
) -> None:
    config = heal.HealConfig(LoraSpec(norms="all"), batch=2, seq=64, steps=1)
    healer = heal.Healer(heal_base, heal.open_shards(heal_data), config)
    healer.save(tmp_path / "run", 1)
    merge.merge(tmp_path / "run", heal_base, tmp_path / "copy.bin")
    assert (tmp_path / "copy.bin").read_bytes() == heal_base.read_bytes()


def test_resume_equals_an_uninterrupted_run(
    heal_base: Path, heal_data: Path, tmp_path: Path
) -> None:
    straight, parts = tmp_path / "a", tmp_path / "b"
    more = ("--steps", "4", "--accum", "2", "--lora-final-norm", "--save-every", "2",
            "--keep", "9")
    assert heal.main(heal_args(heal_base, heal_data, straight, *more)) == 0
    assert heal.main(heal_args(heal_base, heal_data, parts, *more)) == 0
    # Forget everything after step 2, then continue.
    os.remove(parts / "latest")
    os.rename(parts / "ckpt-00000004", tmp_path / "gone")
    os.symlink("ckpt-00000002", parts / "latest")
    assert heal.main(heal_args(heal_base, heal_data, parts, *more)) == 76  # a run is there already
    assert heal.main(heal_args(heal_base, heal_data, parts, *more, "--resume")) == 0
    for name in ("model.safetensors", "optim.safetensors"):
        one, two = ((d / "ckpt-00000004" / name).read_bytes() for d in (straight, parts))
        assert one == two


def test_resume_refuses_another_base_or_other_adapters(
    heal_base: Path, heal_data: Path, tmp_path: Path, capsys
) -> None:
    run = tmp_path / "run"
    assert heal.main(heal_args(heal_base, heal_data, run, "--steps", "1")) == 0
    other = tmp_path / "other.bin"
    export(save_checkpoint(tmp_path / "ck", tiny_model(99)), other)
    assert heal.main(heal_args(other, heal_data, run, "--steps", "2", "--resume")) == 76
    assert "another base" in capsys.readouterr().err
    assert merge.main(["--ckpt", str(run), "--bin", str(other), "--out",
                       str(tmp_path / "m.bin")]) == 76
    assert "is not the file" in capsys.readouterr().err
    args = heal_args(heal_base, heal_data, run, "--steps", "2", "--resume", "--targets", "q")
    assert heal.main(args) == 76
    assert "adapters differ" in capsys.readouterr().err


def test_merge_refuses_what_it_cannot_patch(
    heal_base: Path, heal_data: Path, tmp_path: Path, capsys
) -> None:
    run = tmp_path / "run"
    assert heal.main(heal_args(heal_base, heal_data, run, "--steps", "1")) == 0
    found = checkpoint.open_checkpoint(run)
    tensors = found.model()
    name = "layers.0.self_attn.o_proj.weight"

    def merged(change: dict[str, torch.Tensor | None]) -> None:
        new = {**tensors, **change}
        kept = {n: t for n, t in new.items() if t is not None}
        checkpoint.save(run, 1, found.config, found.state, kept, {}, None)
        merge.merge(run, heal_base, tmp_path / "m.bin")

    with pytest.raises(checkpoint.CheckpointError, match="lacks its B"):
        merged({name + lora.B: None})
    with pytest.raises(checkpoint.CheckpointError, match="lacks its A"):
        merged({name + lora.A: None})
    with pytest.raises(MkimError, match=r"its correction \[95, 64\]"):
        merged({name + lora.B: torch.zeros(95, 4)})
    with pytest.raises(MkimError, match=r"no tensor layers\.9"):
        merged({"layers.9.norm.weight": torch.ones(96)})
    with pytest.raises(MkimError, match="not finite"):
        merged({name + lora.B: torch.full((96, 4), float("nan"))})
    assert not list(tmp_path.glob("m.bin*"))
    with pytest.raises(MkimError, match="cannot replace its base"):
        merge.merge(run, heal_base, heal_base)
    assert export_main(["--ckpt", str(run), "--out", str(tmp_path / "x.bin")]) == 65
    assert "nano.merge" in capsys.readouterr().err
    plain = save_checkpoint(tmp_path / "plain", tiny_model(1))
    assert merge.main(["--ckpt", str(plain), "--bin", str(heal_base), "--out",
                       str(tmp_path / "m.bin")]) == 76
    assert "not a checkpoint of nano.heal" in capsys.readouterr().err


def test_data_of_another_vocabulary_is_refused(heal_base: Path, tmp_path: Path, capsys) -> None:
    write_stream(tmp_path / "big", [[1, 2, 280]], {"vocab_size": 281})
    assert heal.main(heal_args(heal_base, tmp_path / "big", tmp_path / "run", "--steps", "1")) == 65
    assert "do not fit vocabulary 280" in capsys.readouterr().err


def test_spine_weight_converts_on_use() -> None:
    holder = SpineWeight(torch.tensor([[1.0, 2.0]]).bfloat16(), torch.device("cpu"))
    assert holder.weight.dtype == torch.float32


def test_damaged_experts_are_refused_when_they_are_used(heal_base: Path, tmp_path: Path) -> None:
    raw = bytearray(heal_base.read_bytes())
    with MkimFile(heal_base) as f:
        entry = f.entries["layers.1.block_sparse_moe.experts.2.w2"]
    raw[entry.offset + entry.size - 1] = 255
    (tmp_path / "bad.bin").write_bytes(raw)
    model = load_packed(tmp_path / "bad.bin").eval()
    with pytest.raises(MkimError, match="damaged"), torch.no_grad():
        model(tokens(280, 200))
