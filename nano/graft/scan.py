"""`scan`: are two models compatible, and where do they agree?"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nano.graft import static, stats
from nano.graft.activations import (
    Chosen,
    Store,
    by_document,
    check_extraction,
    choose_rows,
    collect,
    splits,
)
from nano.graft.checkpoint import Checkpoint
from nano.graft.experts import match_experts
from nano.graft.linalg import RIDGES, KernelSums, Moments, RidgePath, monotone_path, procrustes
from nano.graft.report import progress, table
from nano.graft.runner import open_runner
from nano.graft.texts import Corpus

BLOCK_ROWS = 512
RESAMPLES = 200
COPY_RESIDUAL = 1e-6
FULL_LAYERS, SPECTRA_LAYERS = 8, 3  # looked at closely with --layers auto


@dataclass
class Fit:
    """A map x -> y (rows, both centred) with its held-out error by document."""

    a: Tensor  # [d_y, d_x]
    ridge: float
    condition: float
    dof: float
    errors: np.ndarray  # [held-out docs] sums of squares
    totals: np.ndarray
    median_column: float
    seed: int = 0

    def r2(self) -> tuple[float, stats.Interval]:
        """1 - error / total, with a document bootstrap."""
        value = 1 - stats.ratio(self.errors, self.totals)
        if len(self.errors) < stats.MIN_CLUSTERS:
            return value, stats.Interval(float("nan"), float("nan"), "none", "few documents")
        stars = 1 - stats.bootstrap(self.errors, self.totals, RESAMPLES, self.seed)
        return value, stats.percentile_interval(stars)


def fit_linear(x: Any, y: Any, docs: np.ndarray, held: np.ndarray, seed: int = 0) -> Fit:
    """Ridge with lambda chosen on documents of their own, error on the held-out ones."""
    fit, pick, out = splits(docs, held)
    mx, my = x[fit].mean(axis=0), y[fit].mean(axis=0)
    path = RidgePath.of(Moments.of(x[fit] - mx, y[fit] - my))
    ridge = min(RIDGES, key=path.judge(Moments.of(x[pick] - mx, y[pick] - my)))
    a = path.at(ridge)
    want = torch.from_numpy(y[out] - my).double()
    gap = want - torch.from_numpy(x[out] - mx).double() @ a.T
    spread = want - want.mean(dim=0)
    columns = 1 - gap.square().sum(dim=0) / spread.square().sum(dim=0).clamp_min(1e-300)
    return Fit(a, ridge, path.condition, path.dof(ridge),
               by_document(gap.square().sum(dim=1), docs[out]),
               by_document(spread.square().sum(dim=1), docs[out]), float(columns.median()), seed)


def procrustes_residual(x: Any, y: Any, docs: np.ndarray, held: np.ndarray) -> float:
    """Held-out ||s x Q - y||^2 over the spread of y; the narrower side gets zeros."""
    fit, _, out = splits(docs, held)
    mx, my = x[fit].mean(axis=0), y[fit].mean(axis=0)
    q = procrustes(Moments.of(x[fit] - mx, y[fit] - my), scaled=True)
    want = torch.from_numpy(y[out] - my).double()
    gap = want - torch.from_numpy(x[out] - mx).double() @ q.T
    return float(gap.square().sum() / (want - want.mean(dim=0)).square().sum().clamp_min(1e-300))


def anisotropy(x: np.ndarray, seed: int = 0) -> dict[str, float]:
    """How far from round a cloud of rows is; decides how far ridge maps can be trusted."""
    rng = stats.generator(seed)
    i, j = rng.integers(0, len(x), (2, 2000))
    a, b = (torch.from_numpy(np.asarray(x[k])).double() for k in (i, j))
    cosine = torch.nn.functional.cosine_similarity(a, b)
    mean, std = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    moments = Moments.of(x - mean.astype(np.float32), x[:, :1])
    values = torch.linalg.eigvalsh(moments.yy).clamp_min(0)
    return {
        "mean_cosine": float(cosine[torch.from_numpy(i != j)].mean()),
        "participation_ratio": float(values.sum() ** 2 / values.square().sum().clamp_min(1e-300)),
        "top_direction": float(values[-1] / values.sum().clamp_min(1e-300)),
        "massive_channels": int((np.abs(mean) > 8 * np.maximum(std, 1e-30)).sum()),
        "condition": float((values[-1] / values[0].clamp_min(1e-300)).sqrt()),
    }


def document_blocks(docs: np.ndarray, rows: int = BLOCK_ROWS) -> list[np.ndarray]:
    """Row indices in blocks of whole documents with about `rows` rows."""
    out: list[np.ndarray] = []
    here: list[np.ndarray] = []
    for d in np.unique(docs):
        here.append(np.flatnonzero(docs == d)[:rows])
        if sum(map(len, here)) >= rows // 2:
            out.append(np.concatenate(here)[:rows])
            here = []
    if here and (sum(map(len, here)) >= 16 or not out):
        out.append(np.concatenate(here)[:rows])
    return [b for b in out if len(b) >= 4]


def alignment(xa: list[np.ndarray], xb: list[np.ndarray], docs: np.ndarray,
              seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CKA of all pairs of layers and the ends of its interval (resampled blocks of documents)."""
    sums = KernelSums()
    blocks = document_blocks(docs)
    for block in progress(blocks, "alignment of layers"):
        sums.add([torch.from_numpy(x[block]) for x in xa],
                 [torch.from_numpy(x[block]) for x in xb])
    value = sums.cka().numpy()
    n = len(blocks)
    if n < 4:
        return value, np.full_like(value, np.nan), np.full_like(value, np.nan)
    counts = next(iter(stats.resample_counts(n, RESAMPLES, seed)))
    stars = np.stack([sums.cka(c).numpy() for c in counts])
    low, high = np.quantile(stars, [0.025, 0.975], axis=0)
    return value, low, high


@dataclass
class ScanOptions:
    layers: str | list[int] = "auto"
    pairs: str = "diag"
    seed: int = 0
    stream: bool = False
    cache: Path | None = None
    dtype: torch.dtype = torch.float32
    max_rows: int | None = None


def _sites(layers: Sequence[int]) -> list[tuple[int, str]]:
    return [(i, p) for i in layers for p in ("resid_in", "ffn_resid", "ffn_in_gained")]


def _collect_all(models: Sequence[Checkpoint], corpus: Corpus, chosen: Chosen,
                 layers: Sequence[Sequence[int]], o: ScanOptions
                 ) -> tuple[list[Store], list[float]]:
    rows, errors = [], []
    for side, source in enumerate(models):
        runner = open_runner(source, o.stream, o.dtype)
        errors.append(check_extraction(runner, corpus, side, layers[side][-1]))
        sites = [*_sites(layers[side]), (layers[side][-1], "resid_out")]
        rows.append(collect(runner, corpus, side, chosen, sites, o.cache))
        del runner
        gc.collect()  # hooks and modules hold each other
    return rows, errors


def scan(a: Checkpoint, b: Checkpoint, corpus: Corpus, o: ScanOptions) -> dict[str, Any]:
    """Everything of section "scan" of the docs, as JSON."""
    chosen = choose_rows(corpus, o.max_rows)
    depth = {"auto": FULL_LAYERS, "all": 1 << 30}
    layers = []
    for source in (a, b):
        if isinstance(o.layers, str):
            layers.append([source.chosen[i] for i in
                           static.spread(len(source.chosen), depth[o.layers])])
        else:
            layers.append([i for i in o.layers if i in source.chosen])
    checks = static.tokenizer_checks(a, b, corpus, chosen.share) + static.model_checks(a, b)
    looked = [[layer[i] for i in static.spread(len(layer), SPECTRA_LAYERS)] for layer in layers]
    facts = [static.spectra(s, at, o.seed) for s, at in zip((a, b), looked, strict=True)]
    rows, errors = _collect_all((a, b), corpus, chosen, layers, o)
    at = [[side[(i, "resid_in")] for i in layer] for side, layer in zip(rows, layers, strict=True)]
    cka, low, high = alignment(at[0], at[1], chosen.docs, o.seed)
    path = monotone_path(cka)
    pairs = path if o.pairs == "diag" else [(i, j) for i in range(len(layers[0]))
                                            for j in range(len(layers[1]))]
    found = [_pair(a, b, layers, rows, i, j, (cka, low, high), chosen, corpus, o.seed)
             for i, j in progress(pairs, "maps between layers")]
    experts = [match_experts(a, layers[0][i], b, layers[1][j], rows, chosen, corpus, o.seed)
               for i, j in path
               if a.layers[layers[0][i]].ffn.experts and b.layers[layers[1][j]].ffn.experts]
    ends = [side[(layer[-1], "resid_out")] for side, layer in zip(rows, layers, strict=True)]
    last = procrustes_residual(ends[0], ends[1], chosen.docs, corpus.held_out)
    copy = a.cfg.n_layers == b.cfg.n_layers and is_copy(path, len(layers[0]), found, layers, last)
    return {
        "checks": checks, "extraction_error": errors, "rows": chosen.rows,
        "shared_positions": chosen.share, "layers_a": layers[0], "layers_b": layers[1],
        "cka": cka, "cka_low": low, "cka_high": high,
        "alignment": [[layers[0][i], layers[1][j]] for i, j in path], "pairs": found,
        "last_procrustes_residual": last, "rotated_copy": copy,
        "verdict": "rotated copy" if copy else verdict(checks),
        "anisotropy": {name: {str(i): anisotropy(side[(i, "resid_in")], o.seed) for i in layer}
                       for name, side, layer in zip("ab", rows, layers, strict=True)},
        "spectra_layers": {"a": looked[0], "b": looked[1]},
        "spectra": {"a": facts[0], "b": facts[1]},
        "spectra_summary": static.spectra_summary(*facts), "experts": experts,
        "transfer": [{"from": layers[0][i], "to": layers[1][j],
                      "how": static.how_to_transfer(a, layers[0][i], b, layers[1][j])}
                     for i, j in path],
    }


def is_copy(path: list[tuple[int, int]], depth: int, found: list[dict[str, Any]], layers: list,
            last: float) -> bool:
    """Whether a turn brings every layer of A onto its namesake of B, and the last output too."""
    ways = {(layers[0][i], layers[1][j]) for i, j in path}
    return path == [(i, i) for i in range(depth)] and last < COPY_RESIDUAL and all(
        p["procrustes_residual"] < COPY_RESIDUAL for p in found if (p["a"], p["b"]) in ways)


def verdict(checks: list[dict[str, Any]]) -> str:
    found = {c["verdict"] for c in checks}
    return "blocked" if "blocked" in found else "mappable" if "mappable" in found else "same"


def _pair(a: Checkpoint, b: Checkpoint, layers: list, rows: list, i: int, j: int, cka: tuple,
          chosen: Chosen, corpus: Corpus, seed: int) -> dict[str, Any]:
    la, lb = layers[0][i], layers[1][j]
    x, y = rows[0][(la, "resid_in")], rows[1][(lb, "resid_in")]
    forward = fit_linear(x, y, chosen.docs, corpus.held_out, seed)
    backward = fit_linear(y, x, chosen.docs, corpus.held_out, seed)
    out: dict[str, Any] = {
        "a": la, "b": lb, "cka": cka[0][i, j], "cka_interval": [cka[1][i, j], cka[2][i, j]],
        "procrustes_residual": procrustes_residual(x, y, chosen.docs, corpus.held_out),
    }
    for name, f in (("a_to_b", forward), ("b_to_a", backward)):
        value, interval = f.r2()
        out[name] = {"r2": value, "interval": interval.to_json(), "lambda": f.ridge,
                     "median_column_r2": f.median_column, "condition": f.condition, "dof": f.dof}
    return out


def scan_lines(r: dict[str, Any]) -> list[str]:
    """report.md."""
    lines = ["# scan", "", f"Verdict: **{r['verdict']}**. {r['rows']} rows at shared positions "
             f"({100 * r['shared_positions']:.1f} % of A's tokens).", ""]
    lines += table(("check", "A", "B", "verdict"),
                   [(c["check"], c["a"], c["b"], c["verdict"]) for c in r["checks"]])
    lines += ["", "## Layers", "", "Aligned by CKA (unbiased), maps by ridge, held-out R2 with "
              "95 % document bootstrap.", ""]
    lines += table(
        ("A", "B", "CKA", "interval", "R2 A to B", "interval", "R2 B to A", "Procrustes residual",
         "how to transfer"),
        [(p["a"], p["b"], float(p["cka"]), _span(p["cka_interval"]), p["a_to_b"]["r2"],
          _span(p["a_to_b"]["interval"]), p["b_to_a"]["r2"], p["procrustes_residual"],
          next((t["how"] for t in r["transfer"] if (t["from"], t["to"]) == (p["a"], p["b"])), ""))
         for p in r["pairs"][:40]])
    for e in r["experts"]:
        lines += ["", f"Experts of layer {e['a']} and {e['b']}: matched mean {e['mean']:.3f}, "
                  f"chance {e['chance']:.3f} (z {e['z']:.1f}), {len(e['unmatched'])} unmatched."]
    lines += ["", "## Spectra", "", "Medians over layers, A and B.", ""]
    lines += table(("role", "sigma max", "stable rank", "effective rank", "tail exponent"),
                   [(s["role"], *(f"{s[f]['a']:.3g}, {s[f]['b']:.3g}" for f in
                                  ("sigma_max", "stable_rank", "effective_rank", "tail_exponent")))
                    for s in r["spectra_summary"]])
    return lines


def _span(ends: Sequence[float | None]) -> str:
    low, high = (float("nan") if e is None else float(e) for e in ends)
    return "" if np.isnan(low) else f"{low:.3f} to {high:.3f}"
