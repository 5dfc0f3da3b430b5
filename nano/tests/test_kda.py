"""The chunk form of the delta rule against the step form, in every regime."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nano.kda import kda_chunks, kda_steps


def inputs(
    t: int, h: int = 2, d: int = 16, b: int = 2, decay: str = "mixed",
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    g = torch.Generator().manual_seed(t * 100 + h * 10 + d)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    q = torch.nn.functional.normalize(normal(b, t, h, d), dim=-1) * d**-0.5
    k = torch.nn.functional.normalize(normal(b, t, h, d), dim=-1)
    shift = {"slow": -9.0, "mixed": 0.0, "fast": 6.0}[decay]
    rate = -5.0 * torch.sigmoid(2 * normal(b, t, h, d) + shift)
    beta = torch.sigmoid(normal(b, t, h))
    return [x.to(dtype) for x in (q, k, normal(b, t, h, d), rate, beta)]


@pytest.mark.parametrize("t", [1, 7, 15, 16, 17, 64, 65, 130])
@pytest.mark.parametrize("decay", ["slow", "mixed", "fast"])
def test_chunks_equal_steps(t: int, decay: str) -> None:
    args = inputs(t, decay=decay)
    start = torch.randn(2, 2, 16, 16, dtype=torch.float64)
    want, want_state = kda_steps(*args, state=start)
    got, got_state = kda_chunks(*args, state=start)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-9 * float(want.abs().max()))
    torch.testing.assert_close(got_state, want_state, rtol=0, atol=1e-9)


@pytest.mark.parametrize("h,d", [(1, 32), (4, 64), (2, 128)])
def test_f32_rounding_stays_small(h: int, d: int) -> None:
    want, _ = kda_steps(*inputs(200, h, d, 1))
    got, _ = kda_chunks(*inputs(200, h, d, 1, dtype=torch.float32))
    assert float((got.double() - want).abs().max()) < 1e-5 * float(want.abs().max())


def test_gradients_equal() -> None:
    grads = []
    for scan in (kda_steps, kda_chunks):
        args = [x.requires_grad_() for x in inputs(35)]
        state = torch.ones(2, 2, 16, 16, dtype=torch.float64, requires_grad=True)
        out, final = scan(*args, state=state)
        (out.sin().sum() + final.square().sum()).backward()
        grads.append([x.grad for x in [*args, state]])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


def test_documents_in_one_row_equal_each_alone() -> None:
    args = inputs(96, b=1)
    lengths = [5, 20, 1, 32, 7, 31]
    doc = torch.repeat_interleave(torch.arange(6), torch.tensor(lengths)).unsqueeze(0)
    together, _ = kda_chunks(*args, doc=doc)
    stepped, _ = kda_steps(*args, doc=doc)
    at = 0
    for size in lengths:
        alone, _ = kda_steps(*(x[:, at : at + size] for x in args))
        torch.testing.assert_close(together[:, at : at + size], alone, rtol=0, atol=1e-10)
        torch.testing.assert_close(stepped[:, at : at + size], alone, rtol=0, atol=1e-12)
        at += size


def test_correlated_keys_with_slow_decay_stay_finite() -> None:
    q, _, v, _, beta = inputs(512, b=1, dtype=torch.float32)
    k = torch.nn.functional.normalize(torch.ones_like(q) + 0.01 * q, dim=-1)
    g = -1e-3 * torch.rand_like(q)
    beta = torch.full_like(beta, 0.999)
    want, _ = kda_steps(*(x.double() for x in (q, k, v, g, beta)))
    got, _ = kda_chunks(q, k, v, g, beta)
    assert float((got - want).abs().max()) < 1e-4 * float(want.abs().max())


def test_strongest_decay_everywhere_is_finite_with_gradients() -> None:
    q, k, v, _, beta = inputs(64, dtype=torch.float32)
    g = torch.full_like(q, -5.0).requires_grad_()
    out, state = kda_chunks(q, k, v, g, beta)
    (out.sum() + state.sum()).backward()
    assert torch.isfinite(out).all() and torch.isfinite(g.grad).all()


def test_a_bound_that_could_overflow_is_refused() -> None:
    with pytest.raises(AssertionError, match="too low"):
        kda_chunks(*inputs(16), lower_bound=-8.0)
