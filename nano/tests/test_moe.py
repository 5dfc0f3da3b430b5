"""Routing and grouped experts against a plain loop over tokens and experts."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from nano.balance import load_statistics, update_bias
from nano.moe import grouped_experts, route, situ

BETA, LINEAR_BETA = 4.0, 25.0
ACTIVATE = functools.partial(situ, beta=BETA, linear_beta=LINEAR_BETA)


def loop(x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    inner = w2.shape[2]
    for n in range(x.shape[0]):
        for j in range(ids.shape[1]):
            e = int(ids[n, j])
            both = w13[e] @ x[n]
            gate, up = both[:inner], both[inner:]
            act = BETA * torch.tanh(gate / BETA) / (1 + torch.exp(-gate))
            act = act * LINEAR_BETA * torch.tanh(up / LINEAR_BETA)
            out[n] = out[n] + weights[n, j] * (w2[e] @ act)
    return out


def case(n: int, k: int, e: int, collapse: float = 0.0) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(n + 10 * k + 100 * e)
    x = torch.randn(n, 8, generator=g, dtype=torch.float64)
    scores = torch.rand(n, e, generator=g)
    scores[: int(collapse * n), 0] = 2.0
    ids = scores.argsort(dim=1, descending=True)[:, :k]
    weights = torch.rand(n, k, generator=g, dtype=torch.float64)
    w13 = torch.randn(e, 12, 8, generator=g, dtype=torch.float64)
    w2 = torch.randn(e, 8, 6, generator=g, dtype=torch.float64)
    return x, ids, weights, w13, w2


@pytest.mark.parametrize(
    "n,k,e,collapse",
    [(40, 2, 5, 0.0), (1, 1, 3, 0.0), (300, 2, 16, 1.0), (50, 4, 4, 0.0), (7, 3, 50, 0.0)],
    ids=["plain", "one token", "collapsed router needs rounds", "k = E", "empty experts"],
)
def test_grouped_experts_equal_a_loop(n: int, k: int, e: int, collapse: float) -> None:
    x, ids, weights, w13, w2 = case(n, k, e, collapse)
    leaves = [t.requires_grad_() for t in (x, weights, w13, w2)]
    got, counts = grouped_experts(x, ids, weights, w13, w2, ACTIVATE)
    got.sin().sum().backward()
    grads = [t.grad.clone() for t in leaves]
    for t in leaves:
        t.grad = None
    want = loop(x, ids, weights, w13, w2)
    want.sin().sum().backward()
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    for a, t in zip(grads, leaves, strict=True):
        torch.testing.assert_close(a, t.grad, rtol=1e-9, atol=1e-9)
    assert counts.tolist() == torch.bincount(ids.flatten(), minlength=e).tolist()


def test_bias_steers_selection_but_not_weights() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    bias = torch.tensor([0.0, 0.0, 0.0, 5.0])
    ids, weights = route(logits, bias, 2)
    assert ids.tolist() == [[3, 0]]
    s = torch.sigmoid(torch.tensor([-1.0, 2.0]))
    torch.testing.assert_close(weights[0], s / s.sum())


def test_ties_go_to_the_smaller_id() -> None:
    ids, _ = route(torch.zeros(1, 40), torch.zeros(40), 4)
    assert ids.tolist() == [[0, 1, 2, 3]]


def test_situ_caps_both_branches() -> None:
    big = torch.tensor([1e4, -1e4])
    torch.testing.assert_close(situ(big, big, 4.0, 25.0), torch.tensor([100.0, 0.0]))


def test_balance_evens_out_a_skewed_router() -> None:
    g = torch.Generator().manual_seed(3)
    skew = torch.linspace(-2, 2, 16)
    bias = torch.zeros(16)
    before = after = torch.zeros(16)
    for step in range(500):
        logits = skew + 0.5 * torch.randn(256, 16, generator=g)
        ids, _ = route(logits, bias, 2)
        after = torch.bincount(ids.flatten(), minlength=16).float()
        before = after if step == 0 else before
        update_bias(bias, after, 5e-3)
    assert load_statistics(before)["max_over_mean"] > 4
    assert load_statistics(after)["max_over_mean"] < 1.5


def test_load_statistics_count_dead_experts() -> None:
    found = load_statistics(torch.tensor([100.0, 100.0, 100.0, 0.0]))
    assert found["dead"] == 1 and found["calls"] == 300
    assert found["top_share"] == pytest.approx(1 / 3)
    assert found["entropy"] == pytest.approx(0.7925, abs=1e-4)
