"""What `utility` measures put together: tables, figures, orders and keep-lists."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nano.files import write_atomic, write_json
from nano.graft import stats
from nano.graft.ablation import Change, measure, summarise
from nano.graft.activations import check_extraction, choose_rows, collect
from nano.graft.checkpoint import Checkpoint
from nano.graft.errors import GraftError
from nano.graft.experts import row_tokens
from nano.graft.functions import FfnModule
from nano.graft.redundancy import redundancy
from nano.graft.report import draw_lorenz, draw_scatter, progress, table
from nano.graft.runner import Runner, open_runner
from nano.graft.texts import Corpus
from nano.graft.utility import (
    expert_table,
    install,
    moe_layers,
    one_pass,
    sample_experts,
    specialisation,
)

PAIRS = 20
BUDGETS = (0.9, 0.75, 0.5)
DEAD_SHARE = 0.01  # of the mean load
COLUMNS = ("layer", "expert", "load", "mass", "energy", "projection", "effect", "g1", "g2",
           "taylor", "delta", "delta_low", "delta_high", "p", "real", "substitute",
           "substitute_r2", "entropy", "tokens")


def utility_report(model: Checkpoint, corpus: Corpus, mode: str, exact: int | None, pairs: bool,
                   keeps: Sequence[int], seed: int, dtype: torch.dtype, out: Path,
                   rank: str = "mass"
                   ) -> tuple[dict[str, Any], list[str]]:
    """Runs the instrument; writes experts.csv, keep-lists and figures to `out`."""
    runner = open_runner(model, False, dtype)
    layers = moe_layers(runner)
    for n in keeps:
        if n >= model.cfg.n_experts:
            raise GraftError(f"--keep {n}: the model has {model.cfg.n_experts} experts")
    error = check_extraction(runner, corpus, 0, layers[0])
    alike = _redundancies(runner, corpus, layers, seed)
    modules = install(runner, layers)
    sums = one_pass(runner, corpus, modules)
    tables = {i: expert_table(s) for i, s in sums.items()}
    for i in layers:
        _add_columns(tables[i], sums[i], corpus, alike[i])
    measured = sample_experts(tables, exact, seed)
    tokens = _exact(runner, corpus, modules, tables, measured, mode, seed)
    results: dict[str, Any] = {
        "extraction_error": error, "mode": mode, "measured": len(measured),
        "tokens": float(tokens), "layers": {str(i): _layer(tables[i], alike[i]) for i in layers},
        "agreement": _agreement(tables, measured, mode, tokens, seed),
    }
    if pairs:
        results["pairs"] = _pairs(runner, corpus, modules, alike, mode)
    order = importance(tables, tokens, rank)
    results["order"] = [list(k) for k in order]
    results["budgets"] = [_budget(order, tables, share, tokens) for share in BUDGETS]
    out.mkdir(parents=True, exist_ok=True)
    for n in keeps:
        keep = {str(i): sorted(e for _, e in [k for k in order if k[0] == i][-n:]) for i in layers}
        write_json(out / f"keep-{n}.json", {"keep": keep})
    write_json(out / "importance.json", {"least_first": results["order"]})
    write_atomic(out / "experts.csv", _csv(tables).encode())
    draw_lorenz(out / "mass.png", {f"layer {i}": np.array([r["mass"] for r in t])
                                   for i, t in tables.items()}, "routed mass")
    value = worths(tables, tokens)
    draw_lorenz(out / "utility.png", {
        f"layer {i}": np.array([value[(i, e)] for e in range(len(t))]) for i, t in tables.items()
    }, "utility")
    found = [tables[i][e] for i, e in measured]
    if found:
        draw_scatter(out / "agreement.png", np.array([r["taylor"] / tokens for r in found]),
                     np.array([r["delta"] for r in found]), "second order against exact",
                     "Taylor score, nats per token", "exact, nats per token")
    return results, _lines(results, tables)


def worths(tables: dict[int, list[dict[str, Any]]], tokens: float) -> dict[tuple[int, int], float]:
    """Nats per token that every expert saves: measured if all were, else to second order.

    The two are never mixed: they need not have one scale.
    """
    rows = {(i, e): row for i, t in tables.items() for e, row in enumerate(t)}
    if all(row["delta"] is not None for row in rows.values()):
        return {k: row["delta"] for k, row in rows.items()}
    return {k: row["taylor"] / max(tokens, 1) for k, row in rows.items()}


def importance(tables: dict[int, list[dict[str, Any]]], tokens: float,
               rank: str = "mass") -> list[tuple[int, int]]:
    """All experts, the least important first, by routed mass or by what they are worth; of equals
    the lower id."""
    value = worths(tables, tokens)
    if rank == "mass":
        value = {(i, e): tables[i][e]["mass"] for i, e in value}
    return sorted(value, key=lambda k: (value[k], k))


def _redundancies(runner: Runner, corpus: Corpus, layers: Sequence[int], seed: int
                  ) -> dict[int, dict[str, Any]]:
    """On held-out documents (on all if there are none)."""
    chosen = choose_rows(corpus)
    sites = [(i, "ffn_in_gained") for i in layers]
    rows = collect(runner, corpus, 0, chosen, sites)
    held = corpus.held_out[chosen.docs]
    if not held.any():
        held = np.ones(len(held), bool)
    tokens = row_tokens(corpus, 0, chosen)[torch.from_numpy(held)]
    out = {}
    for i in progress(layers, "redundancy"):
        module = FfnModule(runner.source.layers[i].ffn)
        out[i] = redundancy(module, torch.from_numpy(np.asarray(rows[(i, "ffn_in_gained")])[held]),
                            tokens, seed)
    return out


def _add_columns(rows: list[dict[str, Any]], sums: Any, corpus: Corpus,
                 alike: dict[str, Any]) -> None:
    special = specialisation(sums, corpus.codecs[0].spell)
    for e, row in enumerate(rows):
        row.update(delta=None, delta_low=None, delta_high=None, p=None, real=None)
        row["substitute"] = alike["substitutes"][e]["expert"]
        row["substitute_r2"] = alike["substitutes"][e]["r2"]
        row["entropy"] = special[e]["entropy"] if special else None
        row["tokens"] = special[e]["tokens"] if special else []


def _exact(runner: Runner, corpus: Corpus, modules: dict[int, FfnModule],
           tables: dict[int, list[dict[str, Any]]], measured: Sequence[tuple[int, int]],
           mode: str, seed: int) -> float:
    """Fills the columns of exact ablation; returns the number of scored tokens."""
    changes = [Change(i, (e,)) for i, e in measured]
    delta, _, tokens = measure(runner, corpus, modules, changes, mode)
    for (i, e), d in zip(measured, delta, strict=True):
        found = summarise(d, tokens, seed)
        row = tables[i][e]
        row["delta"], row["p"] = found["delta"], found["p"]
        row["delta_low"], row["delta_high"] = found["interval"]
    known = [(i, e) for i, e in measured if tables[i][e]["p"] is not None]
    real = stats.benjamini_hochberg(np.array([tables[i][e]["p"] for i, e in known]))
    for (i, e), r in zip(known, real, strict=True):
        tables[i][e]["real"] = bool(r)
    return float(tokens.sum())


def _agreement(tables: dict[int, list[dict[str, Any]]], measured: Sequence[tuple[int, int]],
               mode: str, tokens: float, seed: int) -> dict[str, Any]:
    """Whether the cheap score orders experts as exact ablation does."""
    rows = [tables[i][e] for i, e in measured]
    if len(rows) < stats.MIN_CLUSTERS:
        return {"experts": len(rows), "spearman": None, "interval": [None, None]}
    x, y = (np.array([r[k] for r in rows], float) for k in ("taylor", "delta"))
    return {"experts": len(rows), "spearman": stats.spearman(x, y),
            "interval": stats.spearman_interval(x, y, seed=seed).to_json()}


def _pairs(runner: Runner, corpus: Corpus, modules: dict[int, FfnModule],
           alike: dict[int, dict[str, Any]], mode: str) -> list[dict[str, Any]]:
    """Of the most alike pairs: what leaving out both costs beyond each, and each for the other."""
    found = []
    for i, a in alike.items():
        s = np.triu(a["likeness"], 1)
        for e, f in zip(*np.unravel_index(np.argsort(-s, axis=None, kind="stable")[:PAIRS],
                                          s.shape), strict=True):
            found.append((float(s[e, f]), i, int(e), int(f)))
    found = sorted(found, key=lambda k: (-k[0], k[1:]))[:PAIRS]
    changes = []
    for _, i, e, f in found:
        changes += [Change(i, (e,)), Change(i, (f,)), Change(i, (e, f)),
                    Change(i, redirect=((e, f),)), Change(i, redirect=((f, e),))]
    delta, _, tokens = measure(runner, corpus, modules, changes, mode)
    value = delta.sum(axis=1) / max(tokens.sum(), 1)
    out = []
    for n, (s, i, e, f) in enumerate(found):
        one, two, both, e_by_f, f_by_e = value[5 * n : 5 * n + 5]
        out.append({"layer": i, "experts": [e, f], "likeness": s, "delta": [one, two],
                    "both": both, "interaction": both - one - two,
                    "substituted": [e_by_f, f_by_e]})
    return out


def _layer(rows: list[dict[str, Any]], alike: dict[str, Any]) -> dict[str, Any]:
    load = np.array([r["load"] for r in rows])
    return {
        "experts": rows, "clusters": alike["clusters"],
        "dead": [int(e) for e in np.flatnonzero(load < DEAD_SHARE * load.mean())],
        "gini_mass": stats.gini(np.array([r["mass"] for r in rows])),
        "gini_taylor": stats.gini(np.array([r["taylor"] for r in rows])),
        "projection_sum": float(sum(r["projection"] for r in rows)),
    }


def _budget(order: Sequence[tuple[int, int]], tables: dict[int, list[dict[str, Any]]],
            share: float, tokens: float) -> dict[str, Any]:
    """The prediction adds single effects up; it is no measurement."""
    dropped = order[: len(order) - math.ceil(share * len(order))]
    cost = sum(tables[i][e]["taylor"] for i, e in dropped) / max(tokens, 1)
    return {"kept_share": share, "dropped": len(dropped), "predicted_nats_per_token": cost}


def _csv(tables: dict[int, list[dict[str, Any]]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for i, rows in tables.items():
        for e, row in enumerate(rows):
            cells = [i, e, *(row[c] for c in COLUMNS[2:-1]), json.dumps(row["tokens"])]
            writer.writerow([f"{c:.6g}" if isinstance(c, float) else "" if c is None else c
                             for c in cells])
    return text.getvalue()


def _lines(r: dict[str, Any], tables: dict[int, list[dict[str, Any]]]) -> list[str]:
    """report.md."""
    agreement = r["agreement"]
    rho = agreement["spearman"]
    lines = ["# utility", "",
             f"{r['measured']} experts measured by exact ablation ({r['mode']}) on "
             f"{r['tokens']:.0f} tokens."]
    if rho is not None:
        low, high = (float("nan") if v is None else v for v in agreement["interval"])
        lines.append(f"The second-order score orders them alike: Spearman {rho:.2f} "
                     f"[{low:.2f}, {high:.2f}].")
    lines += ["", *table(("layer", "dead", "Gini of mass", "Gini of score", "clusters",
                          "real at 5 %"),
                         [(i, len(f["dead"]), f["gini_mass"], f["gini_taylor"],
                           len(f["clusters"]), sum(bool(x["real"]) for x in f["experts"]))
                          for i, f in r["layers"].items()]), ""]
    lines += ["Predicted by single effects, not measured:", "",
              *table(("kept", "experts dropped", "nats per token"),
                     [(f"{100 * b['kept_share']:.0f} %", b["dropped"],
                       b["predicted_nats_per_token"]) for b in r["budgets"]]), ""]
    ends = [*r["order"][:10], *r["order"][-10:]]
    lines += ["The ten least and the ten most important (nats per token):", ""]
    return lines + table(
        ("layer", "expert", "load", "mass", "score", "exact", "95 %", "best substitute (R2)"),
        [(i, e, x["load"], x["mass"], x["taylor"] / max(r["tokens"], 1), x["delta"],
          "" if x["delta_low"] is None else f"{x['delta_low']:.2g} to {x['delta_high']:.2g}",
          "" if x["substitute"] is None else f"{x['substitute']} ({x['substitute_r2']:.2f})")
         for i, e in ends for x in [tables[i][e]]])
