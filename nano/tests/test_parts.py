"""Schedule, optimizer, averages, sampler and watchdog, each alone."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from nano.model import IGNORE
from nano.optim import Ema, OptimConfig, Optimizer, clip_gradients, is_hidden_matrix, orthogonalise
from nano.sampler import EpochSampler, pack_documents, sequential_batches
from nano.schedule import Budget, Schedule, balance_rate
from nano.stream import TokenStream, open_stream, write_stream
from nano.watchdog import Watchdog, notify_systemd, resident_bytes


def test_warmup_then_constant_then_linear() -> None:
    s = Schedule("wsd", warmup=10, min_frac=0.1, decay_from=0.5)
    assert s.scale(0, 0.0) == pytest.approx(0.1)
    assert s.scale(9, 0.01) == s.scale(500, 0.5) == 1.0
    assert s.scale(500, 0.75) == pytest.approx(0.55)
    assert s.scale(900, 1.0) == pytest.approx(0.1)


def test_cosine_ends_at_its_floor() -> None:
    s = Schedule("cosine", warmup=0, min_frac=0.1)
    assert s.scale(0, 0.0) == 1.0
    assert s.scale(1, 0.5) == pytest.approx(0.55)
    assert s.scale(2, 1.0) == pytest.approx(0.1)


def test_budgets_measure_their_own_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Budget(steps=10).progress(4, 0, 0.0, 0.0) == 0.4
    assert Budget(tokens=100).progress(0, 150, 0.0, 0.0) == 1.0
    assert Budget(minutes=2).progress(0, 0, 60.0, 0.0) == 0.5
    clock = [1000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    resumed = Budget(deadline=1100.0)
    assert resumed.progress(0, 0, 0.0, 0.6) == 0.6  # continues where the last run stood
    clock[0] = 1050.0
    assert resumed.progress(0, 0, 0.0, 0.6) == pytest.approx(0.8)
    clock[0] = 1200.0
    assert resumed.progress(0, 0, 0.0, 0.6) == 1.0
    for wrong in ({}, {"steps": 1, "tokens": 1}, {"steps": -1}):
        with pytest.raises(ValueError, match="one positive budget"):
            Budget(**wrong)
    assert balance_rate(0.0) > balance_rate(0.5) > balance_rate(0.9)


def test_adamw_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(6, 5, generator=generator)
    mine, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    ours = Optimizer([("w.weight", mine)], OptimConfig("adamw", lr=1e-2))
    reference = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for _ in range(20):
        grad = torch.randn(6, 5, generator=generator)
        mine.grad, theirs.grad = grad.clone(), grad.clone()
        ours.step(1.0)
        reference.step()
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 4, 16), (2, 16, 4)])
def test_orthogonalised_updates_have_even_singular_values(shape: tuple[int, int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    u, _, v = torch.linalg.svd(torch.randn(shape, generator=generator), full_matrices=False)
    rank = min(shape[1:])
    g = u @ torch.diag(torch.linspace(1.0, 0.1, rank)) @ v  # singular values 10 : 1
    out = orthogonalise(g)
    after = torch.linalg.svdvals(out)
    assert float(after.max()) < 1.3 and float(after.min()) > 0.5
    aligned = (out * (u @ v)).sum(dim=(1, 2)) / rank
    assert float(aligned.min()) > 0.7


def test_parameters_go_to_the_right_optimizer() -> None:
    hidden = ["layers.1.self_attn.q_proj.weight", "layers.1.self_attn.f_b_proj.weight",
              "layers.1.block_sparse_moe.shared_experts.gate_proj.weight"]
    others = ["embed_tokens.weight", "lm_head.weight", "layers.1.block_sparse_moe.gate.weight",
              "layers.1.self_attn.q_conv1d.weight", "layers.1.self_attn.b_proj.weight"]
    p = torch.zeros(4, 4)
    assert all(is_hidden_matrix(n, p) for n in hidden)
    assert not any(is_hidden_matrix(n, p) for n in others)
    assert not is_hidden_matrix("norm.weight", torch.zeros(4))


def test_clip_scales_to_the_limit_and_reports_the_norm_before() -> None:
    a, b = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))
    a.grad, b.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert clip_gradients([a, b], 1.0) == pytest.approx(5.0)
    assert torch.allclose(a.grad, torch.tensor([0.6, 0.0]), atol=1e-5)


def test_averages_swap_in_and_out() -> None:
    p = torch.nn.Parameter(torch.zeros(3))
    ema = Ema([("p", p)], 0.5)
    with torch.no_grad():
        p.fill_(1.0)
    ema.update(1000)
    ema.swap()
    assert torch.equal(p.detach(), torch.full((3,), 0.5))
    ema.swap()
    assert torch.equal(p.detach(), torch.ones(3))


def stream(folder: Path, lengths: list[int], name: str = "train") -> TokenStream:
    number = iter(range(1, 100000))
    docs = [[0, *(next(number) % 900 + 2 for _ in range(n - 2)), 1] for n in lengths]
    meta = {"bos": 0, "eos": 1, "vocab_size": 1000, "specials": {}, "bytes": 1}
    write_stream(folder / name, docs, meta)
    return open_stream(folder / name)


def test_packing_uses_every_token_once(tmp_path: Path) -> None:
    lengths = [5, 40, 12, 3, 30, 31, 2, 90, 17]
    rows = pack_documents(np.array(lengths), 32, np.arange(9))
    seen: dict[int, int] = {}
    for row in rows:
        assert sum(size for _, _, size in row.pieces) <= 32
        for doc, _, size in row.pieces:
            seen[doc] = seen.get(doc, 0) + size
    assert seen == dict(enumerate(lengths))
    assert len(rows) < len(lengths)


@pytest.mark.parametrize("kind", ["docs", "windows"])
def test_targets_are_the_next_tokens_of_the_same_document(tmp_path: Path, kind: str) -> None:
    s = stream(tmp_path, [9, 33, 20, 7, 64, 30, 41])
    batch = EpochSampler([s], 2, 32, 1, kind, pad=999).next()
    assert batch.docs is not None
    for tokens, targets, docs in zip(batch.tokens, batch.targets, batch.docs, strict=True):
        for i in range(31):
            if targets[i] != IGNORE and docs[i] == docs[i + 1]:
                assert targets[i] == tokens[i + 1]
            if tokens[i] == 1:
                assert targets[i] == IGNORE and docs[i] != docs[i + 1]
            if tokens[i] == 999:
                assert targets[i] == IGNORE


def test_order_continues_from_a_state_and_changes_by_epoch(tmp_path: Path) -> None:
    s = stream(tmp_path, [20] * 40)
    a = EpochSampler([s], 2, 32, 1)
    first = [a.next().tokens for _ in range(5)]
    state = a.state()
    rest = [a.next().tokens for _ in range(40)]
    b = EpochSampler([s], 2, 32, 1)
    b.load(state)
    assert all(torch.equal(x, b.next().tokens) for x in rest)
    assert a.epoch >= 1
    c = EpochSampler([s], 2, 32, 1)
    c.load({"epoch": 1, "index": 0})
    assert not all(torch.equal(x, c.next().tokens) for x in first)


def test_ranks_share_one_global_order(tmp_path: Path) -> None:
    s = stream(tmp_path, [20] * 40)
    whole = EpochSampler([s], 4, 32, 1)
    ranks = [EpochSampler([s], 2, 32, 1, rank=r, world=2) for r in range(2)]
    for _ in range(3):
        want = {tuple(row.tolist()) for row in whole.next().tokens}
        got = {tuple(row.tolist()) for r in ranks for row in r.next().tokens}
        assert got == want


def test_each_epoch_reads_its_own_shard(tmp_path: Path) -> None:
    shards = [stream(tmp_path, [32] * 4, "a"), stream(tmp_path, [31] * 4, "b")]
    sampler = EpochSampler(shards, 4, 32, 1, pad=999)
    assert not (sampler.next().tokens == 999).any()
    assert (sampler.next().tokens == 999).sum() == 4


def test_a_batch_larger_than_an_epoch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fewer than one batch"):
        EpochSampler([stream(tmp_path, [20, 20])], 8, 32, 1).next()


def test_held_out_batches_cover_every_document(tmp_path: Path) -> None:
    s = stream(tmp_path, [9, 33, 20, 7])
    targets = sum(b.target_count for b in sequential_batches(s, 2, 64, 0))
    assert targets == 9 + 33 + 20 + 7 - 4  # bos is never a target


def test_watchdog_reasons(tmp_path: Path) -> None:
    assert Watchdog(tmp_path).reason() is None
    assert Watchdog(tmp_path, max_hours=-1).reason() == "max-hours"
    assert Watchdog(tmp_path, rss_cap_gb=1, rss=lambda: 2_000_000_000).reason() == "rss-cap"
    assert Watchdog(tmp_path, rss_cap_gb=3, rss=lambda: 2_000_000_000).reason() is None
    assert Watchdog(tmp_path).disk_is_low(1 << 60)
    assert 1e6 < resident_bytes() < 1e12


def test_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify_systemd("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "s"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "s"))
        assert notify_systemd("READY=1")
        assert server.recv(100) == b"READY=1"
