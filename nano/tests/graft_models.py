"""Tiny random models of every family, made by the library's classes or by this package's twins."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from nano.dsv4.config import Dsv4Config
from nano.dsv4.random_model import RECIPES, random_state, write_model
from nano.export import export
from nano.graft.checkpoint import open_checkpoint
from nano.graft.convert import convert
from nano.tests.random_model import save_checkpoint, tiny_model

# All sizes distinct, so that a mix-up of two cannot pass.  d = 48, I = 80, V = 300.
SIZES: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 3, "num_key_value_heads": 1,
    "head_dim": 16, "num_hidden_layers": 3, "vocab_size": 300, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}
LINEAR = {"linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_num_key_heads": 2,
          "linear_num_value_heads": 4}
MOE = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
       "shared_expert_intermediate_size": 24}
LIBRARY = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "qwen3_5", "qwen3_5_moe")
OWN = ("deepseek_v4", "kimi_k3", "mkim_k3", "mkim_dsv4")
FAMILIES = (*LIBRARY, *OWN)


def library_model(kind: str, seed: int = 0, **changes: Any) -> Any:
    """A model of the library with every parameter random, norms and biases too."""
    import transformers as hf

    sizes = {**SIZES, **changes}
    if kind in ("qwen2",):
        sizes.pop("head_dim")
    if kind == "gemma3":
        config = hf.Gemma3TextConfig(**sizes, sliding_window=8, query_pre_attn_scalar=16)
    elif kind == "qwen3_5":
        config = hf.CONFIG_MAPPING["qwen3_5_text"](**{**sizes, "num_hidden_layers": 4, **LINEAR})
    elif kind == "qwen3_5_moe":
        sizes.pop("intermediate_size")
        config = hf.CONFIG_MAPPING["qwen3_5_moe_text"](
            **{**sizes, "num_hidden_layers": 4, **LINEAR, **MOE, **changes})
    else:
        config = hf.CONFIG_MAPPING[kind](**sizes)
    torch.manual_seed(seed)
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim >= 2 and "conv1d" not in name:
                p.normal_(0, p.shape[-1] ** -0.5, generator=generator)
            elif "norm" in name:
                p.add_(0.2 * torch.randn(p.shape, generator=generator))
            elif name.endswith(("bias", "conv1d.weight")):
                p.normal_(0, 0.3, generator=generator)
    return model


def save_library(kind: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    library_model(kind, seed, **changes).save_pretrained(folder)
    return folder


def save_raw(kind: str, folder: Path, seed: int = 0, prefix: str = "") -> Path:
    """The state dict as it is in memory, for the layouts that the library changes when saving."""
    model = library_model(kind, seed)
    folder.mkdir(parents=True)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    if prefix:
        state = {k.replace("model.", prefix, 1) if k.startswith("model.") else k: v
                 for k, v in state.items()}
    save_file(state, folder / "model.safetensors")
    model.config.architectures = [type(model).__name__]
    (folder / "config.json").write_text(model.config.to_json_string(use_diff=False))
    return folder


def dsv4_config(**changes: Any) -> Dsv4Config:
    return Dsv4Config.from_json({**RECIPES["a"].config, "act_qat": False, "n_layers": 4,
                                 "vocab": 300, "compress_ratios": [0, 4, 128, 4], **changes})


def mkim_dsv4(path: Path, seed: int = 0, **changes: Any) -> Path:
    config = dsv4_config(**changes)
    write_model(path, config, random_state(RECIPES["a"], config, seed))
    return path


def mkim_k3(path: Path, seed: int = 0, **changes: Any) -> Path:
    model = tiny_model(seed, kda_a_log="head", vocab=300, **changes)
    export(save_checkpoint(path.parent / f"{path.stem}-run", model), path)
    return path


def make(kind: str, folder: Path, seed: int = 0) -> Path:
    """A model of a family in `folder`, which need not exist; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind in LIBRARY:
        return save_library(kind, folder / kind, seed)
    if kind == "mkim_k3":
        return mkim_k3(folder / "k3.bin", seed)
    if kind == "mkim_dsv4":
        return mkim_dsv4(folder / "dsv4.bin", seed)
    base = (mkim_k3 if kind == "kimi_k3" else mkim_dsv4)(folder / f"base-{kind}.bin", seed)
    with open_checkpoint(base) as source:
        convert(source, "hf", folder / kind)
    if kind == "kimi_k3":
        pad_rates(folder / kind)
    return folder / kind


def pad_rates(folder: Path) -> None:
    """Decay rates as published: one per head, zeros behind, shaped [1, 1, n, 1]."""
    path = folder / "model.safetensors"
    state = load_file(path)
    for name, t in state.items():
        if name.endswith("A_log"):
            state[name] = torch.cat([t, torch.zeros(30)]).view(1, 1, -1, 1)
    save_file(state, path)


def token_ids(rows: int = 2, length: int = 24, seed: int = 3) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(3, 256, (rows, length)))


def texts(path: Path, count: int = 24, seed: int = 0) -> Path:
    """Documents of random words, one JSON object per line."""
    rng = np.random.default_rng(seed)
    words = ["sun", "tree", "little", "dog", "ran", "to", "the", "hill", "and", "saw", "a", "bird"]
    lines = []
    for _ in range(count):
        picked = rng.integers(0, len(words), int(rng.integers(8, 20)))
        lines.append(json.dumps({"text": " ".join(words[i] for i in picked) + "."}))
    path.write_text("\n".join(lines) + "\n")
    return path


def rewrite(folder: Path, out: Path, change: Any) -> Path:
    """A copy of a one-file model whose state `change` alters in place."""
    out.mkdir(parents=True)
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file({k: v.contiguous() for k, v in state.items()}, out / "model.safetensors")
    (out / "config.json").write_bytes((folder / "config.json").read_bytes())
    return out


def rotation(d: int, seed: int = 5) -> torch.Tensor:
    q, _ = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(seed),
                                       dtype=torch.float64))
    return q


def rotate(state: dict[str, torch.Tensor], permute: bool = False) -> None:
    """A llama whose residual space is turned and whose gains are folded into the matrices; with
    `permute` neurons change places and trade scale between up and down."""
    q = rotation(state["model.norm.weight"].numel())

    def fold(name: str, norm: str) -> None:
        state[name] = (state[name].double() * state[norm].double() @ q.T).float()

    state["model.embed_tokens.weight"] = (
        state["model.embed_tokens.weight"].double() @ q.T).float()
    fold("lm_head.weight", "model.norm.weight")
    layers = {k.split(".")[2] for k in state if k.startswith("model.layers.")}
    for i in sorted(layers):
        p = f"model.layers.{i}."
        for part in "qkv":
            fold(f"{p}self_attn.{part}_proj.weight", f"{p}input_layernorm.weight")
        for part in ("gate", "up"):
            fold(f"{p}mlp.{part}_proj.weight", f"{p}post_attention_layernorm.weight")
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            state[f"{p}{name}.weight"] = (q @ state[f"{p}{name}.weight"].double()).float()
        if permute:
            g = torch.Generator().manual_seed(int(i))
            inner = state[f"{p}mlp.up_proj.weight"].shape[0]
            order = torch.randperm(inner, generator=g)
            s = torch.exp(torch.randn(inner, generator=g))
            state[f"{p}mlp.gate_proj.weight"] = state[f"{p}mlp.gate_proj.weight"][order]
            state[f"{p}mlp.up_proj.weight"] = s[:, None] * state[f"{p}mlp.up_proj.weight"][order]
            state[f"{p}mlp.down_proj.weight"] = state[f"{p}mlp.down_proj.weight"][:, order] / s
    for name in [n for n in state if n.endswith("norm.weight")]:
        state[name] = torch.ones_like(state[name])
