"""Names and shapes of the families, as data.

A tensor has one canonical name: the one of the `.bin` format for Kimi K3 and DeepSeek-V4, the one
of the library's module without its prefix for the others.  `aliases` lists what files call it.
Both directions, reading and writing, follow from these tables.

Symbols in shapes: d hidden, V vocab, q and kv widths of query and key heads, hd head size, I inner
width, E experts, Ie their inner width, Is the shared one's; of linear attention K and Vd the key
and value widths, Hv value heads, hv their size, c taps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ARCHS = ("mkim_k3", "mkim_dsv4", "kimi_k3", "deepseek_v4", "qwen3_5_moe", "qwen3_5", "gemma3",
         "llama")
MODEL_TYPES = {
    "kimi_k3": "kimi_k3", "deepseek_v4": "deepseek_v4", "qwen3_5_moe": "qwen3_5_moe",
    "qwen3_5_moe_text": "qwen3_5_moe", "qwen3_5": "qwen3_5", "qwen3_5_text": "qwen3_5",
    "gemma3": "gemma3", "gemma3_text": "gemma3", "llama": "llama", "mistral": "llama",
    "qwen2": "llama", "qwen3": "llama",
}
TRANSPOSED_TYPES = ("qwen3_vl_moe", "qwen3_vl_moe_text")  # fused experts as [E, in, out]
PREFIXES = ("language_model.model.", "model.language_model.", "model.", "")
EMBEDS = ("embed_tokens.weight", "embed.weight")
HEADS = ("lm_head.weight", "language_model.lm_head.weight", "head.weight")
OUTSIDE = ("vision_tower.", "model.vision_tower.", "visual.", "model.visual.", "mm_projector.",
           "multi_modal_projector.", "model.multi_modal_projector.", "mtp.", "model.mtp.")
ZERO_CENTRED = ("qwen3_5_moe", "qwen3_5", "gemma3")  # norms multiply by 1 + w
# Norms of those families that multiply by w all the same.
PLAIN_NORMS = ("linear_attn.norm.weight",)


@dataclass(frozen=True)
class Row:
    """A tensor of a layer: `where` lists traits that the layer must have (! before: must not)."""

    name: str
    shape: tuple[str, ...]
    where: str = ""

    def applies(self, traits: set[str]) -> bool:
        return all((w[1:] not in traits) if w[0] == "!" else (w in traits)
                   for w in self.where.split())


GLOBAL_ROWS = (
    Row("embed_tokens.weight", ("V", "d")),
    Row("norm.weight", ("d",)),
    Row("lm_head.weight", ("V", "d"), "!tied"),
)
_ATTENTION = (
    Row("self_attn.q_proj.weight", ("q", "d"), "heads !fused_qkv"),
    Row("self_attn.k_proj.weight", ("kv", "d"), "heads !fused_qkv"),
    Row("self_attn.v_proj.weight", ("kv", "d"), "heads !fused_qkv"),
    Row("self_attn.qkv_proj.weight", ("qkv", "d"), "heads fused_qkv"),
    Row("self_attn.o_proj.weight", ("d", "o"), "heads"),
    Row("self_attn.q_proj.bias", ("q",), "heads qkv_bias"),
    Row("self_attn.k_proj.bias", ("kv",), "heads qkv_bias"),
    Row("self_attn.v_proj.bias", ("kv",), "heads qkv_bias"),
    Row("self_attn.o_proj.bias", ("d",), "heads o_bias"),
    Row("self_attn.q_norm.weight", ("hd",), "heads qk_norm"),
    Row("self_attn.k_norm.weight", ("hd",), "heads qk_norm"),
)
_LINEAR = (
    Row("linear_attn.in_proj_qkv.weight", ("2K+Vd", "d"), "linear"),
    Row("linear_attn.in_proj_z.weight", ("Vd", "d"), "linear"),
    Row("linear_attn.in_proj_b.weight", ("Hv", "d"), "linear"),
    Row("linear_attn.in_proj_a.weight", ("Hv", "d"), "linear"),
    Row("linear_attn.conv1d.weight", ("2K+Vd", "1", "c"), "linear"),
    Row("linear_attn.A_log", ("Hv",), "linear"),
    Row("linear_attn.dt_bias", ("Hv",), "linear"),
    Row("linear_attn.norm.weight", ("hv",), "linear"),
    Row("linear_attn.out_proj.weight", ("d", "Vd"), "linear"),
)
_NORMS = (
    Row("input_layernorm.weight", ("d",)),
    Row("post_attention_layernorm.weight", ("d",)),
    Row("pre_feedforward_layernorm.weight", ("d",), "sandwich"),
    Row("post_feedforward_layernorm.weight", ("d",), "sandwich"),
)
_MLP = (
    Row("mlp.gate_proj.weight", ("I", "d"), "dense"),
    Row("mlp.up_proj.weight", ("I", "d"), "dense"),
    Row("mlp.down_proj.weight", ("d", "I"), "dense"),
    Row("mlp.gate.weight", ("E", "d"), "moe"),
    Row("mlp.shared_expert.gate_proj.weight", ("Is", "d"), "moe"),
    Row("mlp.shared_expert.up_proj.weight", ("Is", "d"), "moe"),
    Row("mlp.shared_expert.down_proj.weight", ("d", "Is"), "moe"),
    Row("mlp.shared_expert_gate.weight", ("1", "d"), "moe"),
)
EXPERT_ROWS = (
    Row("mlp.experts.{e}.gate_proj.weight", ("Ie", "d"), "moe"),
    Row("mlp.experts.{e}.up_proj.weight", ("Ie", "d"), "moe"),
    Row("mlp.experts.{e}.down_proj.weight", ("d", "Ie"), "moe"),
)
LAYER_ROWS = (*_NORMS, *_ATTENTION, *_LINEAR, *_MLP)

# -- DeepSeek-V4: published name of a part, name in the library ----------------------------------

_V4_GLOBAL = {
    "embed.weight": "embed_tokens.weight", "norm.weight": "norm.weight",
    "hc_head_fn": "hc_head.hc_fn", "hc_head_base": "hc_head.hc_base",
    "hc_head_scale": "hc_head.hc_scale",
}
_V4_PARTS = (
    ("hc_attn_", "attn_hc."), ("hc_ffn_", "ffn_hc."),
    ("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"),
    ("attn.wq_a", "self_attn.q_a_proj"), ("attn.q_norm", "self_attn.q_a_norm"),
    ("attn.wq_b", "self_attn.q_b_proj"), ("attn.wkv", "self_attn.kv_proj"),
    ("attn.kv_norm", "self_attn.kv_norm"), ("attn.wo_a", "self_attn.o_a_proj"),
    ("attn.wo_b", "self_attn.o_b_proj"), ("attn.attn_sink", "self_attn.sinks"),
    ("attn.compressor.wkv", "self_attn.compressor.kv_proj"),
    ("attn.compressor.wgate", "self_attn.compressor.gate_proj"),
    ("attn.compressor.ape", "self_attn.compressor.position_bias"),
    ("attn.compressor.norm", "self_attn.compressor.kv_norm"),
    ("attn.indexer.wq_b", "self_attn.compressor.indexer.q_b_proj"),
    ("attn.indexer.weights_proj", "self_attn.compressor.indexer.scorer.weights_proj"),
    ("attn.indexer.compressor.wkv", "self_attn.compressor.indexer.kv_proj"),
    ("attn.indexer.compressor.wgate", "self_attn.compressor.indexer.gate_proj"),
    ("attn.indexer.compressor.ape", "self_attn.compressor.indexer.position_bias"),
    ("attn.indexer.compressor.norm", "self_attn.compressor.indexer.kv_norm"),
    ("ffn.gate.bias", "mlp.gate.e_score_correction_bias"), ("ffn.gate.", "mlp.gate."),
    ("ffn.shared_experts.w1", "mlp.shared_experts.gate_proj"),
    ("ffn.shared_experts.w2", "mlp.shared_experts.down_proj"),
    ("ffn.shared_experts.w3", "mlp.shared_experts.up_proj"),
)
# What older and newer releases of the library wrote instead.
_V4_VARIANTS = (
    ("attn.kv_norm", "attn.norm"), ("self_attn.q_a_norm", "self_attn.q_norm"),
    ("indexer.scorer.weights_proj", "indexer.weights_proj"),
)
_LAYER = re.compile(r"(layers\.\d+\.)(.*)")
_V4_EXPERT = re.compile(r"(layers\.\d+\.)ffn\.experts\.(\d+)\.(w[123])")
_HF_EXPERT = re.compile(r"(layers\.\d+\.)mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
_PARTS = {"w1": "gate", "w2": "down", "w3": "up"}


def v4_aliases(name: str) -> list[str]:
    """What a file of any release may call the tensor `name` of the `.bin` format."""
    if name in _V4_GLOBAL:
        return [name, _V4_GLOBAL[name]]
    if _V4_EXPERT.fullmatch(name):
        return [f"{name}.weight"]
    match = _LAYER.fullmatch(name)
    if not match:
        return [name]
    layer, rest = match.groups()
    found = [rest]
    for ours, theirs in _V4_PARTS:
        if rest.startswith(ours):
            found.append(theirs + rest.removeprefix(ours))
            break
    for old, new in _V4_VARIANTS:
        found += [f.replace(old, new) for f in list(found) if f.startswith(old) or old in f]
    return [layer + f for f in dict.fromkeys(found)]


def kimi_aliases(name: str) -> list[str]:
    if re.search(r"\.experts\.\d+\.w[123]$", name):
        return [f"{name}.weight_packed", f"{name}.weight"]
    return [name]


def aliases(arch: str, name: str) -> list[str]:
    """Names behind the prefix, the likeliest first."""
    if arch == "deepseek_v4":
        return v4_aliases(name)
    return kimi_aliases(name) if arch == "kimi_k3" else [name]


@dataclass(frozen=True)
class Fused:
    """A matrix inside a larger tensor."""

    name: str
    index: int | None  # of the leading axis; None: the tensor is a matrix
    part: str  # gate, up: first and second half of the rows; down: all


def fused(name: str) -> list[Fused]:
    """Where a matrix may be if it has no tensor of its own."""
    stacked = re.fullmatch(r"(layers\.\d+\.\w+\.experts)\.(\d+)\.(w[123])", name)
    out = [Fused(f"{stacked[1]}.{stacked[3]}", int(stacked[2]), "all")] if stacked else []
    v4, library = _V4_EXPERT.fullmatch(name), _HF_EXPERT.fullmatch(name)
    match = v4 or library
    if match:
        part = _PARTS[match[3]] if v4 else match[3]
        stack = "down_proj" if part == "down" else "gate_up_proj"
        out.append(Fused(f"{match[1]}mlp.experts.{stack}", int(match[2]), part))
    if name.endswith(("mlp.gate_proj.weight", "mlp.up_proj.weight")):
        part = "gate" if name.endswith("gate_proj.weight") else "up"
        out.append(Fused(re.sub(r"(gate|up)_proj", "gate_up_proj", name), None, part))
    return out


@dataclass(frozen=True)
class FfnNames:
    """Canonical names of the parts of a layer, behind `layers.{l}.`."""

    pre_attn: str
    post_attn: str | None
    pre_ffn: str
    post_ffn: str | None
    dense: tuple[str, str, str]  # gate, up, down
    router: str
    router_bias: str | None
    table: str | None  # experts of each token id
    expert: tuple[str, str, str]
    shared: tuple[str, str, str]
    shared_gate: str | None = None
    latent: tuple[str, str, str] | None = None  # down, up, norm


_K3 = FfnNames(
    "input_layernorm.weight", None, "post_attention_layernorm.weight", None,
    tuple(f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
    "block_sparse_moe.gate.weight", "block_sparse_moe.gate.e_score_correction_bias", None,
    tuple(f"block_sparse_moe.experts.{{e}}.{w}" for w in ("w1", "w3", "w2")),
    tuple(f"block_sparse_moe.shared_experts.{p}_proj.weight" for p in ("gate", "up", "down")),
    None,
    ("block_sparse_moe.routed_expert_down_proj.weight",
     "block_sparse_moe.routed_expert_up_proj.weight", "block_sparse_moe.routed_expert_norm.weight"),
)
_V4 = FfnNames(
    "attn_norm.weight", None, "ffn_norm.weight", None,
    ("", "", ""), "ffn.gate.weight", "ffn.gate.bias", "ffn.gate.tid2eid",
    tuple(f"ffn.experts.{{e}}.{w}" for w in ("w1", "w3", "w2")),
    tuple(f"ffn.shared_experts.{w}.weight" for w in ("w1", "w3", "w2")),
)
_LIBRARY = FfnNames(
    "input_layernorm.weight", None, "post_attention_layernorm.weight", None,
    tuple(f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
    "mlp.gate.weight", None, None,
    tuple(f"mlp.experts.{{e}}.{p}_proj.weight" for p in ("gate", "up", "down")),
    tuple(f"mlp.shared_expert.{p}_proj.weight" for p in ("gate", "up", "down")),
    "mlp.shared_expert_gate.weight",
)
_GEMMA = FfnNames(
    "input_layernorm.weight", "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight",
    _LIBRARY.dense, "", None, None, ("", "", ""), ("", "", ""),
)
FFN_NAMES = {
    "mkim_k3": _K3, "kimi_k3": _K3, "mkim_dsv4": _V4, "deepseek_v4": _V4, "gemma3": _GEMMA,
    "qwen3_5": _LIBRARY, "qwen3_5_moe": _LIBRARY, "llama": _LIBRARY,
}
