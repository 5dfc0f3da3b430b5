"""`utility`: what is each routed expert worth?

One pass forward and back gives every expert's share of the work and the loss change that its
absence would make to second order; exact ablation measures it for all experts or for a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nano.graft import stats
from nano.graft.errors import GraftError
from nano.graft.functions import FfnModule, Seen
from nano.graft.report import progress
from nano.graft.runner import Runner
from nano.graft.texts import Corpus, batches, padded

TOP_STRINGS = 20
HISTOGRAM_CELLS = 50_000_000  # above it no histogram of tokens by expert is kept
BATCH_TOKENS = 2048


@dataclass
class LayerSums:
    """Sums over tokens, one entry per expert."""

    experts: int
    calls: np.ndarray = field(init=False)
    mass: np.ndarray = field(init=False)
    energy: np.ndarray = field(init=False)
    projection: np.ndarray = field(init=False)
    effect: np.ndarray = field(init=False)
    g1: np.ndarray = field(init=False)
    g2: np.ndarray = field(init=False)
    z2: float = 0.0
    histogram: np.ndarray | None = None  # [E, V]

    def __post_init__(self) -> None:
        for name in ("calls", "mass", "energy", "projection", "effect", "g1", "g2"):
            setattr(self, name, np.zeros(self.experts))


def moe_layers(runner: Runner) -> list[int]:
    found = [i for i in runner.source.chosen if runner.source.layers[i].ffn.experts]
    if not found:
        raise GraftError(f"{runner.source.path}: no layer with routed experts to look at")
    return found


def install(runner: Runner, layers: Sequence[int]) -> dict[int, FfnModule]:
    """Puts modules that can be watched and changed in place of the model's own."""
    out = {}
    for i in layers:
        out[i] = FfnModule(runner.source.layers[i].ffn, runner.dtype)
        runner.swap_ffn(i, out[i])
    return out


@dataclass
class Batch:
    """Pieces padded to one length; `valid` marks their tokens, targets follow each token."""

    pieces: list[int]
    ids: Tensor  # [B, T]
    valid: Tensor  # [B, T] bool

    @property
    def targets(self) -> Tensor:
        """[B, T - 1] bool: positions whose next token is real."""
        return self.valid[:, 1:]


def make_batches(corpus: Corpus, pieces: Sequence[int], model: int = 0) -> list[Batch]:
    rows = [corpus.pieces[i].tokens[model].ids for i in pieces]
    out = []
    for group in batches([len(r) for r in rows], BATCH_TOKENS):
        ids = padded([rows[i] for i in group])
        lengths = torch.tensor([len(rows[i]) for i in group])
        out.append(Batch([pieces[i] for i in group], ids,
                         torch.arange(ids.shape[1])[None, :] < lengths[:, None]))
    return out


def batch_nats(runner: Runner, hidden: Tensor, batch: Batch) -> Tensor:
    """Nats [B] of each piece."""
    mask = batch.targets
    nats = runner.token_nats(hidden[:, :-1][mask], batch.ids[:, 1:][mask])
    rows = mask.nonzero()[:, 0]
    return torch.zeros(len(batch.ids), dtype=torch.float64).index_add(0, rows, nats)


def one_pass(runner: Runner, corpus: Corpus, modules: dict[int, FfnModule]) -> dict[int, LayerSums]:
    """Forward and backward over all pieces."""
    sums = {}
    for i, m in modules.items():
        sums[i] = LayerSums(m.experts)
        if m.experts * runner.cfg.vocab <= HISTOGRAM_CELLS:
            sums[i].histogram = np.zeros((m.experts, runner.cfg.vocab), np.float32)
        m.record = m.want_gradient = True
    work = make_batches(corpus, range(len(corpus.pieces)))
    try:
        for batch in progress(work, "one pass"):
            streams: dict[tuple[int, str], Tensor] = {}
            handles = [h for i in modules for h in runner._watch(i, {"ffn_resid"}, streams)]
            with torch.enable_grad():
                loss = batch_nats(runner, runner.trunk(batch.ids), batch).sum()
                loss.backward()
            for handle in handles:
                handle.remove()
            for i, m in modules.items():
                _add(sums[i], m, batch, streams[(i, "ffn_resid")])
    finally:
        for m in modules.values():
            m.record = m.want_gradient = False
            m.seen = None
    return sums


@torch.no_grad()
def _add(sums: LayerSums, module: FfnModule, batch: Batch, stream: Tensor) -> None:
    seen = module.seen
    assert seen is not None
    valid = batch.valid.reshape(-1)
    gradient = seen.z.grad if seen.z.grad is not None else torch.zeros_like(seen.z)
    size = stream.reshape(len(valid), -1).norm(dim=1).clamp_min(1e-30)
    sums.z2 += float(seen.z[valid].double().square().sum())
    tokens = batch.ids.reshape(-1)
    for e in range(module.experts):
        rows, place = ((seen.ids == e) & valid[:, None]).nonzero(as_tuple=True)
        if len(rows):
            _add_expert(sums, module, seen, e, rows, place, gradient, size)
            if sums.histogram is not None:
                np.add.at(sums.histogram[e], tokens[rows].numpy(), 1)


def _add_expert(sums: LayerSums, module: FfnModule, seen: Seen, e: int, rows: Tensor,
                place: Tensor, gradient: Tensor, size: Tensor) -> None:
    w = seen.weights[rows, place]
    part = w[:, None] * module.expert(e, seen.h[rows])  # [n, m]
    inner = (gradient[rows] * part).sum(dim=1).double()
    sums.calls[e] += len(rows)
    sums.mass[e] += float(w.double().sum())
    sums.energy[e] += float(part.double().square().sum())
    sums.projection[e] += float((part * seen.z[rows]).double().sum())
    sums.g1[e] += float(inner.sum())
    sums.g2[e] += 0.5 * float(inner.square().sum())
    lifted = part if module.latent is None else F.linear(part * module.latent[2], module.latent[1])
    sums.effect[e] += float((lifted.norm(dim=1) / size[rows]).double().sum())


def expert_table(sums: LayerSums) -> list[dict[str, float]]:
    """Columns of experts.csv; G1, G2 and T in nats over all tokens."""
    s = sums
    calls, mass, z2 = max(s.calls.sum(), 1), max(s.mass.sum(), 1e-300), max(s.z2, 1e-300)
    return [{
        "load": s.calls[e] / calls, "mass": s.mass[e] / mass, "energy": s.energy[e] / z2,
        "projection": s.projection[e] / z2, "effect": s.effect[e] / max(s.calls[e], 1),
        "g1": s.g1[e], "g2": s.g2[e], "taylor": -s.g1[e] + s.g2[e],
    } for e in range(s.experts)]


def specialisation(sums: LayerSums, spell: Any) -> list[dict[str, Any]]:
    """Entropy of each expert's tokens in nats, and the tokens it gets far above their share."""
    if sums.histogram is None:
        return []
    h = sums.histogram.astype(np.float64)
    total = h.sum(axis=0)
    base = total / max(total.sum(), 1)
    out = []
    for row in h:
        n = row.sum()
        p = row[row > 0] / max(n, 1)
        lift = np.where(row >= 3, row / max(n, 1) / np.maximum(base, 1e-300), 0)
        top = [int(t) for t in np.argsort(-lift, kind="stable")[:TOP_STRINGS] if lift[t] > 1]
        out.append({"entropy": float(-(p * np.log(p)).sum()) if n else 0.0,
                    "tokens": [(spell(t) or b"?").decode("utf-8", "replace") for t in top]})
    return out


def sample_experts(tables: dict[int, list[dict[str, float]]], count: int | None, seed: int
                   ) -> list[tuple[int, int]]:
    """Which experts are measured exactly: all of few, else the least, the greatest and some."""
    everyone = [(layer, e) for layer, t in tables.items() for e in range(len(t))]
    if count is None or (len(everyone) <= 256 and count >= 0) or count >= len(everyone):
        return everyone
    order = sorted(everyone, key=lambda k: tables[k[0]][k[1]]["taylor"])
    half = count // 2
    chosen = {*order[:half], *order[len(order) - half :]}
    rest = [k for k in everyone if k not in chosen]
    picks = stats.generator(seed).permutation(len(rest))[: count // 4]
    return sorted({*chosen, *(rest[i] for i in picks)})
