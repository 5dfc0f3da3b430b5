"""The tensors of a DeepSeek-V4 model, in the order in which the exporter writes them."""

from __future__ import annotations

from collections.abc import Iterator

from nano.dsv4.config import OVERLAPPED, Dsv4Config
from nano.tensors import EXPERT_PARTS, Tensor

Shape = tuple[int, ...]


def expert_name(layer: int, expert: int, part: str) -> str:
    return f"layers.{layer}.ffn.experts.{expert}.{part}"


def stack_name(layer: int, part: str) -> str:
    return f"layers.{layer}.ffn.experts.{part}"


def expert_dims(c: Dsv4Config, part: str) -> tuple[int, int]:
    f, d = c.moe_intermediate_size, c.hidden
    return (d, f) if part == "w2" else (f, d)


def dsv4_tensors(config: Dsv4Config) -> Iterator[Tensor]:
    """Every tensor that a model of this config must have."""
    c = config
    d, v, s = c.hidden, c.vocab, c.hc_mult
    yield Tensor("embed.weight", (v, d))
    yield Tensor("head.weight", (v, d))
    yield Tensor("norm.weight", (d,))
    yield Tensor("hc_head_fn", (s, s * d))
    yield Tensor("hc_head_base", (s,))
    yield Tensor("hc_head_scale", (1,))
    for layer in range(c.n_layers):
        prefix = f"layers.{layer}."
        yield Tensor(f"{prefix}attn_norm.weight", (d,))
        yield Tensor(f"{prefix}ffn_norm.weight", (d,))
        for part in ("attn", "ffn"):
            rows = (2 + s) * s
            yield Tensor(f"{prefix}hc_{part}_fn", (rows, s * d))
            yield Tensor(f"{prefix}hc_{part}_base", (rows,))
            yield Tensor(f"{prefix}hc_{part}_scale", (3,))
        for name, dims in _attention(c, c.ratio(layer)):
            yield Tensor(f"{prefix}attn.{name}", dims)
        yield from _ffn(c, layer)


def _attention(c: Dsv4Config, ratio: int) -> Iterator[tuple[str, Shape]]:
    d, heads, q = c.hidden, c.n_heads * c.head_dim, c.q_lora_rank
    yield "wq_a.weight", (q, d)
    yield "q_norm.weight", (q,)
    yield "wq_b.weight", (heads, q)
    yield "wkv.weight", (c.head_dim, d)
    yield "kv_norm.weight", (c.head_dim,)
    yield "wo_a.weight", (c.o_groups * c.o_lora_rank, heads // c.o_groups)
    yield "wo_b.weight", (d, c.o_groups * c.o_lora_rank)
    yield "attn_sink", (c.n_heads,)
    if ratio:
        yield from _compressor(c, "compressor", ratio, c.head_dim)
    if ratio == OVERLAPPED:
        yield "indexer.wq_b.weight", (c.index_n_heads * c.index_head_dim, q)
        yield "indexer.weights_proj.weight", (c.index_n_heads, d)
        yield from _compressor(c, "indexer.compressor", ratio, c.index_head_dim)


def _compressor(c: Dsv4Config, name: str, ratio: int, width: int) -> Iterator[tuple[str, Shape]]:
    columns = 2 * width if ratio == OVERLAPPED else width
    yield f"{name}.wkv.weight", (columns, c.hidden)
    yield f"{name}.wgate.weight", (columns, c.hidden)
    yield f"{name}.ape", (ratio, columns)
    yield f"{name}.norm.weight", (width,)


def _ffn(c: Dsv4Config, layer: int) -> Iterator[Tensor]:
    prefix = f"layers.{layer}.ffn."
    e = c.n_routed_experts
    yield Tensor(f"{prefix}gate.weight", (e, c.hidden))
    if c.is_hashed(layer):
        yield Tensor(f"{prefix}gate.tid2eid", (c.vocab, c.num_experts_per_tok), integer=True)
    else:
        yield Tensor(f"{prefix}gate.bias", (e,))
    for part in EXPERT_PARTS:
        yield Tensor(f"{prefix}shared_experts.{part}.weight", expert_dims(c, part))
    for expert in range(e):
        for part in EXPERT_PARTS:
            yield Tensor(expert_name(layer, expert, part), expert_dims(c, part), expert=True)
