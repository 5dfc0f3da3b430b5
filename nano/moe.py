"""Routing and grouped computation of the routed experts.

Shapes: N tokens, k experts per token, E experts, m width of the experts' input, i their inner
width.
Assignments are sorted by expert, each expert multiplies its rows at once, and results return to
token order through the inverse permutation.  Nothing is ever dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CAPACITY_STEP = 32

Activation = Callable[[Tensor, Tensor], Tensor]  # gate and up [..., i] -> [..., i]


def situ(gate: Tensor, up: Tensor, beta: float, linear_beta: float) -> Tensor:
    """[beta tanh(g/beta) sigmoid(g)] * [beta2 tanh(u/beta2)]; the sigmoid sees the uncapped g."""
    return (beta * torch.tanh(gate / beta) * torch.sigmoid(gate)) * (
        linear_beta * torch.tanh(up / linear_beta)
    )


def route(
    logits: Tensor, bias: Tensor, top_k: int, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Expert ids [N, k] and weights [N, k] from router logits [N, E].

    The bias steers the selection only; weights are the selected sigmoid scores over their sum.
    Ties go to the smaller id (stable sort), as in the engine.
    """
    scores = torch.sigmoid(logits)
    key = scores.detach() + bias
    ids = torch.argsort(key, dim=-1, descending=True, stable=True)[:, :top_k]
    picked = scores.gather(1, ids)
    return ids, scale * picked / (picked.sum(dim=-1, keepdim=True) + 1e-20)


class _Gather(torch.autograd.Function):
    """rows -> rows[source]; the gradient is a gather and a sum over the k copies of each row.

    The stock index_select would scatter-add row by row in the backward pass, which is slow.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, source: Tensor, inverse: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.k = k
        return rows.index_select(0, source)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        back = grad.index_select(0, inverse)
        if ctx.k > 1:
            back = back.view(-1, ctx.k, grad.shape[1]).sum(dim=1)
        return back, None, None, None


def grouped_experts(
    x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, activate: Activation
) -> tuple[Tensor, Tensor]:
    """sum_j weights[:, j] * expert_{ids[:, j]}(x) and the calls per expert.

    x: [N, m]; ids, weights: [N, k]; w13: [E, 2i, m], gate rows over up rows; w2: [E, m, i].
    `activate` joins gate and up [..., i] to what w2 takes.
    Returns [N, m] and counts [E].
    """
    n, k = ids.shape
    n_experts = w13.shape[0]
    flat = ids.reshape(-1)
    order = torch.argsort(flat, stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device)
    counts = torch.bincount(flat, minlength=n_experts)
    rows = _Gather.apply(x, order // k, inverse, k)
    out_rows = _expert_rows(rows, counts, w13, w2, activate)
    per_token = _Gather.apply(out_rows, inverse, order, 1).view(n, k, x.shape[1])
    return torch.einsum("nkm,nk->nm", per_token, weights.to(x.dtype)), counts


def _expert_rows(
    rows: Tensor, counts: Tensor, w13: Tensor, w2: Tensor, activate: Activation
) -> Tensor:
    """Applies experts to rows that are sorted by expert: rows [A, m] -> [A, m].

    Rows are laid out as [E, capacity, m] with zero padding.  Capacity follows the largest expert
    up to twice the mean; what exceeds it goes through further rounds, so that a collapsed router
    costs time but neither memory nor tokens.
    """
    n_experts = w13.shape[0]
    total, width = rows.shape
    mean = -(-total // n_experts)
    largest = int(counts.max())
    capacity = max(1, min(largest, 2 * mean))
    capacity = -(-capacity // CAPACITY_STEP) * CAPACITY_STEP
    first = counts.cumsum(0) - counts
    expert = torch.repeat_interleave(
        torch.arange(n_experts, device=rows.device), counts, output_size=total
    )
    position = torch.arange(total, device=rows.device) - first[expert]
    if largest <= capacity:
        return _padded_round(rows, expert * capacity + position, capacity, w13, w2, activate)
    out = rows.new_zeros(total, width)
    for start in range(0, largest, capacity):
        here = ((position >= start) & (position < start + capacity)).nonzero().squeeze(1)
        slot = expert[here] * capacity + position[here] - start
        part = _padded_round(rows[here], slot, capacity, w13, w2, activate)
        out = out.index_copy(0, here, part)
    return out


class _Spread(torch.autograd.Function):
    """Places row r at slot[r] of a zero buffer with `size` rows; slots are distinct."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, slot: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(slot)
        buffer = rows.new_zeros(size, rows.shape[1])
        buffer[slot] = rows
        return buffer

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (slot,) = ctx.saved_tensors
        return grad.index_select(0, slot), None, None


class _Collect(torch.autograd.Function):
    """Inverse of _Spread: rows at the given distinct slots."""

    @staticmethod
    def forward(ctx: Any, buffer: Tensor, slot: Tensor) -> Tensor:
        ctx.save_for_backward(slot)
        ctx.size = buffer.shape[0]
        return buffer.index_select(0, slot)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (slot,) = ctx.saved_tensors
        buffer = grad.new_zeros(ctx.size, grad.shape[1])
        buffer[slot] = grad
        return buffer, None


def _padded_round(
    rows: Tensor, slot: Tensor, capacity: int, w13: Tensor, w2: Tensor, activate: Activation
) -> Tensor:
    n_experts, _, width = w13.shape
    padded = _Spread.apply(rows, slot, n_experts * capacity).view(n_experts, capacity, width)
    gate, up = torch.bmm(padded, w13.transpose(1, 2)).chunk(2, dim=-1)
    out = torch.bmm(activate(gate, up), w2.transpose(1, 2))
    return _Collect.apply(out.reshape(n_experts * capacity, width), slot)
