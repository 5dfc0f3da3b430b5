"""Token-by-token generation with recurrent state, and the sampler of the engine.

The state per sequence is small: KDA layers keep the last taps-1 raw inputs of their convolutions
and one D x D matrix per head; MLA layers keep expanded keys and values of all positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nano.dsv4.decode import StepDecoder as Dsv4StepDecoder
from nano.dsv4.model import Dsv4Model
from nano.model import Documents, K3Model, KdaAttention, Layer, MlaAttention, mix, rms
from nano.models import Model

_MASK32 = (1 << 32) - 1


class StepDecoder:
    """Feeds one token to each of B sequences at a time; [B] ids to [B, V] logits."""

    def __init__(self, model: K3Model, batch: int) -> None:
        self.model, self.batch = model.eval(), batch
        self.states: list[dict[str, Any]] = [self._fresh(layer) for layer in model.layers]

    def _fresh(self, layer: Layer) -> dict[str, Any]:
        c = self.model.config
        if c.is_mla(layer.index):
            return {"k": [], "v": []}
        size = (self.batch, c.kda_heads, c.kda_dim, c.kda_dim)
        like = self.model.lm_head.weight
        history = [like.new_zeros(self.batch, 3 * c.kda_width) for _ in range(c.kda_conv - 1)]
        return {"history": history, "s": like.new_zeros(size)}

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        m = self.model
        h = F.embedding(tokens, m.embed_tokens.weight)
        blocks: list[Tensor] = []
        for layer, state in zip(m.layers, self.states, strict=True):
            h, blocks = self._layer(layer, h, blocks, state)
        eps = m.config.rms_eps
        y = mix([*blocks, h], m.output_attn_res_norm.weight, m.output_attn_res_proj.weight, eps)
        return F.linear(rms(y, m.norm.weight, eps), m.lm_head.weight)

    def _layer(
        self, layer: Layer, h: Tensor, blocks: list[Tensor], state: dict[str, Any]
    ) -> tuple[Tensor, list[Tensor]]:
        c = self.model.config
        x = h
        if blocks:
            x = mix([*blocks, h], layer.self_attention_res_norm.weight,
                    layer.self_attention_res_proj.weight, c.rms_eps)
        if layer.closes_block:
            blocks = [*blocks, h]
        x = rms(x, layer.input_layernorm.weight, c.rms_eps)
        attention = layer.self_attn
        if isinstance(attention, MlaAttention):
            a = self._mla(attention, x, state)
        else:
            a = self._kda(attention, x, state)
        p = a if layer.closes_block else h + a
        x = mix([*blocks, p], layer.mlp_res_norm.weight, layer.mlp_res_proj.weight, c.rms_eps)
        x = rms(x, layer.post_attention_layernorm.weight, c.rms_eps)
        if c.is_dense(layer.index):
            return p + layer.mlp(x), blocks
        moe = layer.block_sparse_moe
        rows = moe(x.unsqueeze(1), Documents(None, None, []), self.model.options)
        return p + rows.squeeze(1), blocks

    def _kda(self, a: KdaAttention, x: Tensor, state: dict[str, Any]) -> Tensor:
        c, b = self.model.config, self.batch
        heads = (b, c.kda_heads, c.kda_dim)
        raw = torch.cat([F.linear(x, w.weight) for w in (a.q_proj, a.k_proj, a.v_proj)], dim=-1)
        taps = torch.cat([a.q_conv1d.weight, a.k_conv1d.weight, a.v_conv1d.weight])
        window = [*state["history"], raw]
        state["history"] = window[1:]
        mixed = sum(u * w for u, w in zip(window, taps.unbind(1), strict=True))
        q, k, v = (t.view(heads) for t in F.silu(mixed).chunk(3, dim=-1))
        q, k = a._unit(q) * c.kda_dim**-0.5, a._unit(k)
        low = F.linear(F.linear(x, a.f_a_proj.weight), a.f_b_proj.weight)
        rate = a.A_log.exp()
        rate = rate.view(-1, 1) if c.kda_a_log == "head" else rate
        g = c.gate_lower_bound * torch.sigmoid(rate * (low + a.dt_bias).view(heads))
        beta = torch.sigmoid(F.linear(x, a.b_proj.weight))
        s = state["s"] * g.exp().unsqueeze(-1)
        delta = v - torch.einsum("bhk,bhkv->bhv", k, s)
        s = s + (beta.unsqueeze(-1) * k).unsqueeze(-1) * delta.unsqueeze(-2)
        state["s"] = s
        o = rms(torch.einsum("bhk,bhkv->bhv", q, s), a.o_norm.weight, c.rms_eps).reshape(b, -1)
        return F.linear(o * torch.sigmoid(F.linear(x, a.g_proj.weight)), a.o_proj.weight)

    def _mla(self, a: MlaAttention, x: Tensor, state: dict[str, Any]) -> Tensor:
        c, b, h = self.model.config, self.batch, self.model.config.mla_heads
        q_low = rms(F.linear(x, a.q_a_proj.weight), a.q_a_layernorm.weight, c.rms_eps)
        q = F.linear(q_low, a.q_b_proj.weight).view(b, h, c.mla_qk)
        both = F.linear(x, a.kv_a_proj_with_mqa.weight)
        latent, shared = both.split([c.mla_kv_lora, c.mla_rope], dim=-1)
        latent = rms(latent, a.kv_a_layernorm.weight, c.rms_eps)
        kv = F.linear(latent, a.kv_b_proj.weight).view(b, h, c.mla_nope + c.mla_v)
        k_own, v = kv.split([c.mla_nope, c.mla_v], dim=-1)
        state["k"].append(torch.cat([k_own, shared.unsqueeze(1).expand(b, h, -1)], dim=-1))
        state["v"].append(v)
        keys, values = torch.stack(state["k"], dim=2), torch.stack(state["v"], dim=2)
        scores = torch.einsum("bhd,bhtd->bht", q, keys) * c.mla_qk**-0.5
        o = torch.einsum("bht,bhtd->bhd", scores.softmax(dim=-1), values).reshape(b, -1)
        return F.linear(o * torch.sigmoid(F.linear(x, a.g_proj.weight)), a.o_proj.weight)


def philox4x32(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32 with ten rounds: four 32-bit words from a counter and a key."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & _MASK32, (p0 >> 32) ^ c[3] ^ k[1], p0 & _MASK32]
        k = [(k[0] + 0x9E3779B9) & _MASK32, (k[1] + 0xBB67AE85) & _MASK32]
    return c


@dataclass
class Sampler:
    """The engine's choice of the next token, so that a seed gives the same text in both.

    Temperature 0 is greedy (ties to the lowest id).  Otherwise weights exp((l - max)/T) are
    sorted, the smallest prefix with share >= top_p of their sum is kept, and the uniform number
    of (seed, index of the token) picks by weight.
    `anti_repeat` P > 0 lowers the logit of a token that would repeat an n-gram (n = 3..8) of the
    last 64 generated ones by P * 0.9^distance per occurrence.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 1
    anti_repeat: float = 0.0

    def uniform(self, index: int) -> float:
        """The index-th number in [0, 1) of the seed, a multiple of 2^-53."""
        words = philox4x32(
            [index & _MASK32, index >> 32, 0, 0], [self.seed & _MASK32, self.seed >> 32]
        )
        return ((words[1] << 32 | words[0]) >> 11) / float(1 << 53)

    def pick(self, logits: Tensor, generated: list[int]) -> int:
        """Next id from logits [V] and the ids generated so far."""
        if self.anti_repeat > 0:
            logits = self._discourage(logits.clone(), generated)
        if self.temperature <= 0:
            return int(logits.argmax())
        weights, ids = ((logits - logits.max()) / self.temperature).exp().sort(
            descending=True, stable=True
        )
        sums = weights.double().cumsum(0)
        kept = min(int((sums < self.top_p * sums[-1]).sum()) + 1, len(ids))
        point = self.uniform(len(generated)) * float(sums[kept - 1])
        return int(ids[min(int((sums[:kept] <= point).sum()), kept - 1)])

    def _discourage(self, logits: Tensor, generated: list[int]) -> Tensor:
        window = generated[-64:]
        if len(window) < 3:
            return logits
        for n in range(3, 9):
            tail = window[len(window) - (n - 1) :]
            last = len(window) - (n - 1)
            for i in range(last):
                if window[i : i + n - 1] == tail:
                    distance = last - i
                    logits[window[i + n - 1]] -= self.anti_repeat * math.pow(0.9, distance)
        return logits


def step_decoder(model: Model, batch: int) -> StepDecoder | Dsv4StepDecoder:
    if isinstance(model, Dsv4Model):
        return Dsv4StepDecoder(model, batch)
    return StepDecoder(model, batch)


def generate(
    model: Model, prompts: list[list[int]], samplers: list[Sampler], limit: int, stop: set[int]
) -> tuple[list[list[int]], list[bool]]:
    """Continues every prompt by up to `limit` tokens; ids without the stop token, and whether
    each reached one."""
    decoder = step_decoder(model, len(prompts))
    out: list[list[int]] = [[] for _ in prompts]
    ended = [False] * len(prompts)
    current = [p[0] for p in prompts]
    for position in range(max(len(p) for p in prompts) + limit):
        logits = decoder.step(torch.tensor(current))
        for i, prompt in enumerate(prompts):
            if position + 1 < len(prompt):
                current[i] = prompt[position + 1]
            elif not ended[i] and len(out[i]) < limit:
                token = samplers[i].pick(logits[i], out[i])
                if token in stop:
                    ended[i] = True
                else:
                    out[i].append(token)
                current[i] = token
        if all(e or len(o) >= limit for e, o in zip(ended, out, strict=True)):
            break
    return out, ended
