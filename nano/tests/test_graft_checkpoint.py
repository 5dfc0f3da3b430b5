"""The checkpoint abstraction against the library's classes: reading, running, writing back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nano.graft.checkpoint import open_checkpoint
from nano.graft.codecs import fp8_decode, fp8_encode
from nano.graft.convert import convert
from nano.graft.errors import GraftError
from nano.graft.functions import FfnModule
from nano.graft.runner import open_runner
from nano.graft.write import Writer
from nano.loading import load_model
from nano.tests import graft_models as models

pytest.importorskip("transformers", reason="the oracle of these tests is not installed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("families")
    return {kind: models.make(kind, folder / kind) for kind in models.FAMILIES}


def oracle_logits(kind: str, path: Path, ids: torch.Tensor) -> torch.Tensor:
    """By the library, or for K3 and `.bin` files by this package's own loader."""
    import transformers

    if kind.startswith("mkim"):
        return load_model(path)(ids)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float32)
    return model.eval()(ids).logits


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    assert float((got - want).abs().max()) <= tolerance * float(want.abs().max())


@pytest.mark.parametrize("kind", [k for k in models.FAMILIES if k != "kimi_k3"])
@torch.no_grad()
def test_logits_equal_those_of_the_library(kind: str, made: dict[str, Path]) -> None:
    ids = models.token_ids()
    with open_checkpoint(made[kind]) as source:
        got = open_runner(source).logits(ids)
        streamed = open_runner(source, stream=True).logits(ids)
    close(got, oracle_logits(kind, made[kind], ids), 1e-5)
    assert torch.equal(got, streamed)


@torch.no_grad()
def test_published_kimi_runs_as_the_bin_that_it_came_from(made: dict[str, Path]) -> None:
    ids = models.token_ids()
    with open_checkpoint(made["kimi_k3"]) as source:
        assert source.arch == "kimi_k3"
        got = open_runner(source).logits(ids)
    close(got, load_model(made["kimi_k3"].parent / "base-kimi_k3.bin")(ids), 1e-6)


@pytest.mark.parametrize("kind", models.FAMILIES)
@torch.no_grad()
def test_feed_forward_layers_computed_from_the_view(kind: str, made: dict[str, Path]) -> None:
    """Gate and up in their places, nothing transposed, gains right: outputs are the model's own."""
    ids = models.token_ids()
    with open_checkpoint(made[kind]) as source:
        runner = open_runner(source)
        for layer in source.layers:
            sites = [(layer.index, p) for p in ("ffn_in", "ffn_in_gained", "ffn_out")]
            seen, _ = runner.capture(ids, sites)
            u, x, y = (seen[s] for s in sites)
            norm = layer.norms["pre_ffn"]
            assert norm is not None
            close(u * torch.from_numpy(norm.gain()), x, 1e-5)
            close(FfnModule(layer.ffn)(x, ids), y, 1e-5)


@pytest.mark.parametrize("kind", models.FAMILIES)
@torch.no_grad()
def test_points_of_a_layer_fit_together(kind: str, made: dict[str, Path]) -> None:
    ids = models.token_ids()
    with open_checkpoint(made[kind]) as source:
        runner = open_runner(source)
        seen, hidden = runner.capture(
            ids, [(i, p) for i in range(source.cfg.n_layers) for p in ("resid_in", "resid_out",
                                                                       "ffn_resid")], True)
        assert hidden is not None and hidden.shape == (*ids.shape, source.cfg.hidden)
        if source.cfg.residual == "plain":
            for i in range(1, source.cfg.n_layers):
                assert torch.equal(seen[(i, "resid_in")], seen[(i - 1, "resid_out")])
        calls, plain = runner.record_calls(ids)
        for first in range(source.cfg.n_layers):
            close(runner.tail(first, calls), plain, 1e-5)


@pytest.mark.parametrize("kind", models.FAMILIES)
def test_write_without_changes_gives_the_same_bytes(
    kind: str, made: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / ("out.bin" if kind.startswith("mkim") else "out")
    with open_checkpoint(made[kind]) as source:
        Writer(source, out).commit()
        names = {p.name for p in source.files()}
    for name in names:
        before = made[kind] if made[kind].is_file() else made[kind] / name
        after = out if out.is_file() else out / name
        assert before.read_bytes() == after.read_bytes()


@pytest.mark.parametrize("kind", models.FAMILIES)
@torch.no_grad()
def test_changed_matrices_reach_the_library(
    kind: str, made: dict[str, Path], tmp_path: Path
) -> None:
    """Gate, up, down of every kind of feed-forward part and a norm; the rest stays as it was."""
    out = tmp_path / ("out.bin" if kind.startswith("mkim") else "out")
    changed: dict[str, np.ndarray] = {}
    with open_checkpoint(made[kind]) as source:
        for layer in source.layers:
            mlps = [*layer.ffn.experts[-1:], *layer.ffn.shared]
            for mlp in [*mlps, *([layer.ffn.dense] if layer.ffn.dense else [])]:
                for matrix, factor in ((mlp.gate, 0.5), (mlp.up, -1.0), (mlp.down, 2.0)):
                    changed[matrix.name] = matrix.read() * np.float32(factor)
                    matrix.set(changed[matrix.name])
            norm = layer.norms["pre_ffn"]
            assert norm is not None
            changed[norm.weight.name] = norm.weight.read() + np.float32(0.25)
            norm.set_gain(norm.gain() + np.float32(0.25))
        others = {n: source.value(n) for n in source.names() if n not in changed}
        Writer(source, out).commit({"why": "a test"})
    ids = models.token_ids()
    with open_checkpoint(out) as again:
        for name, values in others.items():
            assert np.array_equal(again.value(name), values)
        for name, values in changed.items():
            assert np.allclose(again.value(name), values, atol=1e-6), name
        got = open_runner(again).logits(ids)
    if kind != "kimi_k3":
        close(got, oracle_logits(kind, out, ids), 1e-5)


@pytest.mark.parametrize(("kind", "prefix"), [
    ("qwen3_5_moe", ""), ("qwen3_5_moe", "model.language_model."), ("gemma3", ""),
    ("gemma3", "language_model.model."), ("llama", ""), ("qwen3_5", "model.language_model."),
])
@torch.no_grad()
def test_layouts_in_memory_and_prefixes(kind: str, prefix: str, tmp_path: Path) -> None:
    raw, saved = models.save_raw(kind, tmp_path / "raw", 0, prefix), tmp_path / "saved"
    models.save_library(kind, saved)
    with open_checkpoint(raw) as a, open_checkpoint(saved) as b:
        assert set(a.names()) == set(b.names())
        for name in a.names():
            assert np.array_equal(a.value(name), b.value(name)), name
        mlp = a.layers[-1].ffn.experts[-1] if a.layers[-1].ffn.experts else a.layers[-1].ffn.dense
        assert mlp is not None
        up = mlp.up.read() * 2
        mlp.up.set(up)
        Writer(a, tmp_path / "out").commit()
    with open_checkpoint(tmp_path / "out") as c:
        assert np.array_equal(c.value(mlp.up.name), up)
        assert np.array_equal(c.value(mlp.gate.name), b_value(saved, mlp.gate.name))


def b_value(path: Path, name: str) -> np.ndarray:
    with open_checkpoint(path) as source:
        return source.value(name)


def test_names_of_older_and_newer_dsv4_files(made: dict[str, Path], tmp_path: Path) -> None:
    """The library's own names in memory, those it writes, and the published ones are one model."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(made["deepseek_v4"])
    config = (made["deepseek_v4"] / "config.json").read_text()
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "memory").mkdir()
    save_file({k: v.clone() for k, v in model.state_dict().items()},
              tmp_path / "memory" / "model.safetensors")
    for folder in ("saved", "memory"):
        (tmp_path / folder / "config.json").write_text(config)
        with open_checkpoint(tmp_path / folder) as a, open_checkpoint(made["deepseek_v4"]) as b:
            for name in b.names():
                assert np.array_equal(a.value(name), b.value(name)), (folder, name)


@pytest.mark.parametrize("kind", models.FAMILIES)
def test_every_tensor_has_one_role(kind: str, made: dict[str, Path]) -> None:
    """The tables cover all of a model; nothing is used twice but the halves of a fused tensor."""
    with open_checkpoint(made[kind]) as source:
        assert source.outside == []
        slots = [source.slot(n) for n in source.names()]
        assert len(set(slots)) == len(slots)


@pytest.mark.parametrize("kind", ["kimi_k3", "deepseek_v4"])
def test_conversion_there_and_back(kind: str, made: dict[str, Path], tmp_path: Path) -> None:
    with open_checkpoint(made[kind]) as source:
        convert(source, "mkim", tmp_path / "back.bin")
    base = made[kind].parent / f"base-{kind}.bin"
    with open_checkpoint(base) as a, open_checkpoint(tmp_path / "back.bin") as b:
        for name in a.names():
            assert np.array_equal(a.value(name).reshape(-1), b.value(name).reshape(-1)), name


def test_training_checkpoints_are_models_too(made: dict[str, Path]) -> None:
    run = made["mkim_k3"].parent / "k3-run"
    with open_checkpoint(run) as a, open_checkpoint(made["mkim_k3"]) as b:
        name = "layers.1.block_sparse_moe.experts.3.w2"
        assert np.allclose(a.value(name), b.value(name), atol=0.2 * np.abs(b.value(name)).max())
        assert np.array_equal(a.value("norm.weight"), b.value("norm.weight"))


def test_fp8_blocks_round_to_the_nearest() -> None:
    rng = np.random.default_rng(1)
    w = (rng.standard_normal((200, 300)) * np.exp(rng.standard_normal((200, 1)))).astype(np.float32)
    for power in (True, False):
        codes, scales = fp8_encode(w, power)
        back = fp8_decode(codes, scales.astype(np.float32))
        want = torch.from_numpy((w / np.repeat(np.repeat(scales, 128, 0), 128, 1)[:200, :300])
                                .astype(np.float32)).to(torch.float8_e4m3fn).float().numpy()
        want = want * np.repeat(np.repeat(scales, 128, 0), 128, 1)[:200, :300].astype(np.float32)
        assert np.mean(back != want) < 1e-4  # a tie in f64 need not be one in f32


def test_fp8_experts_are_read_and_written(tmp_path: Path) -> None:
    """FP8 exports of Qwen: split experts with f32 scales of blocks."""
    folder = models.save_library("qwen3_5_moe", tmp_path / "m")
    state = load_file(folder / "model.safetensors")
    for name in [n for n in state if ".experts." in n]:
        codes, scales = fp8_encode(state[name].numpy(), False)
        state[name] = torch.from_numpy(codes).view(torch.float8_e4m3fn)
        state[name.replace("weight", "weight_scale_inv")] = torch.from_numpy(
            scales.astype(np.float32))
    save_file(state, folder / "model.safetensors")
    with open_checkpoint(folder) as source, open_checkpoint(
            models.save_library("qwen3_5_moe", tmp_path / "plain")) as plain:
        mlp = source.layers[0].ffn.experts[1]
        want = plain.layers[0].ffn.experts[1].up.read()
        assert np.abs(mlp.up.read() - want).max() < 0.07 * np.abs(want).max()
        mlp.up.set(want[::-1].copy())
        Writer(source, tmp_path / "out").commit()
    with open_checkpoint(tmp_path / "out") as again:
        got = again.layers[0].ffn.experts[1].up.read()
        assert np.abs(got - want[::-1]).max() < 0.07 * np.abs(want).max()


def break_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def _drop(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, folder / "model.safetensors")


def _index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-00002-of-00002.safetensors"}}))


def _header(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[0:8] = (1 << 40).to_bytes(8, "little")
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(("damage", "message"), [
    (_cut, "cut off"), (_drop, r"layers\.1\.mlp\.up_proj\.weight is missing"),
    (_index, "which is not there"), (_header, "does not fit the file"),
    (lambda f: break_config(f, intermediate_size=81), r"the config calls for"),
    (lambda f: break_config(f, hidden_act="relu"), "hidden_act"),
    (lambda f: break_config(f, num_hidden_layers="three"), "must be a count"),
    (lambda f: break_config(f, mlp_bias=True), "mlp_bias"),
])
def test_damaged_models_are_named(damage: Any, message: str, tmp_path: Path) -> None:
    folder = models.save_library("llama", tmp_path / "m")
    damage(folder)
    with pytest.raises(GraftError, match=message):
        open_checkpoint(folder)


def test_values_that_are_not_finite_are_found_and_never_written(tmp_path: Path) -> None:
    folder = models.save_library("llama", tmp_path / "m")
    state = load_file(folder / "model.safetensors")
    state["model.layers.0.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(state, folder / "model.safetensors")
    with open_checkpoint(folder) as source:
        mlp = source.layers[0].ffn.dense
        assert mlp is not None
        with pytest.raises(GraftError, match="not finite"):
            mlp.up.read()
        with pytest.raises(GraftError, match="not finite"):
            mlp.gate.set(np.full(mlp.gate.shape, np.inf, np.float32))


def test_a_fused_stack_that_reads_two_ways_is_refused(tmp_path: Path) -> None:
    """With d = 2 I only the model's type tells which axis is which."""
    model = models.library_model("qwen3_5_moe", hidden_size=48, moe_intermediate_size=24)
    folder = tmp_path / "m"
    folder.mkdir()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(model.config.to_json_string(use_diff=False))
    open_checkpoint(folder).close()
    break_config(folder, model_type="something_else")
    with pytest.raises(GraftError, match="may be read two ways"):
        open_checkpoint(folder)


def test_transposed_stacks_are_recognised(tmp_path: Path) -> None:
    """Older files have [E, d, 2 I] and [E, I, d]."""
    folder = models.save_raw("qwen3_5_moe", tmp_path / "m")
    state = load_file(folder / "model.safetensors")
    for name in [n for n in state if ".experts." in n]:
        state[name] = state[name].transpose(1, 2).contiguous()
    with open_checkpoint(folder) as source:
        want = source.layers[2].ffn.experts[3].up.read()
    save_file(state, folder / "model.safetensors")
    with open_checkpoint(folder) as source:
        mlp = source.layers[2].ffn.experts[3]
        assert np.array_equal(mlp.up.read(), want)
        mlp.up.set(want * 3)
        assert np.array_equal(mlp.up.read(), want * 3)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"\x80\x04N.")
    with pytest.raises(GraftError, match="pickles are never read"):
        open_checkpoint(path)
