"""Checkpoint to `.bin` and back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from nano import bpe, checkpoint, mxfp4
from nano.bin2pt import import_model, read_state
from nano.bin2pt import main as bin2pt_main
from nano.config import K3Config
from nano.export import ExportOptions, export
from nano.export import main as export_main
from nano.mkim import DType, MkimError, MkimFile
from nano.model import K3Model
from nano.tensors import stack_name
from nano.tests.random_model import GOLDEN, save_checkpoint, tiny_model


def expected_state(model: K3Model, bf16: bool = False) -> dict[str, np.ndarray]:
    """What the engine will see: experts through MXFP4, matrices through bf16 if asked for."""
    out = {}
    for name, t in model.state_dict().items():
        values = t.numpy()
        if ".experts." in name:
            flat = values.reshape(-1, values.shape[-1])
            values = mxfp4.decode(mxfp4.encode(flat), *flat.shape).reshape(values.shape)
        elif bf16 and t.ndim == 2 and "conv1d" not in name and not name.endswith("moe.gate.weight"):
            values = t.to(torch.bfloat16).float().numpy()
        out[name] = values
    return out


@pytest.mark.parametrize("spine", ["f32", "bf16"])
def test_every_tensor_arrives(tmp_path: Path, spine: str) -> None:
    model = tiny_model()
    path = save_checkpoint(tmp_path / "run", model)
    out = tmp_path / "tiny.bin"
    report = export(path, out, ExportOptions(spine=spine))
    with MkimFile(out) as f:
        assert f.warnings == []
        assert report["tensors"] == len(f.entries)
        assert f.config["format"] == (3 if spine == "bf16" else 2)
        state = read_state(f)
        kinds = {e.dtype for e in f.spine()}
        assert kinds == ({DType.F32, DType.BF16} if spine == "bf16" else {DType.F32})
    expected = expected_state(model, spine == "bf16")
    assert set(state) == set(expected)
    for name, values in expected.items():
        assert np.array_equal(state[name], values), name
    assert 0.05 < report["expert_relative_error"] < 0.15


@pytest.mark.parametrize("spine", ["f32", "bf16"])
@pytest.mark.parametrize("align", [64, 4096])
def test_export_of_an_import_is_byte_identical(tmp_path: Path, spine: str, align: int) -> None:
    save_checkpoint(tmp_path / "run", tiny_model(1))
    options = ExportOptions(spine=spine, expert_align=align)
    export(tmp_path / "run", tmp_path / "a.bin", options)
    import_model(tmp_path / "a.bin", tmp_path / "back")
    export(tmp_path / "back", tmp_path / "b.bin", options)
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()


@pytest.mark.parametrize("case", ["k3a", "k3b", "k3c"])
def test_recorded_models_keep_their_values_through_a_round_trip(
    tmp_path: Path, case: str
) -> None:
    source = GOLDEN / case / "model.bin"
    import_model(source, tmp_path / "a")
    export(tmp_path / "a", tmp_path / "a.bin")
    import_model(tmp_path / "a.bin", tmp_path / "b")
    export(tmp_path / "b", tmp_path / "b.bin")
    assert (tmp_path / "a.bin").read_bytes() == (tmp_path / "b.bin").read_bytes()
    same = 0
    with MkimFile(source) as old, MkimFile(tmp_path / "a.bin") as new:
        for name, entry in old.entries.items():
            assert np.array_equal(old.read(name), new.read(name).reshape(entry.dims)), name
            same += old.read_blob(name).tobytes() == new.read_blob(name).tobytes()
        # A group whose largest code is 3.0 or less has a second, equal spelling.
        assert same >= 0.8 * len(old.entries)


def test_checkpoints_with_single_experts_and_unfolded_shapes_load(tmp_path: Path) -> None:
    model = tiny_model(2)
    stacked = save_checkpoint(tmp_path / "a", model)
    loose = save_checkpoint(tmp_path / "b", model)
    tensors = {}
    for name, t in model.state_dict().items():
        if ".experts." in name:
            head, part = name.rsplit(".", 1)
            tensors |= {f"{head}.{e}.{part}.weight": t[e].contiguous() for e in range(len(t))}
        elif "conv1d" in name:
            tensors[name] = t.unsqueeze(1).contiguous()
        else:
            tensors[name] = t.unsqueeze(0).contiguous() if "res_proj" in name else t.contiguous()
    save_file(tensors, loose / "model.safetensors")
    export(stacked, tmp_path / "a.bin")
    export(loose, tmp_path / "b.bin")
    with MkimFile(tmp_path / "a.bin") as a, MkimFile(tmp_path / "b.bin") as b:
        assert all(a.read_blob(n).tobytes() == b.read_blob(n).tobytes() for n in a.entries)


def test_averaged_weights_win_unless_told_otherwise(tmp_path: Path) -> None:
    model = tiny_model(3)
    path = save_checkpoint(tmp_path / "run", model, ema=True)
    plain = model.norm.weight.detach().numpy()
    for weights, factor in (("auto", 0.5), ("ema", 0.5), ("model", 1.0)):
        export(path, tmp_path / "m.bin", ExportOptions(weights=weights))
        with MkimFile(tmp_path / "m.bin") as f:
            assert np.array_equal(f.read("norm.weight"), plain * factor)
            kind = "model" if weights == "model" else "ema"
            assert f.config["provenance"]["weights"] == kind


@pytest.mark.parametrize("reading", ["head", "channel"])
def test_folded_decay_computes_the_same_in_both_readings(tmp_path: Path, reading: str) -> None:
    model = tiny_model(4, kda_a_log=reading).eval()
    path = save_checkpoint(tmp_path / "run", model)
    export(path, tmp_path / "keep.bin")
    export(path, tmp_path / "fold.bin", ExportOptions(fold_a_log=True))
    tokens = torch.arange(40).view(1, -1)
    results = []
    for name, overrides in (
        ("keep", {}), ("fold", {}), ("fold", {"kda_a_log": "head"}),
    ):
        with MkimFile(tmp_path / f"{name}.bin") as f:
            state = read_state(f)
            config = K3Config.from_json({**f.config, **overrides})
            assert f.config["kda_a_log"] == (reading if name == "keep" else "channel")
        if overrides:
            zeros = {n: v for n, v in state.items() if n.endswith("A_log")}
            assert zeros and not any(v.any() for v in zeros.values())
            state |= {n: np.zeros(config.kda_heads, np.float32) for n in zeros}
        results.append(logits(config, state, tokens))
    span = results[0].max() - results[0].min()
    for other in results[1:]:
        assert (other - results[0]).abs().max() < 1e-5 * span


def logits(config: K3Config, state: dict[str, np.ndarray], tokens: torch.Tensor) -> torch.Tensor:
    model = K3Model(config).eval()
    model.load_state_dict({n: torch.from_numpy(v.copy()) for n, v in state.items()})
    with torch.no_grad():
        return model(tokens)


def test_exported_model_runs_as_its_config_says(tmp_path: Path) -> None:
    model = tiny_model(5, gate_lower_bound=-3.5, situ_beta=3.0, routed_scale=1.5).eval()
    export(save_checkpoint(tmp_path / "run", model), tmp_path / "m.bin")
    import_model(tmp_path / "m.bin", tmp_path / "back")
    found = checkpoint.open_checkpoint(tmp_path / "back")
    assert found.config.gate_lower_bound == -3.5
    again = K3Model(found.config)
    checkpoint.load_into(dict(again.state_dict()), found.model(), "back")
    model.load_state_dict({n: torch.from_numpy(v) for n, v in expected_state(model).items()})
    tokens = torch.arange(30).view(1, -1)
    with torch.no_grad():
        assert torch.equal(again.eval()(tokens), model(tokens))


def own_vocabulary(folder: Path, size: int) -> Path:
    folder.mkdir()
    tokens = [bytes([b]) for b in range(256)]
    tokens += [bytes([97 + i, 98 + i]) for i in range(size - 8 - 256)]
    return bpe.save_own(folder, "own", tokens)


def test_vocabulary_is_placed_beside_the_model(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "run", tiny_model(6))
    vocab = own_vocabulary(tmp_path / "data", 280)
    report = export(path, tmp_path / "tale.bin", vocab=vocab)
    placed = bpe.load_tokenizer(tmp_path / "tale.vocab.json")
    assert placed.encode("cab") == bpe.load_tokenizer(vocab).encode("cab")
    assert [Path(p).name for p in report["files"]] == [
        "tale.bin", "tale.vocab.json", "tale.tiktoken"
    ]
    with MkimFile(tmp_path / "tale.bin") as f:
        assert f.config["specials"] == json.loads(vocab.read_text())["specials"]
        assert f.config["tokenizer"] == bpe.OWN_FORMAT


def test_vocabulary_of_another_size_is_refused(tmp_path: Path, capsys) -> None:
    path = save_checkpoint(tmp_path / "run", tiny_model(6))
    vocab = own_vocabulary(tmp_path / "data", 279)
    args = ["--ckpt", str(path), "--out", str(tmp_path / "t.bin"), "--vocab", str(vocab)]
    assert export_main(args) == 65
    assert "279 tokens, but the model has 280" in capsys.readouterr().err
    assert not (tmp_path / "t.bin").exists()


def test_bad_weights_are_refused_by_name(tmp_path: Path) -> None:
    model = tiny_model(7)
    name = stack_name(1, "w2")
    with torch.no_grad():
        model.state_dict()[name][4, 3, 5] = float("nan")
    path = save_checkpoint(tmp_path / "run", model)
    with pytest.raises(MkimError, match=r"layers\.1\..*experts\.4\.w2: weight \[3\]\[5\]"):
        export(path, tmp_path / "m.bin")
    assert not list(tmp_path.glob("m.bin*"))


def test_missing_and_misshapen_weights_are_refused(tmp_path: Path) -> None:
    model = tiny_model(8)
    path = save_checkpoint(tmp_path / "run", model)
    state = {n: t.contiguous() for n, t in model.state_dict().items()}
    del state["layers.0.self_attn.dt_bias"]
    save_file(state, path / "model.safetensors")
    with pytest.raises(MkimError, match=r"layers\.0\.self_attn\.dt_bias is missing"):
        export(path, tmp_path / "m.bin")
    state["layers.0.self_attn.dt_bias"] = torch.zeros(63)
    save_file(state, path / "model.safetensors")
    with pytest.raises(MkimError, match=r"dt_bias is \[63\], the config calls for \[64\]"):
        export(path, tmp_path / "m.bin")


def test_commands_report_what_is_wrong(tmp_path: Path, capsys) -> None:
    assert export_main(["--ckpt", str(tmp_path / "no"), "--out", str(tmp_path / "m.bin")]) == 66
    assert "no complete checkpoint" in capsys.readouterr().err
    assert bin2pt_main([str(tmp_path / "no.bin"), "--out", str(tmp_path / "o")]) == 66
    (tmp_path / "bad.bin").write_bytes(b"MKIM0002" + bytes(30))
    assert bin2pt_main([str(tmp_path / "bad.bin"), "--out", str(tmp_path / "o")]) == 65
    assert not (tmp_path / "o").exists()


def test_commands_write_reports(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "run", tiny_model(9))
    out, report = tmp_path / "m.bin", tmp_path / "r.json"
    assert export_main(["--ckpt", str(path), "--out", str(out), "--json", str(report)]) == 0
    assert json.loads(report.read_text())["bytes"] == out.stat().st_size
    back = tmp_path / "back"
    assert bin2pt_main([str(out), "--out", str(back), "--json", str(report)]) == 0
    digest = json.loads((back / "state.json").read_text())["imported"]["sha256"]
    assert json.loads(report.read_text())["source_sha256"] == digest
