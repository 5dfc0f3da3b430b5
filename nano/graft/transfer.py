"""`transfer`: a feed-forward function of one model into another, in closed form.

Maps between the two spaces come from activations at shared positions, matrices by composition and
one linear solve.  Everything that is reported is measured on documents that no fit has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nano.graft import maps, solve
from nano.graft.activations import Chosen, Store, choose_rows, collect, splits
from nano.graft.checkpoint import Checkpoint
from nano.graft.config import read_json
from nano.graft.errors import GraftError
from nano.graft.experts import match_experts, row_tokens
from nano.graft.functions import Gated, activation
from nano.graft.linalg import Moments, RidgePath, monotone_path
from nano.graft.paired import compare_documents, match, score_documents
from nano.graft.report import progress, table
from nano.graft.runner import Runner, open_runner
from nano.graft.scan import alignment
from nano.graft.sites import (
    Donor,
    Goal,
    Site,
    Target,
    goal,
    mixture_neurons,
    open_donor,
    open_target,
    parse_site,
)
from nano.graft.source import MkimSource
from nano.graft.texts import Corpus

EXACT = 1e-5  # relative rms below which a composition needs no fit
ROWS_PER_NEURON = 10
INTERCEPT_SHARE = 0.01
POINTS = ("ffn_in", "ffn_resid")


@dataclass
class Step:
    donor: Site
    target: Site
    linear: str = "auto"  # identity, procrustes, scaled, ridge
    out_map: str = "residual"  # inverse, output
    intent: str = "function"  # residual, blend
    blend: float = 1.0


@dataclass
class Plan:
    steps: list[Step]
    recalibrate: bool = True


@dataclass
class Options:
    min_r2: float = 0.5
    fit_gain: bool = False
    seed: int = 0
    seq: int = 512
    stream: bool = False
    dry_run: bool = False
    keep_f32: bool = False
    score: bool = True
    cache: Path | None = None
    dtype: torch.dtype = torch.float32
    warnings: list[str] = field(default_factory=list)


CHOICES = {"linear": ("auto", *maps.KINDS), "out_map": ("residual", "inverse", "output"),
           "target": ("function", "residual", "blend")}


def read_plan(path: Path, a: Checkpoint, b: Checkpoint) -> Plan:
    raw = read_json(path)
    sites = raw.get("sites")
    if not isinstance(sites, list) or not sites:
        raise GraftError(f"{path}: lacks the list sites")
    steps = []
    for item in sites:
        if not isinstance(item, dict):
            raise GraftError(f"{path}: a site must be an object")
        values = {}
        for key, allowed in CHOICES.items():
            values[key] = str(item.get(key, allowed[0]))
            if values[key] not in allowed:
                raise GraftError(f"{path}: {key} is one of {', '.join(allowed)}, not "
                                 f"{values[key]!r}")
        blend = item.get("blend", 1.0)
        if not isinstance(blend, (int, float)) or not 0 <= blend <= 1:
            raise GraftError(f"{path}: blend must be in 0..1")
        steps.append(Step(parse_site(item.get("from"), a, True), parse_site(item.get("to"), b,
                                                                            False),
                          values["linear"], values["out_map"], values["target"], float(blend)))
    order = str(raw.get("order", "shallow-first"))
    if order not in ("shallow-first", "deep-first", "listed"):
        raise GraftError(f"{path}: order is shallow-first, deep-first or listed, not {order!r}")
    if order != "listed":
        steps.sort(key=lambda s: s.target.layer, reverse=order == "deep-first")
    return Plan(steps, bool(raw.get("recalibrate", True)))


def auto_plan(a: Checkpoint, b: Checkpoint, corpus: Corpus, o: Options) -> Plan:
    """Feed-forward parts of the layers that alignment pairs, experts by assignment."""
    chosen = choose_rows(corpus)
    layers = [list(a.chosen), list(b.chosen)]
    rows = [collect(open_runner(s, o.stream, o.dtype), corpus, side, chosen,
                    [(i, p) for i in layers[side] for p in ("ffn_resid", "ffn_in_gained")],
                    o.cache)
            for side, s in ((0, a), (1, b))]
    at = [[rows[s][(i, "ffn_resid")] for i in layers[s]] for s in (0, 1)]
    cka, _, _ = alignment(at[0], at[1], chosen.docs, o.seed)
    steps = []
    for i, j in monotone_path(cka):
        la, lb = layers[0][i], layers[1][j]
        x, y = a.layers[la].ffn, b.layers[lb].ffn
        if x.experts and y.experts:
            steps.append(Step(Site(la, "shared:0"), Site(lb, "shared:0")))
            found = match_experts(a, la, b, lb, rows, chosen, corpus, o.seed)
            steps += [Step(Site(la, f"expert:{e}"), Site(lb, f"expert:{f}"))
                      for e, f, *_ in found["pairs"]]
        else:
            source = "mixture" if x.experts else "dense"
            steps.append(Step(Site(la, source), Site(lb, "shared:0" if y.experts else "dense")))
    if not steps:
        raise GraftError("no layers of the two models are alike; write a plan")
    return Plan(steps)


# -- one site ------------------------------------------------------------------------------------


@dataclass
class Rows:
    """Activations of both models at the same positions, f64 [N, ...]."""

    u: Tensor
    ra: Tensor
    y: Tensor
    rb: Tensor
    tokens_a: Tensor
    tokens_b: Tensor
    masks: tuple[np.ndarray, np.ndarray, np.ndarray]  # fit, pick, held out
    after: Tensor | None = None  # donor's stream behind the layer


def output_map(rows: Rows, step: Step, given: Tensor, own: Tensor) -> maps.Map:
    """P [d_b, d_a]: from the streams before both sites, which the graft does not change."""
    fit, pick, _ = rows.masks
    if step.out_map == "output":
        x, y, kinds = given, own, ["ridge"]
    elif step.out_map == "inverse":
        back = RidgePath.of(Moments.of(rows.rb[fit], rows.ra[fit]))
        matrix = torch.linalg.pinv(back.at(1e-10), rtol=1e-6)
        return maps.Map("inverse", matrix, 1e-10, back.condition, back.dof(1e-10), 0.0)
    else:
        x, y = rows.ra, rows.rb
        kinds = list(maps.KINDS) if step.linear == "auto" else [step.linear]
    found = maps.candidates(x[fit], y[fit], x[pick], y[pick], kinds)
    if not found:
        raise GraftError(f"a map of kind {step.linear} needs equal widths")
    return maps.choose(found, lambda m: maps.row_errors(m.matrix, x[pick], y[pick]))


def prior(target: Target, down: Tensor) -> Tensor:
    """Rows of P down where the target's own parts behind it are undone."""
    post = target.layer.norms["post_ffn"]
    if post is not None:
        gain = torch.from_numpy(np.asarray(post.gain())).double()
        return down / torch.where(gain.abs() < 1e-6, 1.0, gain)[:, None]
    if target.latent:
        assert target.layer.ffn.latent is not None
        _, up, norm = target.layer.ffn.latent
        return torch.linalg.pinv(torch.from_numpy(up.read() * norm.gain()).double(),
                                 rtol=1e-6) @ down
    return down


def through_norm(target: Target, out: Tensor) -> Tensor:
    """What reaches the stream."""
    post = target.layer.norms["post_ffn"]
    if post is None:
        return out
    gain = torch.from_numpy(np.asarray(post.gain())).double()
    return out * torch.rsqrt(out.square().mean(dim=1, keepdim=True) + post.eps) * gain


def is_mxfp4(target: Target) -> bool:
    source, slot = target.mlp.gate.owner, target.mlp.gate.owner.slot(target.mlp.gate.name)
    if isinstance(source.source, MkimSource):
        return source.source.is_expert_type(slot.name)
    return source.source.is_packed(slot.name)


def graft(donor: Donor, target: Target, rows: Rows, step: Step, o: Options
          ) -> tuple[solve.Matrices, dict[str, Any], Goal, Tensor]:
    """Matrices for the target, what is to be reported, the goal and what was wanted [N, d]."""
    given = donor(rows.u, rows.tokens_a)
    own = through_norm(target, target.current()(rows.y)) if not target.latent else rows.y
    p = output_map(rows, step, given, own)
    if step.intent == "residual":
        assert rows.after is not None
        given = rows.after - rows.ra
    wanted = given @ p.matrix.T
    if step.intent == "blend":
        if target.latent:
            raise GraftError("blend is not offered for experts behind a latent")
        wanted = (1 - step.blend) * own + step.blend * wanted
    aim = goal(target, rows.y, wanted, rows.tokens_b)
    fit, pick, out = (m[aim.rows] for m in rows.masks)
    if min(fit.sum(), pick.sum(), out.sum()) < 4:
        raise GraftError(f"layer {target.site.layer} {target.site.ffn}: {len(aim.rows)} rows are "
                         "too few; give more text")
    u = rows.u[aim.rows]
    gated = _donor_neurons(donor, target, rows, u[fit])
    kinds = list(maps.KINDS) if step.linear == "auto" else [step.linear]
    found = maps.candidates(aim.y[fit], u[fit], aim.y[pick], u[pick], kinds, aim.weight[fit])
    if not found:
        raise GraftError(f"a map of kind {step.linear} needs equal widths")
    made = {m.kind: _matrices(gated, donor, target, m.matrix, p.matrix, u[fit], aim.y[fit])
            for m in found}

    def errors(m: maps.Map) -> Tensor:
        gap = made[m.kind](aim.y[pick]) - aim.t[pick]
        return gap.square().sum(dim=1) * aim.weight[pick]

    a = maps.choose(found, errors)
    matrices = made[a.kind]
    size = float((aim.t[pick].square().sum(dim=1) * aim.weight[pick]).sum())
    exact = donor.exact and float(errors(a).sum()) <= EXACT**2 * size
    info: dict[str, Any] = {"in_map": a.to_json(), "out_map": p.to_json(), "exact": exact,
                            "rows": int(fit.sum()), "refit_lambda": None}
    info |= _mismatch(a, p, rows, aim, u, out)
    if not exact:
        matrices = _refitted(matrices, aim, (fit, pick), target, info)
    if is_mxfp4(target):
        matrices = _into_mxfp4(matrices, aim, (fit, pick, out), target, info)
    for name, m in (("in_map", a), ("out_map", p)):
        if m.intercept > INTERCEPT_SHARE:
            o.warnings.append(f"layer {target.site.layer}: a constant would explain "
                              f"{100 * m.intercept:.1f} % of what the {name} has to meet")
    return matrices, info, aim, wanted


def _donor_neurons(donor: Donor, target: Target, rows: Rows, u: Tensor) -> Gated:
    gated = donor.gated
    if gated is None:
        gated = mixture_neurons(donor, rows.u, rows.tokens_a, target.inner)
    if len(gated.gate) > target.inner:
        gated = solve.reduced(gated, u, target.inner)
    return gated


def _matrices(gated: Gated, donor: Donor, target: Target, a: Tensor, p: Tensor, u: Tensor,
              y: Tensor) -> solve.Matrices:
    m = solve.compose(gated, a, p, activation(target.act, target.act_params))
    m.down = prior(target, m.down)
    if (donor.act, donor.act_params) != (target.act, target.act_params):
        m = solve.bridge(m, gated, u, y)
    return m.widened(target.inner)


def _mismatch(a: maps.Map, p: maps.Map, rows: Rows, aim: Goal, u: Tensor,
              out: np.ndarray) -> dict[str, float]:
    """What the target's weights cannot express: the donor's own norm; and whether the maps of
    the streams undo each other."""
    mapped = aim.y[out] @ a.matrix.T
    over = mapped * torch.rsqrt(mapped.square().mean(dim=1, keepdim=True) + 1e-12)
    back = RidgePath.of(Moments.of(rows.rb[rows.masks[0]], rows.ra[rows.masks[0]])).at(1e-10)
    there = rows.rb[rows.masks[2]] @ back.T @ p.matrix.T

    def relative(x: Tensor, want: Tensor) -> float:
        return float(((x - want).square().sum() / want.square().sum().clamp_min(1e-300)).sqrt())

    return {"input_error": relative(mapped, u[out]), "norm_mismatch": relative(mapped, over),
            "round_trip_error": relative(there, rows.rb[rows.masks[2]])}


def _refitted(m: solve.Matrices, aim: Goal, masks: Sequence[np.ndarray], target: Target,
              info: dict[str, Any]) -> solve.Matrices:
    fit, pick = masks
    need = ROWS_PER_NEURON * target.inner
    if fit.sum() < need:
        raise GraftError(
            f"layer {target.site.layer} {target.site.ffn}: fitting {target.inner} inner neurons "
            f"needs {need} rows, there are {int(fit.sum())}; give about "
            f"{round(need / max(int(fit.sum()), 1), 1)} times the text and --tokens")
    found = solve.refit_down(m, aim.y[fit], aim.t[fit], aim.weight[fit], aim.y[pick], aim.t[pick],
                             aim.weight[pick])
    new = solve.Matrices(m.gate, m.up, found.down, m.act)
    info["refit_lambda"] = found.ridge
    info["r2_composed"] = solve.r_squared(m(aim.y[pick]), aim.t[pick], aim.weight[pick])
    info["r2_refitted"] = solve.r_squared(new(aim.y[pick]), aim.t[pick], aim.weight[pick])
    return new if info["r2_refitted"] >= info["r2_composed"] else m


def _into_mxfp4(m: solve.Matrices, aim: Goal, masks: Sequence[np.ndarray], target: Target,
                info: dict[str, Any]) -> solve.Matrices:
    """Gate and up first, then down refitted to what is left of them, then down with its errors
    passed on."""
    fit, pick, out = masks
    info["r2_before_mxfp4"] = solve.r_squared(m(aim.y[out]), aim.t[out], aim.weight[out])
    q = solve.Matrices(solve.quantised(m.gate), solve.quantised(m.up), m.down, m.act)
    if fit.sum() >= ROWS_PER_NEURON * target.inner:
        q.down = solve.refit_down(q, aim.y[fit], aim.t[fit], aim.weight[fit], aim.y[pick],
                                  aim.t[pick], aim.weight[pick]).down
    z = q.inner(aim.y[fit])
    gram = z.T @ (z * aim.weight[fit][:, None])
    plain, passed = solve.quantised(q.down), solve.quantised_with_errors(q.down, gram)
    errors = [float((((q.inner(aim.y[pick]) @ d.T) - aim.t[pick]).square().sum(dim=1)
                     * aim.weight[pick]).sum()) for d in (plain, passed)]
    q.down = passed if errors[1] < errors[0] else plain
    info["r2_after_mxfp4"] = solve.r_squared(q(aim.y[out]), aim.t[out], aim.weight[out])
    return q


def fit_post_gain(target: Target, out: Tensor, wanted: Tensor, per_dimension: bool) -> None:
    """Gains of the norm behind by least squares: one factor, or one per dimension."""
    post = target.layer.norms["post_ffn"]
    if post is None:
        return
    real = through_norm(target, out)
    if per_dimension:
        c = (real * wanted).sum(dim=0) / real.square().sum(dim=0).clamp_min(1e-300)
    else:
        c = (real * wanted).sum() / real.square().sum().clamp_min(1e-300)
    post.set_gain((torch.from_numpy(np.asarray(post.gain())).double() * c).float().numpy())


# -- the whole -----------------------------------------------------------------------------------


def _rows(step: Step, sides: Sequence[Store], corpus: Corpus, chosen: Chosen) -> Rows:
    def get(side: int, layer: int, point: str) -> Tensor:
        return torch.from_numpy(np.asarray(sides[side][(layer, point)])).double()

    la, lb = step.donor.layer, step.target.layer
    after = get(0, la, "resid_out") if step.intent == "residual" else None
    return Rows(get(0, la, "ffn_in"), get(0, la, "ffn_resid"), get(1, lb, "ffn_in"),
                get(1, lb, "ffn_resid"), row_tokens(corpus, 0, chosen),
                row_tokens(corpus, 1, chosen), splits(chosen.docs, corpus.held_out), after)


def refresh(runner: Runner, layer: int) -> None:
    """Takes staged changes of a layer into the running model."""
    if not runner.stream:
        runner._unload(runner.layers[layer])
        runner._load(runner.layers[layer])


def transfer(a: Checkpoint, b: Checkpoint, corpus: Corpus, plan: Plan, o: Options
             ) -> dict[str, Any]:
    """Stages the grafts in `b`; the caller writes it.  Sites below the gate stay untouched."""
    for s in plan.steps:
        if s.intent == "residual" and a.cfg.residual != "plain":
            raise GraftError("target residual needs a donor with plain residuals; use function")
    chosen = choose_rows(corpus)
    held = [t for t, h in zip(corpus.texts, corpus.held_out, strict=True) if h]
    points = {(s.donor.layer, p) for s in plan.steps for p in POINTS}
    points |= {(s.donor.layer, "resid_out") for s in plan.steps if s.intent == "residual"}
    first = open_runner(a, o.stream, o.dtype)
    donor_rows = collect(first, corpus, 0, chosen, sorted(points), o.cache)
    scores = {}
    if o.score and held:
        scores["donor"] = score_documents(first, corpus.codecs[0], held, o.seq)
    del first
    runner = open_runner(b, o.stream, o.dtype)
    if o.score and held:
        scores["target"] = score_documents(runner, corpus.codecs[1], held, o.seq)
    sites, before = [], None
    for step in progress(plan.steps, "grafting"):
        if plan.recalibrate or before is None:
            layers = [step] if plan.recalibrate else plan.steps
            before = collect(runner, corpus, 1, chosen, sorted({
                (s.target.layer, p) for s in layers for p in POINTS}))
        rows = _rows(step, (donor_rows, before), corpus, chosen)
        sites.append(_apply(a, b, step, rows, o))
        refresh(runner, step.target.layer)
    results: dict[str, Any] = {"rows": chosen.rows, "shared_positions": chosen.share,
                               "sites": sites,
                               "grafted": sum(s["grafted"] for s in sites)}
    if scores:
        scores["graft"] = score_documents(runner, corpus.codecs[1], held, o.seq)
        results |= _compare(scores, corpus, o.seed)
    return results


def _apply(a: Checkpoint, b: Checkpoint, step: Step, rows: Rows, o: Options) -> dict[str, Any]:
    donor, target = open_donor(a, step.donor), open_target(b, step.target)
    old = target.current()
    matrices, info, aim, wanted = graft(donor, target, rows, step, o)
    fit, out = rows.masks[0][aim.rows], rows.masks[2][aim.rows]
    post = target.layer.norms["post_ffn"]
    if post is None:
        want, weight = aim.t[out], aim.weight[out]
        got = matrices(aim.y[out])
        was = old(aim.y[out])
    else:
        want, weight = wanted[out], torch.ones(int(out.sum()), dtype=torch.float64)
        was = through_norm(target, old(aim.y[out]))
        kept = post.gain()
        fit_post_gain(target, matrices(aim.y[fit]), wanted[fit], o.fit_gain)
        got = through_norm(target, matrices(aim.y[out]))
        size = want.square().mean(dim=1, keepdim=True).sqrt()
        fixed = want / size.clamp_min(1e-30) * size.mean()
        info["lost_to_fixed_size"] = 1 - solve.r_squared(fixed, want)
    after = solve.fit_facts(got, want, weight)
    grafted = after["r2"] >= o.min_r2
    if grafted:
        o.warnings += target.set(matrices.gate, matrices.up, matrices.down)
    elif post is not None:
        post.set_gain(kept)
    return {"from": step.donor.to_json(), "to": step.target.to_json(), "grafted": grafted,
            "target": step.intent, **info,
            "r2_zero": solve.r_squared(torch.zeros_like(want), want, weight),
            "r2_before": solve.r_squared(was, want, weight), "after": after}


def _compare(scores: dict[str, Any], corpus: Corpus, seed: int) -> dict[str, Any]:
    out: dict[str, Any] = {"bits_per_byte": {}}
    for name, found in scores.items():
        total = sum(d.nll for d in found) / np.log(2) / max(1, sum(d.bytes for d in found))
        out["bits_per_byte"][name] = total
    for name, pair in (("graft_against_target", ("target", "graft")),
                       ("graft_against_donor", ("donor", "graft"))):
        x, y, _ = match(scores[pair[0]], scores[pair[1]])
        if x:
            out[name] = compare_documents(x, y, seed=seed)
    return out


def transfer_lines(r: dict[str, Any]) -> list[str]:
    """report.md."""
    lines = ["# transfer", ""]
    if "graft_against_target" in r:
        lines += [f"Graft against target: {r['graft_against_target']['bits_per_byte']['headline']}",
                  ""]
    if "bits_per_byte" in r:
        lines += table(("held-out documents", "bits per byte"), list(r["bits_per_byte"].items()))
        lines += [""]
    lines += [f"{r['rows']} rows at shared positions. R2 on held-out documents.", ""]
    return lines + table(
        ("from", "to", "R2 zero", "before", "after", "in map", "lambda", "condition", "exact",
         "grafted"),
        [(f"{s['from']['layer']} {s['from']['ffn']}", f"{s['to']['layer']} {s['to']['ffn']}",
          s["r2_zero"], s["r2_before"], s["after"]["r2"], s["in_map"]["kind"],
          s["in_map"]["lambda"], s["in_map"]["condition"], s["exact"], s["grafted"])
         for s in r["sites"]])
