"""The tensors of a K3 model, in the order in which the exporter writes them.

Symbols in the shapes: d hidden, V vocab, P = kda_heads * kda_dim, H heads, m latent width of the
routed experts, i their inner width.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from nano.config import K3Config

# Names of both architectures; groups: layer, expert, part.
EXPERT_NAME = re.compile(r"layers\.(\d+)\.(?:block_sparse_moe|ffn)\.experts\.(\d+)\.(w[123])")
STACK_NAME = re.compile(r"layers\.(\d+)\.(?:block_sparse_moe|ffn)\.experts\.(w[123])")
EXPERT_PARTS = ("w1", "w2", "w3")  # gate, down, up
# Tensors whose exact values decide discrete choices or shape a state over many steps, and which
# are small: they stay f32 in a bf16 spine.
KEEP_F32 = (".gate.weight", "conv1d.weight", "ape", "_fn")


@dataclass(frozen=True)
class Tensor:
    """A tensor of the container: `dims` outermost first."""

    name: str
    dims: tuple[int, ...]
    expert: bool = False
    integer: bool = False  # i32; every other tensor holds reals

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def is_spine_matrix(self) -> bool:
        """Whether a bf16 spine holds this tensor in bf16."""
        real = not self.expert and not self.integer
        return real and len(self.dims) == 2 and not self.name.endswith(KEEP_F32)


def expert_name(layer: int, expert: int, part: str) -> str:
    return f"layers.{layer}.block_sparse_moe.experts.{expert}.{part}"


def stack_name(layer: int, part: str) -> str:
    return f"layers.{layer}.block_sparse_moe.experts.{part}"


def stack_of(expert: str) -> str:
    """The stack that holds an expert's matrix: its name without the expert's number."""
    return re.sub(r"\.\d+\.(w[123])$", r".\1", expert)


def k3_tensors(config: K3Config) -> Iterator[Tensor]:
    """Every tensor that a model of this config must have."""
    d, v = config.hidden, config.vocab
    yield Tensor("embed_tokens.weight", (v, d))
    yield Tensor("lm_head.weight", (v, d))
    for name in ("norm", "output_attn_res_norm", "output_attn_res_proj"):
        yield Tensor(f"{name}.weight", (d,))
    for layer in range(config.n_layers):
        prefix = f"layers.{layer}."
        for name in (
            "input_layernorm", "post_attention_layernorm", "self_attention_res_norm",
            "self_attention_res_proj", "mlp_res_norm", "mlp_res_proj",
        ):
            yield Tensor(f"{prefix}{name}.weight", (d,))
        attention = _mla(config) if config.is_mla(layer) else _kda(config)
        for name, dims in attention:
            yield Tensor(f"{prefix}self_attn.{name}", dims)
        if config.is_dense(layer):
            for name, dims in _mlp(d, config.dense_inter):
                yield Tensor(f"{prefix}mlp.{name}", dims)
        else:
            yield from _moe(config, layer)


Shape = tuple[int, ...]


def _kda(c: K3Config) -> Iterator[tuple[str, Shape]]:
    p, d = c.kda_width, c.hidden
    for name in ("q_proj", "k_proj", "v_proj", "g_proj"):
        yield f"{name}.weight", (p, d)
    yield "o_proj.weight", (d, p)
    for name in ("q_conv1d", "k_conv1d", "v_conv1d"):
        yield f"{name}.weight", (p, c.kda_conv)
    yield "f_a_proj.weight", (c.kda_fa_rank, d)
    yield "f_b_proj.weight", (p, c.kda_fa_rank)
    yield "A_log", (c.a_log_size(),)
    yield "dt_bias", (p,)
    yield "b_proj.weight", (c.kda_heads, d)
    yield "o_norm.weight", (c.kda_dim,)


def _mla(c: K3Config) -> Iterator[tuple[str, Shape]]:
    d, h = c.hidden, c.mla_heads
    yield "q_a_proj.weight", (c.mla_q_lora, d)
    yield "q_a_layernorm.weight", (c.mla_q_lora,)
    yield "q_b_proj.weight", (h * c.mla_qk, c.mla_q_lora)
    yield "kv_a_proj_with_mqa.weight", (c.mla_kv_lora + c.mla_rope, d)
    yield "kv_a_layernorm.weight", (c.mla_kv_lora,)
    yield "kv_b_proj.weight", (h * (c.mla_nope + c.mla_v), c.mla_kv_lora)
    yield "g_proj.weight", (h * c.mla_v, d)
    yield "o_proj.weight", (d, h * c.mla_v)


def _mlp(d: int, inner: int) -> Iterator[tuple[str, Shape]]:
    yield "gate_proj.weight", (inner, d)
    yield "up_proj.weight", (inner, d)
    yield "down_proj.weight", (d, inner)


def expert_dims(c: K3Config, part: str) -> tuple[int, int]:
    i, m = c.moe_inter, c.routed_hidden
    return (m, i) if part == "w2" else (i, m)


def _moe(c: K3Config, layer: int) -> Iterator[Tensor]:
    prefix = f"layers.{layer}.block_sparse_moe."
    m, d = c.routed_hidden, c.hidden
    yield Tensor(f"{prefix}gate.weight", (c.n_experts, d))
    yield Tensor(f"{prefix}gate.e_score_correction_bias", (c.n_experts,))
    yield Tensor(f"{prefix}routed_expert_down_proj.weight", (m, d))
    yield Tensor(f"{prefix}routed_expert_up_proj.weight", (d, m))
    yield Tensor(f"{prefix}routed_expert_norm.weight", (m,))
    for name, dims in _mlp(d, c.shared_inter):
        yield Tensor(f"{prefix}shared_experts.{name}", dims)
    for e in range(c.n_experts):
        for part in EXPERT_PARTS:
            yield Tensor(expert_name(layer, e, part), expert_dims(c, part), expert=True)
