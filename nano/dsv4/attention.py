"""Attention over a window and time-compressed rows, for whole sequences.

One row of width D serves as key and value of all heads.  A token sees the last `sliding_window`
rows and rows that each stand for r tokens: all of them, or in layers of ratio 4 those that an
indexer picks.

Shapes: B rows, T tokens, d hidden, H heads, D head width, R rotated, G groups, I_H and I_D heads
and width of the indexer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nano.dsv4.config import OVERLAPPED, Dsv4Config
from nano.dsv4.groups import Groups, Layout, in_blocks, with_block_before
from nano.dsv4.rotation import F32, frequencies, rotate, turn_table
from nano.dsv4.rounding import fp4_straight_through, fp8_straight_through, hadamard_matrix
from nano.model import Weight, rms, wide

NEVER = float("-inf")
Observer = Callable[[int, str, Tensor], None]  # layer, name of the value, the value


@dataclass
class Pass:
    """What one forward pass carries through the layers."""

    layout: Layout
    observe: Observer | None = None
    want_index_loss: bool = False
    index_losses: list[Tensor] = field(default_factory=list)
    turns: dict[bool, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def see(self, layer: int, name: str, value: Tensor) -> None:
        if self.observe is not None:
            self.observe(layer, name, value.detach())


def round_row(config: Dsv4Config, row: Tensor) -> Tensor:
    """FP8 on the part of a KV row that carries no position."""
    if not config.act_qat:
        return row
    plain, turned = row.split([config.plain_width, config.qk_rope_head_dim], dim=-1)
    return torch.cat([fp8_straight_through(plain), turned], dim=-1)


def round_index(config: Dsv4Config, x: Tensor) -> Tensor:
    """Hadamard and FP4 of an indexer vector."""
    with torch.autocast(x.device.type, enabled=False):
        x = torch.matmul(x, hadamard_matrix(x.shape[-1], x.dtype))
    return fp4_straight_through(x) if config.act_qat else x


class Compressor(nn.Module):
    """Pools groups of r tokens into one row each, per channel by softmax over the group.

    With overlap (r = 4) a projection has two halves: a token's second half counts in its own
    group, its first half in the group after.
    """

    def __init__(self, config: Dsv4Config, ratio: int, width: int) -> None:
        super().__init__()
        self.config, self.ratio, self.width = config, ratio, width
        self.overlaps = ratio == OVERLAPPED
        columns = 2 * width if self.overlaps else width
        self.wkv = Weight(columns, config.hidden)
        self.wgate = Weight(columns, config.hidden)
        self.ape = nn.Parameter(torch.empty(ratio, columns))
        self.norm = Weight(width)

    def forward(self, x: Tensor, groups: Groups) -> Tensor:
        """x [B, T, d] -> normed rows [B, G, width], before rotation and rounding."""
        both = F.linear(x, torch.cat([self.wkv.weight, self.wgate.weight]))
        grouped = wide(_take(both, groups.tokens))  # [B, G, r, 2 * columns]
        value, score = grouped.chunk(2, dim=-1)
        score = score + self.ape
        if self.overlaps:
            value, score = self._overlap(value, groups, 0.0), self._overlap(score, groups, NEVER)
        row = (score.softmax(dim=2) * value).sum(dim=2)
        return rms(row, self.norm.weight, self.config.rms_norm_eps)

    def _overlap(self, x: Tensor, groups: Groups, fill: float) -> Tensor:
        """[B, G, 4, 2w] -> [B, G, 8, w]: first halves of the group before, own second halves."""
        first, second = x.chunk(2, dim=-1)
        before = F.pad(first[:, :-1], (0, 0, 0, 0, 1, 0))
        before = before.masked_fill(~groups.follows[:, :, None, None], fill)
        return torch.cat([before, second], dim=2)


def _take(x: Tensor, tokens: Tensor) -> Tensor:
    """Rows of x [B, T, n] at tokens [B, G, r] -> [B, G, r, n]."""
    b, g, r = tokens.shape
    flat = (tokens + torch.arange(b, device=x.device).view(b, 1, 1) * x.shape[1]).reshape(-1)
    return x.flatten(0, 1).index_select(0, flat).view(b, g, r, x.shape[2])


class Indexer(nn.Module):
    """Scores compressed rows: score = sum over heads of w_h max(0, q_h . key)."""

    def __init__(self, config: Dsv4Config) -> None:
        super().__init__()
        self.config = config
        heads, width = config.index_n_heads, config.index_head_dim
        self.wq_b = Weight(heads * width, config.q_lora_rank)
        self.weights_proj = Weight(heads, config.hidden)
        self.compressor = Compressor(config, OVERLAPPED, width)

    def forward(self, x: Tensor, latent: Tensor, groups: Groups, turn: Turner) -> Tensor:
        """x [B, T, d], normed query latent [B, T, Q] -> scores [B, T, G] in f32 or f64."""
        c = self.config
        q = wide(F.linear(latent, self.wq_b.weight))
        q = q.unflatten(-1, (c.index_n_heads, c.index_head_dim))
        q = round_index(c, turn.tokens(q))
        key = round_index(c, turn.groups(self.compressor(x, groups), groups))
        weight = wide(F.linear(x, self.weights_proj.weight))
        weight = weight * (c.index_head_dim**-0.5 * c.index_n_heads**-0.5)
        with torch.autocast(x.device.type, enabled=False):
            dots = F.relu(torch.matmul(q.flatten(1, 2), key.mT))
        dots = dots.unflatten(1, (x.shape[1], c.index_n_heads))
        return (dots * weight.unsqueeze(-1)).sum(dim=2)


def select_rows(score: Tensor, visible: Tensor, count: int) -> Tensor:
    """Mask of the `count` visible rows with the highest scores, ties to the lower row.

    score, visible: [..., G].  -0 and +0 are equal to the sort.
    """
    hidden = torch.where(visible, score.detach(), NEVER)
    order = torch.argsort(hidden, dim=-1, descending=True, stable=True)[..., :count]
    chosen = torch.zeros_like(visible).scatter_(-1, order, True)
    return chosen & visible


@dataclass
class Turner:
    """Rotations of one layer kind for the tokens of a batch."""

    cos: Tensor  # [B, T, R/2]
    sin: Tensor
    f: F32  # frequencies [R/2]
    dtype: torch.dtype

    def tokens(self, x: Tensor, back: bool = False) -> Tensor:
        """x [B, T, ..., n] by the position of each token; `back`: the inverse."""
        shape = (*self.cos.shape[:2], *(1,) * (x.ndim - 3), self.cos.shape[2])
        sin = -self.sin if back else self.sin
        return rotate(x, self.cos.view(shape), sin.view(shape))

    def groups(self, rows: Tensor, groups: Groups) -> Tensor:
        """rows [B, G, n] by the position of each group's first token."""
        cos, sin = turn_table(groups.position, self.f, self.dtype)
        return rotate(rows, cos, sin)


class Attention(nn.Module):
    def __init__(self, config: Dsv4Config, index: int) -> None:
        super().__init__()
        c, d = config, config.hidden
        self.config, self.index, self.ratio = config, index, config.ratio(index)
        self.wq_a, self.q_norm = Weight(c.q_lora_rank, d), Weight(c.q_lora_rank)
        self.wq_b = Weight(c.n_heads * c.head_dim, c.q_lora_rank)
        self.wkv, self.kv_norm = Weight(c.head_dim, d), Weight(c.head_dim)
        self.wo_a = Weight(c.o_groups * c.o_lora_rank, c.n_heads * c.head_dim // c.o_groups)
        self.wo_b = Weight(d, c.o_groups * c.o_lora_rank)
        self.attn_sink = nn.Parameter(torch.empty(c.n_heads))
        if self.ratio:
            self.compressor = Compressor(c, self.ratio, c.head_dim)
        if self.ratio == OVERLAPPED:
            self.indexer = Indexer(c)

    def forward(self, x: Tensor, run: Pass) -> Tensor:
        """Normed sublayer input [B, T, d] -> [B, T, d]."""
        c = self.config
        turn = self._turner(run, wide(x).dtype)
        low, row = F.linear(x, torch.cat([self.wq_a.weight, self.wkv.weight])).split(
            [c.q_lora_rank, c.head_dim], dim=-1
        )
        latent = rms(wide(low), self.q_norm.weight, c.rms_norm_eps)
        q = wide(F.linear(latent, self.wq_b.weight)).unflatten(-1, (c.n_heads, c.head_dim))
        q = turn.tokens(q * torch.rsqrt(q.square().mean(dim=-1, keepdim=True) + c.rms_norm_eps))
        row = rms(wide(row), self.kv_norm.weight, c.rms_norm_eps)
        row = round_row(c, turn.tokens(row))
        far, chosen = self._compressed(x, latent, q, run, turn)
        o = turn.tokens(self._attend(q, row, far, chosen, run.layout), back=True)
        grouped = o.flatten(2).unflatten(-1, (c.o_groups, -1))
        wo_a = self.wo_a.weight.unflatten(0, (c.o_groups, c.o_lora_rank))
        lat = torch.einsum("btgc,gpc->btgp", grouped.to(x.dtype), wo_a.to(x.dtype))
        return F.linear(lat.flatten(2), self.wo_b.weight)

    def _turner(self, run: Pass, dtype: torch.dtype) -> Turner:
        compressed = self.ratio > 0
        f = frequencies(self.config, compressed)
        if compressed not in run.turns:
            run.turns[compressed] = turn_table(run.layout.position, f, dtype)
        return Turner(*run.turns[compressed], f, dtype)

    def _compressed(
        self, x: Tensor, latent: Tensor, q: Tensor, run: Pass, turn: Turner
    ) -> tuple[Tensor | None, Tensor | None]:
        """Compressed rows [B, G, D] and which of them each token sees [B, T, G]."""
        c = self.config
        if not self.ratio or x.shape[1] < self.ratio:
            return None, None
        groups = run.layout.groups(self.ratio)
        rows = round_row(c, turn.groups(self.compressor(x, groups), groups))
        if self.ratio != OVERLAPPED:
            return rows, groups.visible
        needs_choice = groups.most_visible > c.index_topk
        if not needs_choice and not run.want_index_loss and run.observe is None:
            return rows, groups.visible
        score = self.indexer(x.detach(), latent.detach(), groups, turn)
        chosen = select_rows(score, groups.visible, c.index_topk)
        run.see(self.index, "idx.score", score)
        run.see(self.index, "idx.sel", chosen)
        if run.want_index_loss:
            run.index_losses.append(index_loss(score, q, rows, groups.visible))
        return rows, chosen

    def _attend(
        self, q: Tensor, row: Tensor, far: Tensor | None, chosen: Tensor | None, layout: Layout
    ) -> Tensor:
        """q [B, T, H, D], window rows [B, T, D], compressed rows -> [B, T, H, D].

        exp(sink) joins the denominator only.  Keys of a token: its block of the window length and
        the block before, masked; then the compressed rows.
        """
        b, t, h, d = q.shape
        blocks = in_blocks(q, layout.window)  # [B, n, W, H, D]
        near = with_block_before(in_blocks(row, layout.window))  # [B, n, 2W, D]
        heads_in_rows = blocks.flatten(2, 3)
        score = wide(torch.matmul(heads_in_rows, near.mT)).unflatten(2, (layout.window, h))
        score = score.masked_fill(~layout.near.unsqueeze(3), NEVER).flatten(1, 2)[:, :t]
        parts = [score * d**-0.5, self.attn_sink.view(1, 1, h, 1).expand(b, t, h, 1)]
        if far is not None and chosen is not None:
            remote = wide(torch.matmul(q.flatten(1, 2), far.mT)).unflatten(1, (t, h))
            parts.append((remote * d**-0.5).masked_fill(~chosen.unsqueeze(2), NEVER))
        share = torch.cat(parts, dim=-1).softmax(dim=-1)
        span = 2 * layout.window
        close = in_blocks(share[..., :span], layout.window).flatten(2, 3)
        o = wide(torch.matmul(close, near)).unflatten(2, (layout.window, h)).flatten(1, 2)[:, :t]
        if far is not None:
            o = o + wide(torch.matmul(share[..., span + 1 :].flatten(1, 2), far)).view(b, t, h, d)
        return o


def index_loss(score: Tensor, q: Tensor, rows: Tensor, visible: Tensor) -> Tensor:
    """Divergence of the indexer's distribution from the heads' attention, summed over tokens.

    The selection has no gradient, so the indexer learns to predict it: its target is the mean over
    heads of the softmax of the attention scores of all visible compressed rows.  Only `score`
    gets a gradient.
    """
    _, t, h, d = q.shape
    with torch.no_grad():
        found = wide(torch.matmul(q.flatten(1, 2), rows.mT)).unflatten(1, (t, h)) * d**-0.5
        found = found.masked_fill(~visible.unsqueeze(2), NEVER)
        some = visible.any(dim=-1)
        target = torch.nan_to_num(found.softmax(dim=-1)).mean(dim=2)
    log_p = score.masked_fill(~visible, NEVER).log_softmax(dim=-1)
    log_p = log_p.masked_fill(~visible, 0.0)
    term = torch.where(target > 0, target * (target.clamp_min(1e-30).log() - log_p), 0.0)
    return term.sum(dim=-1)[some].sum()
