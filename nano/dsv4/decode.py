"""DeepSeek-V4 token by token: generation, and the plain form of every equation.

`StepDecoder` shares weights and primitives with the trainable model, but nothing of its
sequence-wide bookkeeping: rows are appended one by one and nothing is masked.  It runs in the dtype
of the model, f32 or f64.  Every step of the computation is a method of its own, so that a test can
replace it by a wrong one (`nano.dsv4.mutations`).

Shapes: B sequences in step, S streams, d hidden, H heads, D head width, w a compressor's width,
n rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from nano.dsv4.attention import Attention, Compressor, Indexer, Observer
from nano.dsv4.config import OVERLAPPED
from nano.dsv4.mixing import Mix, head_input, raw_mix
from nano.dsv4.model import Dsv4Model, Layer
from nano.dsv4.moe import Moe
from nano.dsv4.rotation import F32, frequencies, rotate, turn_table
from nano.dsv4.rounding import fp4_round_trip, fp8_round_trip, hadamard


class Rows:
    """A growing list of rows [B, n, width]."""

    def __init__(self) -> None:
        self._store: Tensor | None = None
        self.count = 0

    def append(self, row: Tensor) -> None:
        """row [B, width]."""
        if self._store is None:
            self._store = row.new_empty(row.shape[0], 16, row.shape[1])
        if self.count == self._store.shape[1]:
            self._store = torch.cat([self._store, torch.empty_like(self._store)], dim=1)
        self._store[:, self.count] = row
        self.count += 1

    @property
    def all(self) -> Tensor:
        assert self._store is not None
        return self._store[:, : self.count]


@dataclass
class Pool:
    """What a compressor has seen and made."""

    values: Rows = field(default_factory=Rows)
    scores: Rows = field(default_factory=Rows)
    rows: Rows = field(default_factory=Rows)


@dataclass
class LayerState:
    window: Rows = field(default_factory=Rows)
    pool: Pool = field(default_factory=Pool)
    index: Pool = field(default_factory=Pool)


class StepDecoder:
    """Feeds one token to each of B sequences at a time; [B] ids to [B, V] logits."""

    def __init__(self, model: Dsv4Model, batch: int, observe: Observer | None = None) -> None:
        self.model, self.batch, self.observe = model.eval(), batch, observe
        self.c = model.config
        self.position = 0  # of the token that is being fed
        self.states = [LayerState() for _ in model.layers]
        self._turns: dict[tuple[bool, int], tuple[Tensor, Tensor]] = {}

    @property
    def dtype(self) -> torch.dtype:
        return self.model.head.weight.dtype

    def see(self, layer: int, name: str, value: Tensor) -> None:
        if self.observe is not None:
            self.observe(layer, name, value)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        m, c = self.model, self.c
        h = self.embed(tokens)
        x = h.unsqueeze(1).expand(self.batch, c.hc_mult, c.hidden)
        for layer, state in zip(m.layers, self.states, strict=True):
            x = self.layer(layer, x, tokens, state)
        h = head_input(x, m.hc_head_fn, m.hc_head_base, m.hc_head_scale, c.rms_norm_eps, c.hc_eps)
        self.see(c.n_layers, "head.h", h)
        logits = F.linear(self.norm(h, m.norm.weight), m.head.weight)
        self.see(c.n_layers, "logits", logits)
        self.position += 1
        self._turns.clear()
        return logits

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.model.embed.weight)

    def norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True) + self.c.rms_norm_eps).sqrt() * gain

    # -- layer -------------------------------------------------------------------------------

    def layer(self, layer: Layer, x: Tensor, tokens: Tensor, state: LayerState) -> Tensor:
        i = layer.index
        mix = self.mix(layer, "attn", x)
        u = (mix.pre.unsqueeze(-1) * x).sum(dim=1)
        a = self.norm(u, layer.attn_norm.weight)
        self._see_mix(i, "attn", mix, u, a)
        y = self.attention(layer.attn, a, state)
        self.see(i, "attn.y", y)
        x = self.streams(x, y, mix)
        mix = self.mix(layer, "ffn", x)
        u = (mix.pre.unsqueeze(-1) * x).sum(dim=1)
        b = self.norm(u, layer.ffn_norm.weight)
        self._see_mix(i, "ffn", mix, u, b)
        y = self.experts(layer.ffn, b, tokens)
        self.see(i, "moe.y", y)
        x = self.streams(x, y, mix)
        self.see(i, "X", x)
        return x

    def _see_mix(self, layer: int, part: str, mix: Mix, u: Tensor, normed: Tensor) -> None:
        names = ("mix.m", "pre", "post", "comb", "u", "in")
        for name, value in zip(names, (mix.raw, mix.pre, mix.post, mix.comb, u, normed),
                               strict=True):
            self.see(layer, f"{part}.{name}", value)

    def mix(self, layer: Layer, part: str, x: Tensor) -> Mix:
        c, s = self.c, self.c.hc_mult
        fn, base, scale = (getattr(layer, f"hc_{part}_{n}") for n in ("fn", "base", "scale"))
        m = raw_mix(x, fn, c.rms_norm_eps)
        pre = torch.sigmoid(m[:, :s] * scale[0] + base[:s]) + c.hc_eps
        post = 2 * torch.sigmoid(m[:, s : 2 * s] * scale[1] + base[s : 2 * s])
        comb = (m[:, 2 * s :] * scale[2] + base[2 * s :]).view(-1, s, s)
        return Mix(m, pre, post, self.sinkhorn(comb))

    def sinkhorn(self, comb: Tensor) -> Tensor:
        """[B, S, S]: rows to sum 1 by softmax, columns, then rows and columns in turn."""
        e = self.c.hc_eps
        m = comb.softmax(dim=2) + e
        for n in range(self.c.hc_sinkhorn_iters):
            if n:
                m = m / (m.sum(dim=2, keepdim=True) + e)
            m = m / (m.sum(dim=1, keepdim=True) + e)
        return m

    def streams(self, x: Tensor, y: Tensor, mix: Mix) -> Tensor:
        """Stream b gets post[b] y + sum over a of comb[a, b] X[a]."""
        return mix.post.unsqueeze(2) * y.unsqueeze(1) + torch.einsum("zab,zad->zbd", mix.comb, x)

    # -- rotation and rounding ---------------------------------------------------------------

    def frequencies(self, compressed: bool) -> F32:
        return frequencies(self.c, compressed)

    def turn(self, compressed: bool, position: int) -> tuple[Tensor, Tensor]:
        """cos and sin [R/2]."""
        key = (compressed, position)
        if key not in self._turns:
            f = self.frequencies(compressed)
            self._turns[key] = turn_table(torch.tensor(position), f, self.dtype)
        return self._turns[key]

    def rotate(self, x: Tensor, compressed: bool, position: int) -> Tensor:
        return rotate(x, *self.turn(compressed, position))

    def rotate_back(self, x: Tensor, compressed: bool, position: int) -> Tensor:
        cos, sin = self.turn(compressed, position)
        return rotate(x, cos, -sin)

    def round_row(self, row: Tensor) -> Tensor:
        if not self.c.act_qat:
            return row
        n = self.c.plain_width
        return torch.cat([fp8_round_trip(row[..., :n]), row[..., n:]], dim=-1)

    def round_index(self, x: Tensor) -> Tensor:
        x = hadamard(x)
        return fp4_round_trip(x) if self.c.act_qat else x

    # -- attention ---------------------------------------------------------------------------

    def attention(self, a: Attention, x: Tensor, state: LayerState) -> Tensor:
        i, compressed = a.index, a.ratio > 0
        latent = self.norm(F.linear(x, a.wq_a.weight), a.q_norm.weight)
        q = self.rotate(self.query(a, latent), compressed, self.position)
        row = self.norm(F.linear(x, a.wkv.weight), a.kv_norm.weight)
        row = self.round_row(self.rotate(row, compressed, self.position))
        state.window.append(row)
        for name, value in (("attn.zn", latent), ("attn.q", q), ("attn.kv", row)):
            self.see(i, name, value)
        far = self.far_rows(a, x, latent, state) if a.ratio else None
        near = self.near_rows(state.window.all)
        o = self.attend(q, near if far is None else torch.cat([near, far], dim=1), a.attn_sink)
        self.see(i, "attn.o_turned", o)
        o = self.rotate_back(o, compressed, self.position)
        self.see(i, "attn.o", o)
        lat = self.grouped_output(a, o)
        self.see(i, "attn.lat", lat)
        return F.linear(lat, a.wo_b.weight)

    def query(self, a: Attention, latent: Tensor) -> Tensor:
        """[B, H, D], each head of rms 1."""
        q = F.linear(latent, a.wq_b.weight).view(self.batch, self.c.n_heads, self.c.head_dim)
        return q / (q.square().mean(dim=-1, keepdim=True) + self.c.rms_norm_eps).sqrt()

    def near_rows(self, window: Tensor) -> Tensor:
        return window[:, -self.c.sliding_window :]

    def far_rows(
        self, a: Attention, x: Tensor, latent: Tensor, state: LayerState
    ) -> Tensor | None:
        """Compressed rows [B, n, D] that this token attends to."""
        row = self.compress(a.compressor, x, state.pool, a.index, "attn.comp")
        if row is not None:
            self.see(a.index, "attn.comp.row_exact", row)
            row = self.round_row(row)
            self.see(a.index, "attn.comp.row", row)
            state.pool.rows.append(row)
        if a.ratio == OVERLAPPED:
            chosen = self.pick(a.indexer, x, latent, state.index, a.index)
            if chosen is None:
                return None
            index = chosen.unsqueeze(2).expand(-1, -1, self.c.head_dim)
            return state.pool.rows.all.gather(1, index)
        count = self.dense_count(a.ratio)
        return state.pool.rows.all[:, :count] if count else None

    def dense_count(self, ratio: int) -> int:
        """Rows that a layer without indexer shows to this token: all complete groups."""
        return (self.position + 1) // ratio

    def compress(
        self, comp: Compressor, x: Tensor, pool: Pool, layer: int, name: str
    ) -> Tensor | None:
        """The row of the group that this token closes, normed and rotated, or None."""
        p, r = self.position, comp.ratio
        score = self.gate_score(comp, x)
        self.see(layer, f"{name}.sc", score)
        pool.values.append(F.linear(x, comp.wkv.weight))
        pool.scores.append(score)
        if (p + 1) % r:
            return None
        values, scores = (self.entries(comp, rows.all) for rows in (pool.values, pool.scores))
        row = self.norm(self.pooled(values, scores), comp.norm.weight)
        return self.rotate(row, True, self.row_position(r))

    def gate_score(self, comp: Compressor, x: Tensor) -> Tensor:
        return F.linear(x, comp.wgate.weight) + comp.ape[self.position % comp.ratio]

    def entries(self, comp: Compressor, rows: Tensor) -> Tensor:
        """[B, r or 2r, w]: what is pooled at the end of a group, oldest first."""
        own, w = rows[:, -comp.ratio :], comp.width
        if not comp.overlaps:
            return own
        before = rows[:, -2 * comp.ratio : -comp.ratio]  # empty at the first group
        return torch.cat([before[..., :w], own[..., w:]], dim=1)

    def pooled(self, values: Tensor, scores: Tensor) -> Tensor:
        return (scores.softmax(dim=1) * values).sum(dim=1)

    def row_position(self, ratio: int) -> int:
        """A row is rotated like the first token of its group."""
        return self.position + 1 - ratio

    # -- indexer -----------------------------------------------------------------------------

    def pick(
        self, idx: Indexer, x: Tensor, latent: Tensor, pool: Pool, layer: int
    ) -> Tensor | None:
        """Ascending numbers [B, n] of the rows that this token attends to."""
        c = self.c
        key = self.compress(idx.compressor, x, pool, layer, "idx.comp")
        if key is not None:
            key = self.round_index(key)
            self.see(layer, "idx.key", key)
            pool.rows.append(key)
        if not pool.rows.count:
            return None
        q = F.linear(latent, idx.wq_b.weight).view(self.batch, c.index_n_heads, c.index_head_dim)
        q = self.round_index(self.rotate(q, True, self.position))
        weight = F.linear(x, idx.weights_proj.weight)
        weight = weight * (c.index_head_dim**-0.5 * c.index_n_heads**-0.5)
        dots = torch.einsum("zhd,znd->zhn", q, pool.rows.all)
        score = (F.relu(dots) * weight.unsqueeze(2)).sum(dim=1)
        chosen = self.best_rows(score)
        for name, value in (("idx.q", q), ("idx.w", weight), ("idx.score", score),
                            ("idx.sel", chosen)):
            self.see(layer, name, value)
        return chosen

    def best_rows(self, score: Tensor) -> Tensor:
        """The index_topk highest of scores [B, n], ties to the lower row, -0 like +0."""
        order = torch.argsort(score, dim=1, descending=True, stable=True)
        return order[:, : self.c.index_topk].sort(dim=1).values

    def attend(self, q: Tensor, rows: Tensor, sink: Tensor) -> Tensor:
        """q [B, H, D] over rows [B, n, D], which are keys and values; exp(sink) joins the sum."""
        score = torch.einsum("zhd,znd->zhn", q, rows) * self.c.head_dim**-0.5
        sinks = sink.view(1, -1, 1).expand(self.batch, -1, 1)
        share = torch.cat([score, sinks], dim=2).softmax(dim=2)
        return torch.einsum("zhn,znd->zhd", share[..., :-1], rows)

    def grouped_output(self, a: Attention, o: Tensor) -> Tensor:
        """[B, groups * rank]: every group of heads through its own rows of wo_a."""
        c = self.c
        wo_a = a.wo_a.weight.view(c.o_groups, c.o_lora_rank, -1)
        return torch.einsum("zgc,gpc->zgp", o.reshape(self.batch, c.o_groups, -1), wo_a).flatten(1)

    # -- experts -----------------------------------------------------------------------------

    def experts(self, moe: Moe, x: Tensor, tokens: Tensor) -> Tensor:
        """Selected experts in order, the shared expert last."""
        score = self.scores(F.linear(x, moe.gate.weight))
        ids = self.selection(moe, score, tokens)
        weights = self.weights(moe, score, ids)
        for name, value in (("moe.score", score), ("moe.sel", ids), ("moe.w", weights)):
            self.see(moe.index, name, value)
        w1, w2, w3 = moe.experts.w1, moe.experts.w2, moe.experts.w3
        y = torch.zeros_like(x)
        for j in range(ids.shape[1]):
            e, g = ids[:, j], weights[:, j : j + 1]
            y = y + self.expert(x, w1[e], w2[e], w3[e], g)
        self.see(moe.index, "moe.y_routed", y)
        return y + self.shared(moe, x)

    def scores(self, logits: Tensor) -> Tensor:
        return torch.where(logits > 20, logits, torch.log1p(logits.exp())).sqrt()

    def selection(self, moe: Moe, score: Tensor, tokens: Tensor) -> Tensor:
        """Expert ids [B, k], best first or in the order of the table."""
        if moe.hashed:
            return moe.gate.tid2eid[tokens].long()
        return self.best_experts(score + moe.gate.bias)

    def best_experts(self, key: Tensor) -> Tensor:
        order = torch.argsort(key, dim=1, descending=True, stable=True)
        return order[:, : self.c.num_experts_per_tok]

    def weights(self, moe: Moe, score: Tensor, ids: Tensor) -> Tensor:
        picked = score.gather(1, ids)
        total = picked.sum(dim=1, keepdim=True).clamp_min(1e-20)
        return picked / total * self.c.routed_scaling_factor

    def shared(self, moe: Moe, x: Tensor) -> Tensor:
        s = moe.shared_experts
        w1, w2, w3 = (w.weight.expand(self.batch, -1, -1) for w in (s.w1, s.w2, s.w3))
        return self.expert(x, w1, w2, w3, x.new_ones(self.batch, 1))

    def expert(self, x: Tensor, w1: Tensor, w2: Tensor, w3: Tensor, weight: Tensor) -> Tensor:
        """One expert for each row of x [B, d]; w1, w3 [B, F, d], w2 [B, d, F], weight [B, 1]."""
        gate, up = (torch.einsum("zfd,zd->zf", w, x) for w in (w1, w3))
        return torch.einsum("zdf,zf->zd", w2, weight * self.activate(gate, up))

    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        limit = self.c.swiglu_limit
        if limit > 0:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(gate) * up


def run(
    model: Dsv4Model, ids: list[int], observe: Observer | None = None,
    decoder: type[StepDecoder] = StepDecoder,
) -> Tensor:
    """Logits [T, V] of one sequence, fed token by token."""
    steps = decoder(model, 1, observe)
    return torch.cat([steps.step(torch.tensor([token])) for token in ids])
