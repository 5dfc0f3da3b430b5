"""One normalised config for all families."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nano.config import K3Config
from nano.dsv4.config import Dsv4Config
from nano.graft.errors import GraftError
from nano.graft.tables import MODEL_TYPES


@dataclass
class Config:
    """Sizes in elements; lists have one entry per layer."""

    n_layers: int
    hidden: int
    vocab: int
    act: str  # swiglu, situ, swiglu_clamp, geglu_tanh
    act_params: tuple[float, ...]
    norm_eps: float
    zero_centred: bool
    residual: str  # plain, attnres, hyper
    attn_kind: list[str]
    ffn_kind: list[str]  # dense, moe, latent_moe
    inter: list[int]  # inner width of the dense FFN or of one routed expert
    n_experts: int = 0
    top_k: int = 0
    shared_inter: int = 0
    latent: int = 0
    tied: bool = False
    embed_scale: float = 1.0
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    positions: str = "rope"
    context: int = 0
    hash_layers: int = 0
    routed_scale: float = 1.0
    dims: dict[str, int] = field(default_factory=dict)  # symbols of tables.py

    def to_json(self) -> dict[str, Any]:
        out = asdict(self)
        del out["dims"]
        return out


def read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as err:
        raise GraftError(f"{path}: cannot read: {err}") from err
    if not isinstance(data, dict):
        raise GraftError(f"{path}: must be a JSON object")
    return data


def text_part(raw: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config, which multimodal files nest."""
    inner = raw.get("text_config")
    return {**raw, **inner} if isinstance(inner, dict) else raw


def detect(raw: dict[str, Any], names: set[str]) -> str:
    """Family by model_type, else by names."""
    kind = str(text_part(raw).get("model_type", raw.get("model_type", "")))
    for candidate in (kind, str(raw.get("model_type", ""))):
        if candidate in MODEL_TYPES:
            return MODEL_TYPES[candidate]
    if any("block_sparse_moe.routed_expert_down_proj" in n for n in names):
        return "kimi_k3"
    if any(n.endswith(("hc_head_fn", "hc_head.hc_fn")) for n in names):
        return "deepseek_v4"
    if any("pre_feedforward_layernorm" in n for n in names):
        return "gemma3"
    if any("linear_attn.in_proj_qkv" in n for n in names):
        return "qwen3_5_moe" if any("shared_expert" in n for n in names) else "qwen3_5"
    if any(".mlp.gate_proj." in n or ".mlp.gate_up_proj." in n for n in names):
        return "llama"
    raise GraftError(f"model_type {kind or '(none)'} is not known here, nor are the tensors' names")


def count(raw: dict[str, Any], *keys: str, default: int | None = None) -> int:
    for key in keys:
        value = raw.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise GraftError(f"config key {key}: must be a count, is {value!r}")
        return value
    if default is None:
        raise GraftError(f"config lacks {' or '.join(keys)}")
    return default


def _act(raw: dict[str, Any]) -> str:
    name = str(raw.get("hidden_act") or raw.get("hidden_activation") or "silu")
    if name in ("silu", "swish"):
        return "swiglu"
    if name == "gelu_pytorch_tanh":
        return "geglu_tanh"
    raise GraftError(f"hidden_act {name!r} is not one of silu, gelu_pytorch_tanh")


def library_config(arch: str, raw: dict[str, Any]) -> Config:
    """Of llama-style, gemma3, qwen3_5 and qwen3_5_moe models."""
    t = text_part(raw)
    n, d = count(t, "num_hidden_layers"), count(t, "hidden_size")
    if n < 1 or d < 1 or n > 4096:
        raise GraftError(f"{n} layers of width {d} are no model")
    heads = count(t, "num_attention_heads")
    kv = count(t, "num_key_value_heads", default=heads)
    hd = count(t, "head_dim", default=0) or d // max(heads, 1)
    moe = arch == "qwen3_5_moe"
    inter = count(t, "moe_intermediate_size" if moe else "intermediate_size")
    e = count(t, "num_experts") if moe else 0
    if t.get("mlp_bias"):
        raise GraftError("mlp_bias: feed-forward layers with biases are not supported")
    kinds = _attention_kinds(arch, t, n)
    gated = 2 if arch in ("qwen3_5", "qwen3_5_moe") else 1
    tied = bool(t.get("tie_word_embeddings", raw.get("tie_word_embeddings", arch == "gemma3")))
    shared = count(t, "shared_expert_intermediate_size") if moe else 0
    dims = {"d": d, "V": count(t, "vocab_size"), "q": gated * heads * hd, "kv": kv * hd,
            "o": heads * hd, "qkv": (heads + 2 * kv) * hd, "hd": hd, "I": inter, "E": e,
            "Ie": inter, "Is": shared}
    if "gdn" in kinds:
        key = count(t, "linear_num_key_heads") * count(t, "linear_key_head_dim")
        hv, size = count(t, "linear_num_value_heads"), count(t, "linear_value_head_dim")
        dims |= {"2K+Vd": 2 * key + hv * size, "Vd": hv * size, "Hv": hv, "hv": size,
                 "c": count(t, "linear_conv_kernel_dim", default=4)}
    return Config(
        n_layers=n, hidden=d, vocab=dims["V"], act=_act(t), act_params=(),
        norm_eps=float(t.get("rms_norm_eps", 1e-6)),
        zero_centred=arch in ("gemma3", "qwen3_5", "qwen3_5_moe"), residual="plain",
        attn_kind=kinds, ffn_kind=["moe" if moe else "dense"] * n, inter=[inter] * n, n_experts=e,
        top_k=count(t, "num_experts_per_tok") if moe else 0, shared_inter=shared, tied=tied,
        embed_scale=math.sqrt(d) if arch == "gemma3" else 1.0, heads=heads, kv_heads=kv,
        head_dim=hd, context=count(t, "max_position_embeddings", default=0), dims=dims,
    )


def _attention_kinds(arch: str, t: dict[str, Any], n: int) -> list[str]:
    names = {"full_attention": "full", "sliding_attention": "sliding", "linear_attention": "gdn"}
    listed = t.get("layer_types")
    if isinstance(listed, list) and len(listed) >= n:
        try:
            return [names[str(k)] for k in listed[:n]]
        except KeyError as err:
            raise GraftError(f"layer_types holds {err.args[0]!r}") from err
    if arch in ("qwen3_5", "qwen3_5_moe"):
        every = count(t, "full_attention_interval", default=4)
        return ["full" if (i + 1) % every == 0 else "gdn" for i in range(n)]
    if arch == "gemma3":
        every = count(t, "sliding_window_pattern", default=6)
        return ["full" if (i + 1) % every == 0 else "sliding" for i in range(n)]
    return ["sliding" if t.get("sliding_window") and t.get("use_sliding_window", True) else "full"
            ] * n


def k3_normal(c: K3Config) -> Config:
    layers = range(c.n_layers)
    return Config(
        n_layers=c.n_layers, hidden=c.hidden, vocab=c.vocab, act="situ",
        act_params=(c.situ_beta, c.situ_linear_beta), norm_eps=c.rms_eps, zero_centred=False,
        residual="attnres", attn_kind=["mla" if c.is_mla(i) else "kda" for i in layers],
        ffn_kind=["dense" if c.is_dense(i) else "latent_moe" for i in layers],
        inter=[c.dense_inter if c.is_dense(i) else c.moe_inter for i in layers],
        n_experts=c.n_experts, top_k=c.top_k, shared_inter=c.shared_inter, latent=c.routed_hidden,
        heads=c.mla_heads, kv_heads=c.mla_heads, head_dim=c.mla_qk, positions="none",
        routed_scale=c.routed_scale,
    )


def dsv4_normal(c: Dsv4Config) -> Config:
    kinds = {0: "v4_window", 4: "v4_overlap"}
    layers = range(c.n_layers)
    return Config(
        n_layers=c.n_layers, hidden=c.hidden, vocab=c.vocab, act="swiglu_clamp",
        act_params=(c.swiglu_limit,), norm_eps=c.rms_norm_eps, zero_centred=False,
        residual="hyper", attn_kind=[kinds.get(c.ratio(i), "v4_dense") for i in layers],
        ffn_kind=["moe"] * c.n_layers, inter=[c.moe_intermediate_size] * c.n_layers,
        n_experts=c.n_routed_experts, top_k=c.num_experts_per_tok,
        shared_inter=c.moe_intermediate_size, heads=c.n_heads, kv_heads=1, head_dim=c.head_dim,
        context=c.max_seq_len, hash_layers=c.num_hash_layers,
        routed_scale=c.routed_scaling_factor,
    )
