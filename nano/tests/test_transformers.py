"""Layers against the classes of the `transformers` library, where the installed version has them.

Its Kimi Linear classes share the delta attention, the latent attention and the router with K3.
Differences are bridged here: K3's bounded decay gate replaces the softplus gate, the low-rank
output gate becomes one matrix, the latent attention's output gate is held at 1/2.  (Releases up to
5.24 have no classes for K3 itself.)
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nano.model import Documents, ForwardOptions, KdaAttention, MlaAttention
from nano.moe import route
from nano.tests.tiny import tiny_config

hf: Any = pytest.importorskip(
    "transformers.models.kimi_linear.modeling_kimi_linear",
    reason="this Python has no transformers with Kimi classes",
)

LENGTH = 70


def hf_config(**changes: Any) -> Any:
    from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig

    c = tiny_config()
    return KimiLinearConfig(**{
        "hidden_size": c.hidden, "num_hidden_layers": 4, "num_attention_heads": c.mla_heads,
        "num_key_value_heads": c.mla_heads, "q_lora_rank": c.mla_q_lora,
        "kv_lora_rank": c.mla_kv_lora, "qk_nope_head_dim": c.mla_nope,
        "qk_rope_head_dim": c.mla_rope, "v_head_dim": c.mla_v, "linear_num_heads": c.kda_heads,
        "linear_head_dim": c.kda_dim, "linear_conv_kernel_dim": c.kda_conv,
        "rms_norm_eps": c.rms_eps, "attn_implementation": "eager", **changes,
    })


def fill(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5 + 0.1)


def batch(width: int) -> Tensor:
    return torch.randn(2, LENGTH, width, generator=torch.Generator().manual_seed(12))


class BoundedGate(nn.Module):
    """K3's decay: lower_bound * sigmoid(exp(A) * (f_b f_a x + dt))."""

    def __init__(self, ours: KdaAttention) -> None:
        super().__init__()
        self.ours = ours

    def forward(self, x: Tensor) -> Tensor:
        a, c = self.ours, self.ours.config
        low = x @ a.f_a_proj.weight.T @ a.f_b_proj.weight.T + a.dt_bias
        rate = a.A_log.exp().view(1, 1, c.kda_heads, 1)
        return c.gate_lower_bound * torch.sigmoid(rate * low.view(*x.shape[:2], c.kda_heads, -1))


def test_delta_attention() -> None:
    config = tiny_config(kda_a_log="head", kda_l2="sum1e-6")
    ours = KdaAttention(config)
    theirs = hf.KimiLinearDeltaAttention(hf_config(), 0)
    fill(ours)
    fill(theirs)
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj", "b_proj", "o_proj"):
            getattr(theirs, name).weight.copy_(getattr(ours, name).weight)
        taps = [getattr(ours, f"{part}_conv1d").weight for part in "qkv"]
        theirs.conv1d.weight.copy_(torch.cat(taps).unsqueeze(1))
        ours.g_proj.weight.copy_(theirs.g_b_proj.weight @ theirs.g_a_proj.weight)
        theirs.o_norm.weight.copy_(ours.o_norm.weight)
        theirs.forget_gate = BoundedGate(ours)
        x = batch(config.hidden)
        want = theirs(x)
        for chunked in (True, False):
            got = ours(x, Documents(None, None, []), ForwardOptions(kda_chunked=chunked))
            assert float((got - want).abs().max()) < 1e-5 * float(want.abs().max())


def test_latent_attention() -> None:
    config = tiny_config()
    ours = MlaAttention(config)
    theirs = hf.KimiLinearAttention(hf_config(), 3)
    fill(ours)
    with torch.no_grad():
        for name, p in theirs.named_parameters():
            p.copy_(dict(ours.named_parameters())[name])
        for norm in (theirs.q_a_layernorm, theirs.kv_a_layernorm):
            norm.variance_epsilon = config.rms_eps
        ours.g_proj.weight.zero_()
        x = batch(config.hidden)
        mask = torch.full((LENGTH, LENGTH), float("-inf")).triu(1).expand(2, 1, -1, -1)
        want = theirs(x, mask)[0]
        got = 2 * ours(x, Documents(None, None, []), ForwardOptions())
        assert float((got - want).abs().max()) < 1e-5 * float(want.abs().max())


def test_router() -> None:
    config = tiny_config(n_experts=12, top_k=3)
    theirs = hf.KimiLinearTopkRouter(hf_config(
        num_local_experts=12, n_routed_experts=12, num_experts_per_tok=3, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=1.5,
    ))
    fill(theirs)
    bias = torch.randn(12, generator=torch.Generator().manual_seed(3))
    theirs.e_score_correction_bias.copy_(bias)
    logits, weights, ids = theirs(batch(config.hidden))
    got_ids, got_weights = route(logits, bias, 3, 1.5)
    order, got_order = ids.argsort(dim=1), got_ids.argsort(dim=1)
    assert torch.equal(ids.gather(1, order), got_ids.gather(1, got_order))
    assert torch.allclose(weights.gather(1, order), got_weights.gather(1, got_order), atol=1e-6)
