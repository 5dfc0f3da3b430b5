"""The whole model: gradients, documents, causality, recomputation, and that it can learn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nano.decode import StepDecoder
from nano.model import IGNORE, ForwardOptions, K3Model, initialise, mix
from nano.optim import OptimConfig, Optimizer
from nano.quant import mxfp4_round_trip
from nano.tests.tiny import tiny_config


def make(seed: int = 1, **changes: object) -> K3Model:
    model = K3Model(tiny_config(**changes))
    initialise(model, torch.Generator().manual_seed(seed))
    with torch.no_grad():  # zeros at the start would hide mistakes
        g = torch.Generator().manual_seed(seed + 1)
        for name, p in model.named_parameters():
            if name.endswith(("res_proj.weight", "dt_bias")):
                p.normal_(0, 0.5, generator=g)
    return model


def ids(b: int, t: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 300, (b, t), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("a_log", ["head", "channel"])
@pytest.mark.parametrize("l2", ["max1e-12", "sum1e-6"])
def test_step_by_step_equals_whole_rows(a_log: str, l2: str) -> None:
    model = make(kda_a_log=a_log, kda_l2=l2).double().eval()
    tokens = ids(3, 40)
    with torch.no_grad():
        want = model(tokens)
    decoder = StepDecoder(model, 3)
    got = torch.stack([decoder.step(tokens[:, i]) for i in range(40)], dim=1)
    assert torch.allclose(got, want, rtol=0, atol=1e-10)


def test_later_tokens_never_change_earlier_logits() -> None:
    model = make().eval()
    tokens = ids(1, 50)
    changed = tokens.clone()
    changed[0, 30] = (changed[0, 30] + 1) % 300
    with torch.no_grad():
        a, b = model(tokens), model(changed)
    assert torch.allclose(a[:, :30], b[:, :30], atol=1e-6)
    assert not torch.allclose(a[:, 30:], b[:, 30:], atol=1e-3)


def test_packed_documents_equal_each_alone() -> None:
    model = make().double().eval()
    lengths = [3, 19, 2, 33, 1, 38]
    tokens = ids(1, sum(lengths))
    doc = torch.repeat_interleave(torch.arange(6), torch.tensor(lengths)).unsqueeze(0)
    with torch.no_grad():
        together = model(tokens, doc)
        at = 0
        for size in lengths:
            alone = model(tokens[:, at : at + size])
            assert torch.allclose(together[:, at : at + size], alone, rtol=0, atol=1e-10)
            at += size


def test_gradients_agree_with_finite_differences() -> None:
    # top_k = E: a discrete selection has no derivative to compare.
    model = make(n_layers=3, mla_layers=[1], top_k=6, vocab=64).double()
    tokens = torch.randint(0, 50, (2, 20), generator=torch.Generator().manual_seed(4))
    targets = tokens.roll(-1, dims=1)
    doc = (torch.arange(20) >= 9).int().expand(2, 20)

    def loss() -> Tensor:
        return model.loss(tokens, targets, doc) / targets.numel()

    loss().backward()
    generator = torch.Generator().manual_seed(5)
    for name, p in model.named_parameters():
        direction = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        analytic = float((p.grad * direction).sum()) if p.grad is not None else 0.0
        with torch.no_grad():
            p += 1e-7 * direction
            up = float(loss())
            p -= 2e-7 * direction
            down = float(loss())
            p += 1e-7 * direction
        numeric = (up - down) / 2e-7
        assert analytic == pytest.approx(numeric, rel=1e-4, abs=1e-6), name


def test_recomputed_layers_and_step_form_give_the_same_gradients() -> None:
    results = []
    for options in (
        ForwardOptions(), ForwardOptions(checkpoint_layers=True), ForwardOptions(kda_chunked=False)
    ):
        model = make().train()
        model.options = options
        model.loss(ids(2, 40), ids(2, 40, 9)).backward()
        results.append([p.grad for p in model.parameters() if p.grad is not None])
    for a, b, c in zip(*results, strict=True):
        assert torch.equal(a, b)
        scale = float(a.abs().max()) + 1e-6
        assert float((a - c).abs().max()) < 1e-3 * scale


def test_quantised_experts_pass_gradients_straight_through() -> None:
    model = make().train()
    model.options = ForwardOptions(quantize_experts=True)
    rounded = make().train()
    with torch.no_grad():
        for _, moe in rounded.moe_layers():
            for w in (moe.experts.w1, moe.experts.w2, moe.experts.w3):
                w.copy_(mxfp4_round_trip(w))
    losses = []
    for m in (model, rounded):
        loss = m.loss(ids(2, 30), ids(2, 30, 9))
        loss.backward()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for (name, a), (_, b) in zip(
        model.named_parameters(), rounded.named_parameters(), strict=True
    ):
        if a.grad is not None:
            assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-6), name


def test_ignored_targets_carry_no_loss() -> None:
    model = make().eval()
    tokens, targets = ids(1, 20), ids(1, 20, 3)
    half = targets.clone()
    half[:, :10] = IGNORE
    rest = targets.clone()
    rest[:, 10:] = IGNORE
    whole, parts = model.loss(tokens, targets), model.loss(tokens, half) + model.loss(tokens, rest)
    assert whole.item() == pytest.approx(parts.item(), rel=1e-6)


def test_mix_weighs_by_direction_and_keeps_lengths() -> None:
    a, b = torch.tensor([[10.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    w = torch.tensor([100.0, 0.0])
    out = mix([a, b], torch.ones(2), w, 1e-5)
    assert torch.allclose(out, a, atol=1e-4)
    even = mix([a, b], torch.ones(2), torch.zeros(2), 1e-5)
    assert torch.allclose(even, (a + b) / 2)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_two_stories_can_be_learnt_by_heart(kind: str) -> None:
    model = make(n_layers=3, mla_layers=[1], vocab=304).train()
    optimizer = Optimizer(
        model.named_parameters(), OptimConfig(kind, lr=5e-3, muon_lr=0.02, weight_decay=0.0)
    )
    tokens = ids(2, 17)
    loss = torch.tensor(9.0)
    for _ in range(200):
        for p in model.parameters():
            p.grad = None
        loss = model.loss(tokens[:, :-1], tokens[:, 1:]) / 32
        if float(loss.detach()) < 0.05:
            break
        loss.backward()
        optimizer.step(1.0)
    assert float(loss.detach()) < 0.05
