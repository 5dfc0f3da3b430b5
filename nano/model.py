"""The trainable Kimi K3 model.

Names of parameters are the tensor names of the `.bin` format, except that the routed experts of a
layer are stacked: `layers.{l}.block_sparse_moe.experts.w1|w2|w3`, each [E, rows, columns].

Shapes in comments: B batch, T tokens, d hidden, P = kda_heads * kda_dim, E experts, k per token,
m latent width of the routed experts, i their inner width, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from nano.config import K3Config
from nano.kda import kda_chunks, kda_steps
from nano.moe import Activation, grouped_experts, route, situ
from nano.quant import mxfp4_straight_through

IGNORE = -100  # target that carries no loss


@dataclass
class ForwardOptions:
    """Switches of one forward pass."""

    dropout: float = 0.0  # on sublayer outputs, only in training mode
    quantize_experts: bool = False  # run experts through the MXFP4 round trip
    kda_chunked: bool = True
    checkpoint_layers: bool = False  # recompute layers in the backward pass to save memory


@dataclass
class Documents:
    """Which tokens of a batch belong together; all masks follow from document numbers [B, T]."""

    ids: Tensor | None
    attention: Tensor | None  # [B, 1, T, T] bool: causal and same document
    taps: list[Tensor]  # taps[s-1] [B, T, 1]: 1 where token t-s is in the same document

    @classmethod
    def of(cls, doc: Tensor | None, taps: int, dtype: torch.dtype) -> Documents:
        if doc is None:
            return cls(None, None, [])
        t = doc.shape[1]
        causal = torch.ones(t, t, dtype=torch.bool, device=doc.device).tril()
        same = (doc.unsqueeze(2) == doc.unsqueeze(1)) & causal
        shifts = []
        for s in range(1, taps):
            ok = F.pad(doc[:, s:] == doc[:, :-s], (min(s, t), 0)) if s < t else doc < doc.min()
            shifts.append(ok.unsqueeze(-1).to(dtype))
        return cls(doc, same.unsqueeze(1), shifts)


class Weight(nn.Module):
    """One named tensor; exists so that parameter names end in `.weight`."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*shape))


def wide(x: Tensor) -> Tensor:
    """f32 for half-precision values; f32 and f64 stay as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def rms(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * gain


def activation(config: K3Config) -> Activation:
    return functools.partial(situ, beta=config.situ_beta, linear_beta=config.situ_linear_beta)


def mix(candidates: list[Tensor], norm: Tensor, proj: Tensor, eps: float) -> Tensor:
    """Attention residual: softmax-weighted mean of closed blocks and the running sum.

    score_j = (c_j / rms(c_j)) . (norm * proj); the candidates enter the mean un-normalised.
    """
    w = norm * proj
    scores = [
        (c * w).sum(dim=-1) * torch.rsqrt(c.square().mean(dim=-1) + eps) for c in candidates
    ]
    alpha = torch.stack(scores, dim=-1).softmax(dim=-1)
    parts = alpha.unsqueeze(-1).unbind(dim=-2)
    out = parts[0] * candidates[0]
    for a, c in zip(parts[1:], candidates[1:], strict=True):
        out = out + a * c
    return out


class KdaAttention(nn.Module):
    """Delta-rule attention: short convolutions, per-channel decay, recurrence, gated output."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        d, p, h = config.hidden, config.kda_width, config.kda_heads
        self.config = config
        self.q_proj, self.k_proj, self.v_proj = Weight(p, d), Weight(p, d), Weight(p, d)
        self.g_proj = Weight(p, d)
        self.o_proj = Weight(d, p)
        self.q_conv1d = Weight(p, config.kda_conv)
        self.k_conv1d = Weight(p, config.kda_conv)
        self.v_conv1d = Weight(p, config.kda_conv)
        self.f_a_proj = Weight(config.kda_fa_rank, d)
        self.f_b_proj = Weight(p, config.kda_fa_rank)
        self.b_proj = Weight(h, d)
        self.A_log = nn.Parameter(torch.empty(config.a_log_size()))
        self.dt_bias = nn.Parameter(torch.empty(p))
        self.o_norm = Weight(config.kda_dim)

    def forward(self, x: Tensor, docs: Documents, options: ForwardOptions) -> Tensor:
        c = self.config
        b, t, _ = x.shape
        h, dim, p = c.kda_heads, c.kda_dim, c.kda_width
        stacked = torch.cat(
            [
                self.q_proj.weight, self.k_proj.weight, self.v_proj.weight, self.g_proj.weight,
                self.f_a_proj.weight, self.b_proj.weight,
            ]
        )
        qkv, gate, low, beta = F.linear(x, stacked).split([3 * p, p, c.kda_fa_rank, h], dim=-1)
        taps = torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight])
        q, k, v = wide(F.silu(short_conv(qkv, taps, docs))).view(b, t, 3, h, dim).unbind(2)
        q, k = self._unit(q) * dim**-0.5, self._unit(k)
        decay = wide(F.linear(low, self.f_b_proj.weight) + self.dt_bias).view(b, t, h, dim)
        rate = self.A_log.exp()
        rate = rate.view(h, 1) if c.kda_a_log == "head" else rate.view(1, dim)
        g = c.gate_lower_bound * torch.sigmoid(rate * decay)
        scan = kda_chunks if options.kda_chunked else kda_steps
        extra = {"lower_bound": c.gate_lower_bound} if options.kda_chunked else {}
        o, _ = scan(q, k, v, g, torch.sigmoid(wide(beta)), docs.ids, **extra)
        o = rms(o, self.o_norm.weight, c.rms_eps).reshape(b, t, p)
        return F.linear((o * torch.sigmoid(gate)).to(x.dtype), self.o_proj.weight)

    def _unit(self, u: Tensor) -> Tensor:
        if self.config.kda_l2 == "sum1e-6":
            return u * torch.rsqrt(u.square().sum(dim=-1, keepdim=True) + 1e-6)
        return F.normalize(u, dim=-1, eps=1e-12)


def short_conv(u: Tensor, taps: Tensor, docs: Documents) -> Tensor:
    """Causal depthwise convolution; u [B,T,C], taps [C,n], last tap on the current token."""
    n = taps.shape[1]
    columns = taps.unbind(1)
    out = u * columns[n - 1]
    for s in range(1, min(n, u.shape[1])):
        earlier = F.pad(u[:, :-s], (0, 0, s, 0))
        if docs.ids is not None:
            earlier = earlier * docs.taps[s - 1].to(u.dtype)
        out = out + earlier * columns[n - 1 - s]
    return out


class MlaAttention(nn.Module):
    """Latent attention without positions: low-rank queries, one shared key part, gated output."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        c, d = config, config.hidden
        self.config = config
        self.q_a_proj = Weight(c.mla_q_lora, d)
        self.q_a_layernorm = Weight(c.mla_q_lora)
        self.q_b_proj = Weight(c.mla_heads * c.mla_qk, c.mla_q_lora)
        self.kv_a_proj_with_mqa = Weight(c.mla_kv_lora + c.mla_rope, d)
        self.kv_a_layernorm = Weight(c.mla_kv_lora)
        self.kv_b_proj = Weight(c.mla_heads * (c.mla_nope + c.mla_v), c.mla_kv_lora)
        self.g_proj = Weight(c.mla_heads * c.mla_v, d)
        self.o_proj = Weight(d, c.mla_heads * c.mla_v)

    def forward(self, x: Tensor, docs: Documents, options: ForwardOptions) -> Tensor:
        c = self.config
        b, t, _ = x.shape
        h = c.mla_heads
        stacked = torch.cat(
            [self.q_a_proj.weight, self.kv_a_proj_with_mqa.weight, self.g_proj.weight]
        )
        sizes = [c.mla_q_lora, c.mla_kv_lora, c.mla_rope, h * c.mla_v]
        q_low, kv_low, shared, gate = F.linear(x, stacked).split(sizes, dim=-1)
        q_low = rms(q_low, self.q_a_layernorm.weight, c.rms_eps)
        kv_low = rms(kv_low, self.kv_a_layernorm.weight, c.rms_eps)
        q = F.linear(q_low, self.q_b_proj.weight).view(b, t, h, c.mla_qk).transpose(1, 2)
        kv = F.linear(kv_low, self.kv_b_proj.weight).view(b, t, h, c.mla_nope + c.mla_v)
        k_own, v = kv.transpose(1, 2).split([c.mla_nope, c.mla_v], dim=-1)
        k = torch.cat([k_own, shared.unsqueeze(1).expand(b, h, t, c.mla_rope)], dim=-1)
        # Values padded to the key size: the fused CPU kernel wants one size for all three.
        padded = F.pad(v, (0, c.mla_qk - c.mla_v)) if c.mla_qk > c.mla_v else v
        scale = c.mla_qk**-0.5
        out = F.scaled_dot_product_attention(
            q, k, padded, attn_mask=docs.attention, is_causal=docs.attention is None, scale=scale
        )
        out = out[..., : c.mla_v].transpose(1, 2).reshape(b, t, h * c.mla_v)
        return F.linear(out * torch.sigmoid(gate), self.o_proj.weight)


class DenseMlp(nn.Module):
    """situ(gate x, up x) through a down projection; also the shared experts."""

    def __init__(self, config: K3Config, inner: int) -> None:
        super().__init__()
        self.config = config
        self.gate_proj, self.up_proj = Weight(inner, config.hidden), Weight(inner, config.hidden)
        self.down_proj = Weight(config.hidden, inner)

    def forward(self, x: Tensor) -> Tensor:
        c = self.config
        both = F.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight]))
        gate, up = both.chunk(2, dim=-1)
        return F.linear(activation(c)(gate, up), self.down_proj.weight)


class Router(nn.Module):
    def __init__(self, config: K3Config) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.n_experts, config.hidden))
        self.register_buffer("e_score_correction_bias", torch.zeros(config.n_experts))
        self.e_score_correction_bias: Tensor


class Experts(nn.Module):
    """The routed experts of one layer: w1 gate, w2 down, w3 up."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        e, i, m = config.n_experts, config.moe_inter, config.routed_hidden
        self.w1 = nn.Parameter(torch.empty(e, i, m))
        self.w2 = nn.Parameter(torch.empty(e, m, i))
        self.w3 = nn.Parameter(torch.empty(e, i, m))


class LatentMoe(nn.Module):
    """Routed experts on a narrow latent, plus shared experts on the full width."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        self.config = config
        self.gate = Router(config)
        self.routed_expert_down_proj = Weight(config.routed_hidden, config.hidden)
        self.routed_expert_up_proj = Weight(config.hidden, config.routed_hidden)
        self.routed_expert_norm = Weight(config.routed_hidden)
        self.shared_experts = DenseMlp(config, config.shared_inter)
        self.experts = Experts(config)
        # Calls per expert since the counter was last cleared; read by the load balancer.
        self.register_buffer("load", torch.zeros(config.n_experts), persistent=False)
        self.load: Tensor

    @property
    def selection_bias(self) -> Tensor:
        return self.gate.e_score_correction_bias

    def forward(self, x: Tensor, docs: Documents, options: ForwardOptions) -> Tensor:
        c = self.config
        flat = x.reshape(-1, c.hidden)
        with torch.autocast(device_type=flat.device.type, enabled=False):
            logits = F.linear(wide(flat), self.gate.weight)
        ids, weights = route(
            logits, self.gate.e_score_correction_bias, c.top_k, c.routed_scale
        )
        latent = F.linear(flat, self.routed_expert_down_proj.weight)
        y, counts = self.routed(latent, ids, weights, options)
        if self.training:
            self.load += counts
        y = rms(y, self.routed_expert_norm.weight, c.rms_eps)
        y = F.linear(y, self.routed_expert_up_proj.weight).view_as(x)
        return y + self.shared_experts(x)

    def routed(
        self, latent: Tensor, ids: Tensor, weights: Tensor, options: ForwardOptions
    ) -> tuple[Tensor, Tensor]:
        """Weighted sum [N, m] of the chosen experts' outputs, and the calls per expert [E]."""
        c = self.config
        w13 = torch.cat([self.experts.w1, self.experts.w3], dim=1)
        w2 = self.experts.w2
        if options.quantize_experts:
            w13, w2 = mxfp4_straight_through(w13), mxfp4_straight_through(w2)
        return grouped_experts(
            latent, ids, weights, w13.to(latent.dtype), w2.to(latent.dtype), activation(c)
        )


class Layer(nn.Module):
    def __init__(self, config: K3Config, index: int) -> None:
        super().__init__()
        d = config.hidden
        self.config, self.index = config, index
        self.input_layernorm, self.post_attention_layernorm = Weight(d), Weight(d)
        self.self_attention_res_norm, self.self_attention_res_proj = Weight(d), Weight(d)
        self.mlp_res_norm, self.mlp_res_proj = Weight(d), Weight(d)
        self.self_attn = MlaAttention(config) if config.is_mla(index) else KdaAttention(config)
        if config.is_dense(index):
            self.mlp = DenseMlp(config, config.dense_inter)
        else:
            self.block_sparse_moe = LatentMoe(config)

    def forward(
        self, h: Tensor, blocks: list[Tensor], docs: Documents, options: ForwardOptions
    ) -> Tensor:
        """h: partial sum entering the layer; blocks: closed blocks (the caller adds new ones)."""
        c = self.config
        x = h
        if blocks:
            x = mix([*blocks, h], self.self_attention_res_norm.weight,
                    self.self_attention_res_proj.weight, c.rms_eps)
        boundary = self.closes_block
        if boundary:
            blocks = [*blocks, h]
        a = self.self_attn(rms(x, self.input_layernorm.weight, c.rms_eps), docs, options)
        a = F.dropout(a, options.dropout, self.training)
        p = a if boundary else h + a
        x = mix([*blocks, p], self.mlp_res_norm.weight, self.mlp_res_proj.weight, c.rms_eps)
        x = rms(x, self.post_attention_layernorm.weight, c.rms_eps)
        f = self.mlp(x) if c.is_dense(self.index) else self.block_sparse_moe(x, docs, options)
        return p + F.dropout(f, options.dropout, self.training)

    @property
    def closes_block(self) -> bool:
        """Whether the partial sum entering this layer becomes a block of its own."""
        return self.index % self.config.attn_res_block == 0


class K3Model(nn.Module):
    """Tokens [B, T] to logits [B, T, V]."""

    def __init__(self, config: K3Config) -> None:
        super().__init__()
        config.validate()
        self.config = config
        self.embed_tokens = Weight(config.vocab, config.hidden)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.n_layers))
        self.norm = Weight(config.hidden)
        self.output_attn_res_norm = Weight(config.hidden)
        self.output_attn_res_proj = Weight(config.hidden)
        self.lm_head = Weight(config.vocab, config.hidden)
        self.options = ForwardOptions()

    def forward(self, tokens: Tensor, doc: Tensor | None = None) -> Tensor:
        """`doc`: document numbers [B, T]; None = every row is one document."""
        return F.linear(self.hidden(tokens, doc), self.lm_head.weight)

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.embed_tokens.weight)

    def hidden(self, tokens: Tensor, doc: Tensor | None = None) -> Tensor:
        """Normed output vectors [B, T, d], one product before the logits."""
        options = self.options
        h = self.embed(tokens)
        docs = Documents.of(doc, self.config.kda_conv, h.dtype)
        blocks: list[Tensor] = []
        for layer in self.layers:
            if options.checkpoint_layers and self.training:
                out = torch.utils.checkpoint.checkpoint(
                    layer, h, blocks, docs, options, use_reentrant=False
                )
            else:
                out = layer(h, blocks, docs, options)
            if layer.closes_block:
                blocks = [*blocks, h]
            h = out
        y = mix([*blocks, h], self.output_attn_res_norm.weight,
                self.output_attn_res_proj.weight, self.config.rms_eps)
        return rms(y, self.norm.weight, self.config.rms_eps)

    def loss(self, tokens: Tensor, targets: Tensor, doc: Tensor | None = None) -> Tensor:
        """Sum of nats over targets that are not IGNORE."""
        hidden = self.hidden(tokens, doc)
        with torch.autocast(device_type=tokens.device.type, enabled=False):
            logits = F.linear(wide(hidden), self.lm_head.weight)
        return F.cross_entropy(
            logits.view(-1, logits.shape[-1]), targets.reshape(-1),
            ignore_index=IGNORE, reduction="sum",
        )

    def moe_layers(self) -> list[tuple[int, LatentMoe]]:
        return [
            (layer.index, layer.block_sparse_moe)
            for layer in self.layers
            if not self.config.is_dense(layer.index)
        ]


RESIDUAL_WRITERS = ("o_proj", "down_proj", "experts.w2", "routed_expert_up_proj")


@torch.no_grad()
def initialise(model: K3Model, generator: torch.Generator) -> None:
    """Fills every parameter; the same generator state gives the same model.

    Matrices N(0, 1/sqrt(fan_in)), those that write to the residual stream scaled by
    1/sqrt(2L); embedding and head N(0, 0.02); router N(0, 0.3/sqrt(d)) so that the first
    selections are not decided by a few large rows; decay rates log-uniform in 1..16;
    convolutions pass the current token through; residual projections 0 (a plain mean).
    """
    depth = 1.0 / math.sqrt(2 * model.config.n_layers)
    for name, p in model.named_parameters():
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            p.normal_(0.0, 0.02, generator=generator)
        elif name.endswith("A_log"):
            p.uniform_(1.0, 16.0, generator=generator).log_()
        elif name.endswith(("dt_bias", "res_proj.weight")):
            p.zero_()
        elif "norm" in name:
            p.fill_(1.0)
        elif "conv1d" in name:
            p.normal_(0.0, 0.05, generator=generator)
            p[:, -1] += 1.0
        elif name.endswith("gate.weight"):
            p.normal_(0.0, 0.3 / math.sqrt(p.shape[1]), generator=generator)
        else:
            std = 1.0 / math.sqrt(p.shape[-1])
            if any(part in name for part in RESIDUAL_WRITERS) and "routed_expert_down" not in name:
                std *= depth
            p.normal_(0.0, std, generator=generator)
    for _, moe in model.moe_layers():
        moe.gate.e_score_correction_bias.zero_()
