"""Which expert of one layer answers to a text as which of another does."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nano.graft import stats
from nano.graft.activations import Chosen
from nano.graft.checkpoint import Checkpoint
from nano.graft.functions import FfnModule
from nano.graft.linalg import Moments, RidgePath, assign
from nano.graft.texts import Corpus

PROBES, OWN_TOKENS, SKETCH = 512, 8, 64
ROUTING_WEIGHT = 0.25
PERMUTATIONS = 100
UNMATCHED = 0.3


def pick_rows(indicator: Tensor, count: int, seed: int) -> Tensor:
    """Rows [<= count]: of every expert some of its own, then any; indicator [N, E]."""
    rng = stats.generator(seed)
    chosen: set[int] = set()
    for e in range(indicator.shape[1]):
        own = np.flatnonzero(indicator[:, e].numpy())
        chosen |= set(rng.permutation(own)[:OWN_TOKENS].tolist())
    rest = [i for i in rng.permutation(len(indicator)).tolist() if i not in chosen]
    chosen_rows = sorted(chosen)[: max(count, 0)]
    return torch.tensor(sorted([*chosen_rows, *rest[: max(0, count - len(chosen_rows))]]))


def indicators(module: FfnModule, x: Tensor, tokens: Tensor | None) -> Tensor:
    """[N, E] 1 where an expert is chosen."""
    ids, _, _ = module.route(x, tokens)
    return torch.zeros(len(x), module.experts).scatter_(1, ids, 1.0)


def answers(module: FfnModule, x: Tensor, sketch: Tensor) -> Tensor:
    """What every expert gives for rows x, in the model's width, sketched: [E, n * s] unit rows.

    Behind a latent the norm of the mixture is left out: it depends on the other experts.
    """
    out = []
    h = x if module.latent is None else F.linear(x, module.latent[0])
    for e in range(module.experts):
        y = module.expert(e, h)
        if module.latent is not None:
            _, up, gain, _ = module.latent
            y = F.linear(y * gain, up)
        out.append((y @ sketch).reshape(-1))
    return F.normalize(torch.stack(out), dim=1)


def sketch_matrix(width: int, seed: int) -> Tensor:
    """[width, s] with orthonormal columns."""
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(width, min(SKETCH, width), generator=generator))
    return q


def row_tokens(corpus: Corpus, model: int, chosen: Chosen) -> Tensor:
    return torch.tensor([p.tokens[model].ids[i]
                         for p, picks in zip(corpus.pieces, chosen.picks[model], strict=True)
                         for i in picks])


@torch.no_grad()
def match_experts(a: Checkpoint, la: int, b: Checkpoint, lb: int, rows: list, chosen: Chosen,
                  corpus: Corpus, seed: int = 0) -> dict[str, Any]:
    """Pairs of experts with the greatest likeness, and how far above chance it is."""
    modules = [FfnModule(a.layers[la].ffn), FfnModule(b.layers[lb].ffn)]
    xs = [torch.from_numpy(np.asarray(rows[side][(layer, "ffn_in_gained")]))
          for side, layer in ((0, la), (1, lb))]
    tokens = [row_tokens(corpus, side, chosen) for side in (0, 1)]
    marks = [indicators(m, x, t) for m, x, t in zip(modules, xs, tokens, strict=True)]
    at = pick_rows(torch.cat(marks, dim=1), min(PROBES, len(xs[0])), seed)
    # P brings A's answers into B's space; fitted on the streams that both layers read.
    ra, rb = (rows[s][(layer, "ffn_resid")] for s, layer in ((0, la), (1, lb)))
    p = RidgePath.of(Moments.of(ra, rb)).at(1e-9).float()
    sketch = sketch_matrix(p.shape[0], seed)
    fa = answers(modules[0], xs[0][at], p.T @ sketch)
    fb = answers(modules[1], xs[1][at], sketch)
    s = (fa @ fb.T).double().numpy()
    rho = _correlation(*marks)
    pairs = assign(s + ROUTING_WEIGHT * rho)
    matched = np.array([s[i, j] for i, j in pairs])
    rng = stats.generator(seed)
    chance = [np.mean([s[i, j] for i, j in zip(*_random_pairs(rng, s.shape), strict=True)])
              for _ in range(PERMUTATIONS)]
    best = s.max(axis=1)
    return {
        "a": la, "b": lb, "pairs": [[i, j, float(s[i, j]), float(rho[i, j])] for i, j in pairs],
        "mean": float(matched.mean()), "chance": float(np.mean(chance)),
        "z": float((matched.mean() - np.mean(chance)) / max(np.std(chance), 1e-12)),
        "unmatched": [int(i) for i in np.flatnonzero(best < UNMATCHED)],
        "similarity": s,
    }


def _random_pairs(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Any, Any]:
    n = min(shape)
    return rng.permutation(shape[0])[:n].tolist(), rng.permutation(shape[1])[:n].tolist()


def _correlation(a: Tensor, b: Tensor) -> np.ndarray:
    x, y = ((m - m.mean(dim=0)).double() for m in (a, b))
    norm = x.norm(dim=0)[:, None] * y.norm(dim=0)[None, :]
    return (x.T @ y / norm.clamp_min(1e-12)).numpy()
