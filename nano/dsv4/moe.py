"""Experts of a DeepSeek-V4 layer: routed by token id or by score, and one shared expert.

Shapes: N tokens, d hidden, E routed experts, k per token, F their inner width.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nano.dsv4.attention import Pass
from nano.dsv4.config import Dsv4Config
from nano.model import ForwardOptions, Weight, wide
from nano.moe import Activation, grouped_experts
from nano.quant import mxfp4_straight_through


def clamped_swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit); no clamps when limit <= 0."""
    if limit > 0:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return F.silu(gate) * up


def activation(config: Dsv4Config) -> Activation:
    return functools.partial(clamped_swiglu, limit=config.swiglu_limit)


def scores(logits: Tensor) -> Tensor:
    """sqrt(softplus(logits)) [N, E]; softplus(x) = log1p(exp(x)), or x above 20."""
    return F.softplus(logits).sqrt()


def select(score: Tensor, bias: Tensor, count: int) -> Tensor:
    """Ids [N, k] of the highest biased scores, best first, ties to the smaller id."""
    key = score.detach() + bias
    return torch.argsort(key, dim=-1, descending=True, stable=True)[:, :count]


def share(picked: Tensor, scale: float) -> Tensor:
    """Unbiased scores of the selected experts [N, k] to weights that sum to `scale`."""
    return picked / picked.sum(dim=-1, keepdim=True).clamp_min(1e-20) * scale


class Gate(nn.Module):
    """Router: weight [E, d]; bias [E] or, in a hashed layer, the experts of each token id."""

    def __init__(self, config: Dsv4Config, hashed: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden))
        if hashed:
            shape = (config.vocab, config.num_experts_per_tok)
            self.register_buffer("tid2eid", torch.zeros(shape, dtype=torch.int32))
        else:
            self.register_buffer("bias", torch.zeros(config.n_routed_experts))


class Experts(nn.Module):
    """w1 gate, w2 down, w3 up of all routed experts."""

    def __init__(self, config: Dsv4Config) -> None:
        super().__init__()
        e, f, d = config.n_routed_experts, config.moe_intermediate_size, config.hidden
        self.w1 = nn.Parameter(torch.empty(e, f, d))
        self.w2 = nn.Parameter(torch.empty(e, d, f))
        self.w3 = nn.Parameter(torch.empty(e, f, d))


class SharedExpert(nn.Module):
    def __init__(self, config: Dsv4Config) -> None:
        super().__init__()
        f, d = config.moe_intermediate_size, config.hidden
        self.config = config
        self.w1, self.w2, self.w3 = Weight(f, d), Weight(d, f), Weight(f, d)

    def forward(self, x: Tensor) -> Tensor:
        both = F.linear(x, torch.cat([self.w1.weight, self.w3.weight]))
        gate, up = both.chunk(2, dim=-1)
        return F.linear(activation(self.config)(gate, up), self.w2.weight)


class Moe(nn.Module):
    def __init__(self, config: Dsv4Config, index: int) -> None:
        super().__init__()
        self.config, self.index = config, index
        self.hashed = config.is_hashed(index)
        self.gate = Gate(config, self.hashed)
        self.experts = Experts(config)
        self.shared_experts = SharedExpert(config)
        # Calls per expert since the counter was last cleared; read by the load balancer.
        self.register_buffer("load", torch.zeros(config.n_routed_experts), persistent=False)
        self.load: Tensor

    @property
    def selection_bias(self) -> Tensor | None:
        return None if self.hashed else self.gate.bias

    def forward(self, x: Tensor, tokens: Tensor, run: Pass, options: ForwardOptions) -> Tensor:
        """Normed sublayer input [B, T, d], token ids [B, T] -> [B, T, d]."""
        flat = x.reshape(-1, x.shape[-1])
        ids, weights = self.route(flat, tokens.reshape(-1))
        run.see(self.index, "moe.sel", ids.view(*tokens.shape, -1))
        run.see(self.index, "moe.w", weights.view(*tokens.shape, -1))
        w13 = torch.cat([self.experts.w1, self.experts.w3], dim=1)
        w2 = self.experts.w2
        if options.quantize_experts:
            w13, w2 = mxfp4_straight_through(w13), mxfp4_straight_through(w2)
        y, counts = grouped_experts(
            flat, ids, weights, w13.to(flat.dtype), w2.to(flat.dtype), activation(self.config)
        )
        if self.training:
            self.load += counts
        return y.view_as(x) + self.shared_experts(x)

    def route(self, flat: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Expert ids and weights, each [N, k]."""
        c = self.config
        with torch.autocast(flat.device.type, enabled=False):
            score = scores(F.linear(wide(flat), self.gate.weight))
        if self.hashed:
            ids = self.gate.tid2eid[tokens].long()
        else:
            ids = select(score, self.gate.bias, c.num_experts_per_tok)
        return ids, share(score.gather(1, ids), c.routed_scaling_factor)
