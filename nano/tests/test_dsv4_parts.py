"""Pieces of the DeepSeek-V4 model against values worked out by hand and against plain loops."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from nano.config import ConfigError
from nano.dsv4.attention import index_loss, select_rows
from nano.dsv4.config import Dsv4Config
from nano.dsv4.decode import run
from nano.dsv4.groups import find_groups, near_mask, positions
from nano.dsv4.mixing import sinkhorn
from nano.dsv4.model import Dsv4Model
from nano.dsv4.moe import clamped_swiglu, scores, select, share
from nano.dsv4.rotation import frequencies, plain_frequencies, rotate, turn_table
from nano.dsv4.rounding import (
    e2m1_step,
    e4m3_step,
    fp4_round_trip,
    fp4_straight_through,
    fp8_round_trip,
    fp8_straight_through,
    hadamard,
    hadamard_matrix,
    nearest,
    scale_exponent,
)
from nano.models import initialise
from nano.optim import is_hidden_matrix

TINY: dict[str, Any] = {
    "n_layers": 5, "hidden": 64, "vocab": 97, "n_heads": 6, "head_dim": 72,
    "qk_rope_head_dim": 8, "q_lora_rank": 24, "o_lora_rank": 20, "o_groups": 3,
    "sliding_window": 7, "compress_ratios": [0, 4, 8, 4], "index_n_heads": 2,
    "index_head_dim": 32, "index_topk": 3, "n_routed_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "num_hash_layers": 2, "swiglu_limit": 1.0,
}


def tiny_model(**changes: Any) -> Dsv4Model:
    model = Dsv4Model(Dsv4Config.from_json({**TINY, **changes}))
    generator = torch.Generator().manual_seed(3)
    initialise(model, generator)
    with torch.no_grad():
        for name, p in model.named_parameters():  # away from the quiet start of a training
            if name.endswith(("sink", "ape", "base", "norm.weight")):
                p += 0.4 * torch.randn(p.shape, generator=generator)
            if name in ("embed.weight", "head.weight"):
                p.mul_(40)
        for _, moe in model.moe_layers():
            if moe.selection_bias is not None:
                moe.selection_bias.normal_(0, 0.3, generator=generator)
    return model.eval()


# -- rounding ------------------------------------------------------------------------------------


def table(mantissa_bits: int, exponents: range, bias: int) -> list[float]:
    """Non-negative values of a small float format in the order of their codes."""
    n = 1 << mantissa_bits
    return [
        (y / n) * 2.0 ** (1 - bias) if x == 0 else (1 + y / n) * 2.0 ** (x - bias)
        for x in exponents for y in range(n)
    ]


E4M3 = table(3, range(16), 7)[:127]
E2M1 = table(1, range(4), 1)


def bisected(value: float, values: list[float]) -> float:
    """Nearest entry, ties to the even code."""
    size = abs(value)
    high = min(bisect_left(values, size), len(values) - 1)
    low = max(high - 1, 0) if values[high] > size else high
    below, above = Fraction(size) - Fraction(values[low]), Fraction(values[high]) - Fraction(size)
    code = low if below < above or (below == above and low % 2 == 0) else high
    return math.copysign(values[code], value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("values,step", [(E4M3, e4m3_step), (E2M1, e2m1_step)])
def test_codes_and_the_middles_between_them(dtype: Any, values: list[float], step: Any) -> None:
    middles = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    near = [m * (1 + s * 1e-6) for m in middles for s in (-1, 1)]
    q = torch.tensor([*values, *middles, *near], dtype=dtype)
    q = torch.cat([q, -q])
    got = nearest(q, step(q))
    assert got.tolist() == [bisected(v, values) for v in q.tolist()]
    assert torch.signbit(got).tolist() == torch.signbit(q).tolist()


def test_ties_by_hand() -> None:
    q = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert nearest(q, e2m1_step(q)).tolist() == [0, 1, 1, 2, 2, 4, 4]
    q = torch.tensor([2**-10, 3 * 2**-10, 5 * 2**-10, 1.0625, 1.1875, 0.96875, 17, 19, 432])
    expected = [0, 2**-8, 2**-8, 1, 1.25, 1, 16, 20, 448]
    assert nearest(q, e4m3_step(q)).tolist() == expected


@pytest.mark.parametrize("limit", [448.0, 6.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponent_is_the_least_that_fits(limit: float, dtype: Any) -> None:
    edges = [Fraction(limit) * Fraction(2) ** t for t in range(-40, 21)]
    m = torch.tensor([float(e) for e in edges], dtype=dtype)
    up, down = (m.nextafter(torch.tensor(x, dtype=dtype)) for x in (math.inf, 0.0))
    for values in (m, up, down, m * 0.7):
        for value, e in zip(values.tolist(), scale_exponent(values, limit).tolist(), strict=True):
            assert Fraction(value) <= Fraction(limit) * Fraction(2) ** e
            assert Fraction(value) > Fraction(limit) * Fraction(2) ** (e - 1)


def test_round_trips_of_rows() -> None:
    v = torch.tensor([0.37 * (i - 20) for i in range(64)])
    got = fp8_round_trip(v)
    assert got[[0, 19, 30, 47, 62, 63]].tolist() == [-7.5, -0.375, 3.75, 10, 16, 16]
    assert torch.equal(fp8_round_trip(got), got)
    assert torch.equal(fp8_round_trip(v.double()).float(), got)
    # Blocks have scales of their own; a block of zeros stays zero.
    row = torch.cat([v, torch.zeros(64), 1e-3 * v[:16]])
    back = fp8_round_trip(row)
    assert torch.equal(back[:64], got) and not back[64:128].any()
    assert torch.equal(back[128:], fp8_round_trip(1e-3 * v[:16]))
    for n in (32, 96):
        x = torch.randn(3, 5, n)
        y = fp4_round_trip(x)
        blocks = x.unflatten(-1, (-1, 32))
        error = (y - x).unflatten(-1, (-1, 32)).abs().amax(dim=-1)
        assert (error <= blocks.abs().amax(dim=-1) / 5).all()  # a sixth of 6 at most, and slack
        assert torch.equal(fp4_round_trip(y), y)


@pytest.mark.parametrize("function", [fp8_straight_through, fp4_straight_through])
def test_gradient_passes_through(function: Any) -> None:
    x = torch.randn(2, 64, requires_grad=True)
    function(x).mul(torch.arange(64.0)).sum().backward()
    assert torch.equal(x.grad, torch.arange(64.0).expand(2, 64))


@pytest.mark.parametrize("n", [32, 64, 128])
def test_hadamard(n: int) -> None:
    x = torch.randn(4, n, dtype=torch.float64)
    torch.testing.assert_close(hadamard(hadamard(x)), x, atol=1e-6, rtol=0)
    assert torch.equal(hadamard(torch.eye(n)), hadamard_matrix(n, torch.float32))
    signs = [[(-1) ** (i & j).bit_count() for j in range(n)] for i in range(n)]
    torch.testing.assert_close(hadamard_matrix(n, torch.float64) * n**0.5,
                               torch.tensor(signs, dtype=torch.float64), atol=1e-6, rtol=0)


# -- rotation ------------------------------------------------------------------------------------


def test_frequencies() -> None:
    assert plain_frequencies(64, 10000.0)[1] == pytest.approx(0.749894202, rel=1e-7)
    assert plain_frequencies(64, 160000.0)[1] == pytest.approx(0.687656045, rel=1e-7)
    f = frequencies(Dsv4Config(head_dim=128, index_head_dim=64, qk_rope_head_dim=64), True)
    known = {15: 0.00363553851, 16: 0.00226562493, 20: 0.000296977785, 24: 1.95312532e-05,
             25: 5.37231244e-06, 31: 5.6805294e-07}
    for pair, value in known.items():
        assert f[pair] == pytest.approx(value, rel=2e-7), pair
    cos, sin = turn_table(torch.tensor(4095), f, torch.float64)
    assert (float(cos[16]), float(sin[16])) == pytest.approx((-0.98920846, 0.14651483), abs=1e-7)
    cos, sin = turn_table(torch.tensor(4095), plain_frequencies(64, 10000.0), torch.float64)
    assert (float(cos[16]), float(sin[16])) == pytest.approx((-0.99403310, -0.10907879), abs=1e-7)


def test_rotation_turns_adjacent_trailing_pairs_and_back() -> None:
    x = torch.randn(5, 12, dtype=torch.float64)
    cos, sin = turn_table(torch.arange(5), plain_frequencies(4, 100.0), torch.float64)
    y = rotate(x, cos, sin)
    assert torch.equal(y[:, :8], x[:, :8])
    for p, pair in itertools.product(range(5), range(2)):
        a, b = 8 + 2 * pair, 9 + 2 * pair
        z = complex(x[p, a], x[p, b]) * complex(float(cos[p, pair]), float(sin[p, pair]))
        assert (float(y[p, a]), float(y[p, b])) == pytest.approx((z.real, z.imag))
    torch.testing.assert_close(rotate(y, cos, -sin), x)


# -- mixers --------------------------------------------------------------------------------------


def test_sinkhorn() -> None:
    c = torch.tensor([[0.5, -1, 0.25, 2], [1.5, 0, -0.75, 0.1], [-2, 0.3, 0.9, -0.4],
                      [0, 0.7, -1.2, 1.1]], dtype=torch.float64)
    expected = torch.tensor([
        [0.191202287, 0.057768974, 0.221765023, 0.529262717],
        [0.620573907, 0.187494123, 0.097411341, 0.09451963],
        [0.022406673, 0.30260413, 0.606443255, 0.068544942],
        [0.165816133, 0.452131774, 0.074379381, 0.307671712]], dtype=torch.float64)
    got = sinkhorn(torch.stack([c, torch.zeros_like(c), 80 * c.sign()]), 20, 1e-6)
    torch.testing.assert_close(got[0], expected, atol=1e-8, rtol=0)
    torch.testing.assert_close(got[1], torch.full_like(c, 0.25), atol=1e-5, rtol=0)
    assert got.isfinite().all()


@pytest.mark.parametrize("iterations,eps", [(1, 1e-2), (3, 1e-3), (20, 1e-6)])
def test_gradient_of_sinkhorn(iterations: int, eps: float) -> None:
    c = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda c: sinkhorn(c, iterations, eps), (c,))


# -- experts -------------------------------------------------------------------------------------


def test_router() -> None:
    logits = torch.tensor([-30, -20, -10, -2, 0, 1, 3, 20, 20.5, 100])
    expected = [3.05902321e-07, 4.53999297e-05, 0.00673787053, 0.356269576, 0.832554611,
                1.1459763, 1.74602043, 4.47213596, 4.52769257, 10]
    torch.testing.assert_close(scores(logits), torch.tensor(expected), rtol=1e-6, atol=0)
    key = torch.tensor([[1.0, 2.0, 2.0, 0.5], [1.0, 1.0, 1.0, 1.0]])
    assert select(key, torch.tensor([0.0, 0.0, 0.0, 5.0]), 2).tolist() == [[3, 1], [3, 0]]
    assert select(key, torch.zeros(4), 3).tolist() == [[1, 2, 0], [0, 1, 2]]
    tiny = share(scores(torch.full((1, 3), -40.0)), 1.5)
    assert tiny.isfinite().all() and float(tiny.sum()) == pytest.approx(1.5)


def test_clamps() -> None:
    gate, up = torch.tensor([-50.0, 50.0, 2.0]), torch.tensor([-50.0, 50.0, 0.5])
    got = clamped_swiglu(gate, up, 1.5)
    silu = 1.5 / (1 + math.exp(-1.5))
    assert got.tolist() == pytest.approx([-1.5 * -50 / (1 + math.exp(50)), 1.5 * silu, 0.5 * silu])
    assert clamped_swiglu(gate, up, 0.0)[1] == 2500


# -- documents and groups ------------------------------------------------------------------------


def test_groups_of_packed_documents_against_a_loop() -> None:
    docs = torch.tensor([[0] * 9 + [1] * 3 + [2] * 12, [0] * 2 + [1] * 21 + [2]])
    for ratio, (row, numbers) in itertools.product((2, 4, 5), enumerate(docs.tolist())):
        groups = find_groups(docs, positions(docs), ratio)
        expected, start = [], 0
        for _, same in itertools.groupby(numbers):
            size = len(list(same))
            for first in range(0, size - ratio + 1, ratio):
                tokens = list(range(start + first, start + first + ratio))
                expected.append((tokens, first, first > 0, numbers[start]))
            start += size
        for slot, (tokens, first, follows, doc) in enumerate(expected):
            assert groups.tokens[row, slot].tolist() == tokens
            assert int(groups.position[row, slot]) == first
            assert bool(groups.follows[row, slot]) == follows
            seen = [t for t in range(24) if numbers[t] == doc and t >= tokens[-1]]
            assert groups.visible[row, :, slot].nonzero().flatten().tolist() == seen
        assert not groups.visible[row, :, len(expected) :].any()


def test_window_against_a_loop() -> None:
    docs, window = torch.tensor([[0] * 5 + [1] * 6]), 4
    mask = near_mask(docs, window)
    for t in range(11):
        keys = [s + (t // window - 1) * window for s in
                mask[0, t // window, t % window].nonzero().flatten().tolist()]
        assert keys == [s for s in range(11) if 0 <= t - s < window and docs[0, s] == docs[0, t]]


def test_documents_in_one_row_do_not_see_each_other() -> None:
    model = tiny_model().double()
    parts = [torch.randint(3, 97, (1, n)) for n in (31, 3, 46)]
    docs = torch.cat([torch.full((1, p.shape[1]), i) for i, p in enumerate(parts)], dim=1)
    with torch.no_grad():
        packed = model(torch.cat(parts, dim=1), docs)
        alone = torch.cat([model(p) for p in parts], dim=1)
    torch.testing.assert_close(packed, alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("changes", [{}, {"act_qat": False, "hc_mult": 2, "hc_sinkhorn_iters": 3},
                                     {"compress_ratios": [4, 16, 3, 0, 4], "o_groups": 1}])
def test_both_forms_agree(changes: dict[str, Any]) -> None:
    model = tiny_model(**changes).double()
    ids = torch.randint(3, 97, (1, 70), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        torch.testing.assert_close(model(ids)[0], run(model, ids[0].tolist()), atol=1e-11, rtol=0)


# -- indexer -------------------------------------------------------------------------------------


def test_selection_breaks_ties_by_row_and_keeps_to_the_visible() -> None:
    score = torch.tensor([[0.0, -0.0, 3.0, -1.0, 0.0]])
    everything = torch.ones(1, 5, dtype=torch.bool)
    assert select_rows(score, everything, 3).tolist() == [[True, True, True, False, False]]
    many = torch.zeros(1, 300)
    picked = select_rows(many, torch.ones(1, 300, dtype=torch.bool), 20)
    assert picked.nonzero()[:, 1].tolist() == list(range(20))
    assert select(many, torch.zeros(300), 20).tolist() == [list(range(20))]
    some = torch.tensor([[False, True, False, True, False]])
    assert select_rows(score, some, 3).tolist() == some.tolist()


def test_index_loss_is_a_divergence_whose_gradient_reaches_the_scores_only() -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, 6, 2, 8, generator=generator, requires_grad=True)
    rows = torch.randn(1, 3, 8, generator=generator, requires_grad=True)
    visible = torch.tensor([[[t >= 2 * (g + 1) - 1 for g in range(3)] for t in range(6)]])
    score = torch.randn(1, 6, 3, generator=generator, requires_grad=True)
    loss = index_loss(score, q, rows, visible)
    expected = 0.0
    for t in range(1, 6):
        n = (t + 1) // 2
        with torch.no_grad():
            target = (q[0, t] @ rows[0, :n].T / 8**0.5).softmax(dim=1).mean(dim=0)
            p = score[0, t, :n].softmax(dim=0)
            expected += float((target * (target / p).log()).sum())
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert q.grad is None and rows.grad is None
    assert score.grad.isfinite().all() and not score.grad[~visible].any()


def test_every_parameter_learns() -> None:
    model = tiny_model().train()
    tokens = torch.randint(3, 97, (2, 64))
    docs = torch.tensor([[0] * 40 + [1] * 24, [0] * 64])
    model.loss(tokens, tokens.roll(-1, dims=1), docs).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.any(), name
    inference = tiny_model()
    value = inference.loss(tokens, tokens.roll(-1, dims=1), docs)
    again = model.loss(tokens, tokens.roll(-1, dims=1), docs)
    assert again.item() == pytest.approx(value.item())


def test_the_index_loss_reaches_the_indexers_only() -> None:
    tokens = torch.randint(3, 97, (1, 64), generator=torch.Generator().manual_seed(6))
    grads = []
    for training in (True, False):
        model = tiny_model().double().train(training)
        model.loss(tokens, tokens.roll(-1, dims=1)).backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in grads[0].items():
        if "indexer" in name:
            assert grad is not None and grad.any() and grads[1][name] is None, name
        else:
            assert grad is not None and torch.equal(grad, grads[1][name]), name


def test_which_tensors_muon_takes() -> None:
    names = {n.split(".", 2)[-1] for n, p in tiny_model().named_parameters()
             if is_hidden_matrix(n, p)}
    compressor = {"wkv.weight", "wgate.weight"}
    attention = {"wq_a.weight", "wq_b.weight", "wkv.weight", "wo_a.weight", "wo_b.weight",
                 "indexer.wq_b.weight", *(f"compressor.{n}" for n in compressor),
                 *(f"indexer.compressor.{n}" for n in compressor)}
    experts = {"experts.w1", "experts.w2", "experts.w3",
               *(f"shared_experts.w{i}.weight" for i in (1, 2, 3))}
    assert names == {f"attn.{n}" for n in attention} | {f"ffn.{n}" for n in experts}


@pytest.mark.parametrize("name", [
    "layers.1.hc_ffn_fn", "layers.2.attn.compressor.ape", "layers.1.attn.wkv.weight",
    "layers.0.attn.attn_sink", "layers.3.ffn.gate.weight", "hc_head_fn",
])
def test_gradients_against_finite_differences(name: str) -> None:
    model = tiny_model(act_qat=False).double()
    tokens = torch.randint(3, 97, (1, 40), generator=torch.Generator().manual_seed(2))
    p = dict(model.named_parameters())[name]

    def loss() -> Tensor:
        return model.loss(tokens, tokens.roll(-1, dims=1))

    (slope,) = torch.autograd.grad(loss(), [p])
    generator = torch.Generator().manual_seed(4)
    direction = torch.randn(p.shape, dtype=torch.float64, generator=generator)
    h = 1e-6
    with torch.no_grad():
        p += h * direction
        up = float(loss())
        p -= 2 * h * direction
        down = float(loss())
    assert (up - down) / (2 * h) == pytest.approx(float((slope * direction).sum()), rel=1e-5)


# -- config --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key,value", [
    ("hidden", 40), ("head_dim", 4), ("qk_rope_head_dim", 7), ("index_head_dim", 96),
    ("o_groups", 4), ("num_experts_per_tok", 7), ("compress_ratios", [0, 1]),
    ("compress_ratios", 4), ("n_layers", 0), ("rms_norm_eps", 0), ("act_qat", 1),
    ("swiglu_limit", math.inf), ("specials", {"bos": 97}), ("vocab", 2.5), ("num_hash_layers", -1),
])
def test_bad_configs_name_the_key(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=key):
        Dsv4Config.from_json({**TINY, key: value})


def test_config_survives_json() -> None:
    config = Dsv4Config.from_json({**TINY, "note": 1, "tokenizer": "x"})
    again = Dsv4Config.from_json(config.to_json())
    assert again == config and again.extra == {"note": 1}
    assert config.to_json()["ds"]["hidden"] == 64 and config.ratio(4) == 0
