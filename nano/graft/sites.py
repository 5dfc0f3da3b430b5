"""Donor and target of a graft as functions on inputs without gains.

A site is a layer and a part of its feed-forward layer: `dense`, `expert:N`, `shared:N` or
`mixture` (a donor only: everything the layer's experts give together).
Shapes: N rows, d width of the stream, m width of what the experts read, I inner width.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nano.graft.checkpoint import Checkpoint, GatedMLP, Layer
from nano.graft.errors import GraftError
from nano.graft.functions import FfnModule, Gated, activation

SMALL_GAIN = 1e-4  # of the median: below it a column cannot carry a function
_SITE = re.compile(r"dense|mixture|expert:(\d+)|shared:(\d+)")


@dataclass(frozen=True)
class Site:
    layer: int
    ffn: str

    def to_json(self) -> dict[str, int | str]:
        return {"layer": self.layer, "ffn": self.ffn}


def parse_site(raw: object, source: Checkpoint, donor: bool) -> Site:
    """{"layer": n, "ffn": part}, checked against the model."""
    if not isinstance(raw, dict):
        raise GraftError(f"a site is an object with layer and ffn, not {raw!r}")
    layer, ffn = raw.get("layer"), str(raw.get("ffn", "dense"))
    if type(layer) is not int or not 0 <= layer < source.cfg.n_layers:
        raise GraftError(f"{source.path}: there is no layer {layer!r}")
    match = _SITE.fullmatch(ffn)
    view = source.layers[layer].ffn
    ok = match is not None and (ffn == "dense") == (view.kind == "dense")
    if ok and match is not None and match[1] is not None:
        ok = int(match[1]) < len(view.experts)
    if ok and match is not None and match[2] is not None:
        ok = int(match[2]) < len(view.shared)
    if not ok or (ffn == "mixture" and not donor):
        raise GraftError(f"{source.path}: layer {layer} ({view.kind}) has no part {ffn!r}")
    return Site(layer, ffn)


def mlp_at(layer: Layer, ffn: str) -> GatedMLP:
    view = layer.ffn
    if ffn == "dense":
        assert view.dense is not None
        return view.dense
    kind, number = ffn.split(":")
    return (view.experts if kind == "expert" else view.shared)[int(number)]


def gains(layer: Layer) -> Tensor:
    norm = layer.norms["pre_ffn"]
    assert norm is not None
    return torch.from_numpy(np.asarray(norm.gain())).double()


@dataclass
class Donor:
    """`gated`: folded matrices (f64) whose value is the function but for `scale_free` parts."""

    site: Site
    gated: Gated | None  # None: a mixture, which no single gated function equals
    exact: bool  # the matrices alone are the function
    act: str
    act_params: tuple[float, ...]
    module: FfnModule
    layer: Layer

    def __call__(self, u: Tensor, tokens: Tensor | None = None) -> Tensor:
        """[N, d] f64 for inputs over their rms, u [N, d]."""
        x = (u.double() * gains(self.layer)).float()
        view, ffn = self.layer.ffn, self.site.ffn
        if ffn == "mixture":
            assert self.gated is None
            args = () if tokens is None else (tokens,)
            out = self.module(x, *args).double()
        else:
            assert self.gated is not None
            out = self.gated(u.double())
            if ffn.startswith("shared") and view.shared_gate is not None:
                gate = torch.from_numpy(view.shared_gate.read()).double()
                out = out * torch.sigmoid(F.linear(x.double(), gate))
        norm = self.layer.norms["post_ffn"]
        if norm is not None:
            gain = torch.from_numpy(np.asarray(norm.gain())).double()
            out = out * torch.rsqrt(out.square().mean(dim=-1, keepdim=True) + norm.eps) * gain
        return out


def open_donor(source: Checkpoint, site: Site) -> Donor:
    layer = source.layers[site.layer]
    view = layer.ffn
    module = FfnModule(view)
    act = activation(view.act, view.act_params)
    if site.ffn == "mixture":
        return Donor(site, None, False, view.act, view.act_params, module, layer)
    gated = Gated.of(mlp_at(layer, site.ffn), act, torch.float64)
    gain = gains(layer)
    if site.ffn.startswith("expert") and view.latent is not None:
        down, up, norm = (view.latent[0].read(), view.latent[1].read(), view.latent[2].gain())
        into = torch.from_numpy(down).double() * gain
        gated = Gated(gated.gate @ into, gated.up @ into,
                      torch.from_numpy(up * norm).double() @ gated.down, act)
    else:
        gated = Gated(gated.gate * gain, gated.up * gain, gated.down, act)
    exact = layer.norms["post_ffn"] is None and not (
        site.ffn.startswith("shared") and view.shared_gate is not None)
    return Donor(site, gated, exact, view.act, view.act_params, module, layer)


def mixture_neurons(donor: Donor, u: Tensor, tokens: Tensor | None, count: int) -> Gated:
    """Neurons of the shared expert and of the routed ones with the most mass, until there are
    twice `count`; columns of down carry the mean weight of their expert."""
    module, view = donor.module, donor.layer.ffn
    gain = gains(donor.layer)
    x = (u.double() * gain).float()
    ids, weights, _ = module.route(x, tokens)
    mass = torch.zeros(module.experts).index_add(0, ids.reshape(-1), weights.reshape(-1))
    into, out = gain, None
    parts = []
    if view.latent is not None:
        down, up, norm = (view.latent[0].read(), view.latent[1].read(), view.latent[2].gain())
        into, out = torch.from_numpy(down).double() * gain, torch.from_numpy(up * norm).double()
    for mlp in view.shared:
        g = Gated.of(mlp, donor.module.act, torch.float64)
        parts.append((g.gate * gain, g.up * gain, g.down))
    for e in mass.argsort(descending=True).tolist():
        if sum(len(p[0]) for p in parts) >= 2 * count:
            break
        g = Gated.of(view.experts[e], donor.module.act, torch.float64)
        down = (g.down if out is None else out @ g.down) * float(mass[e] / len(u))
        parts.append((g.gate @ into if out is not None else g.gate * into,
                      g.up @ into if out is not None else g.up * into, down))
    return Gated(torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]),
                 torch.cat([p[2] for p in parts], dim=1), donor.module.act)


@dataclass
class Target:
    """Where the function goes: its inputs y, what output it must give, how matrices are set."""

    site: Site
    layer: Layer
    mlp: GatedMLP
    inner: int
    act: str
    act_params: tuple[float, ...]
    latent: bool

    def set(self, gate: Tensor, up: Tensor, down: Tensor) -> list[str]:
        """Writes matrices for gain-free inputs; returns warnings."""
        warnings = []
        if not self.latent:
            gain = gains(self.layer)
            dead = gain.abs() < SMALL_GAIN * gain.abs().median()
            if dead.any():
                warnings.append(f"layer {self.site.layer}: {int(dead.sum())} columns have almost "
                                "no gain and carry nothing")
            inverse = torch.where(dead, 0.0, 1 / torch.where(dead, 1.0, gain))
            gate, up = gate * inverse, up * inverse
        self.mlp.set(gate.float().numpy(), up.float().numpy(), down.float().numpy())
        return warnings

    def current(self) -> Gated:
        """The matrices as they are, folded."""
        g = Gated.of(self.mlp, activation(self.act, self.act_params), torch.float64)
        if self.latent:
            return g
        gain = gains(self.layer)
        return Gated(g.gate * gain, g.up * gain, g.down, g.act)


def open_target(source: Checkpoint, site: Site) -> Target:
    layer = source.layers[site.layer]
    view, mlp = layer.ffn, mlp_at(layer, site.ffn)
    return Target(site, layer, mlp, mlp.inner, view.act, view.act_params,
                  view.latent is not None and site.ffn.startswith("expert"))


@dataclass
class Goal:
    """What a target's matrices have to give: outputs t for inputs y, rows that count, weights."""

    y: Tensor  # [n, m]
    t: Tensor  # [n, out]
    weight: Tensor  # [n]
    rows: np.ndarray  # which of the N rows these are


def goal(target: Target, y: Tensor, wanted: Tensor, tokens: Tensor | None) -> Goal:
    """`y` [N, d] gain-free inputs, `wanted` [N, d] what the part shall add to the stream."""
    view, n = target.layer.ffn, len(y)
    everything = np.arange(n)
    post = target.layer.norms["post_ffn"]
    if post is not None:
        # The norm behind fixes the size of every row: only the direction can be met.
        gain = torch.from_numpy(np.asarray(post.gain())).double()
        safe = torch.where(gain.abs() < 1e-6, 1.0, gain)
        bare = wanted / safe
        size = bare.square().mean(dim=1).sqrt().clamp_min(1e-30)
        return Goal(y, bare / size[:, None], size.square() / size.square().mean(), everything)
    if not target.site.ffn.startswith("expert"):
        if target.site.ffn.startswith("shared") and view.shared_gate is not None:
            x = y * gains(target.layer)
            gate = torch.sigmoid(F.linear(x, torch.from_numpy(view.shared_gate.read()).double()))
            return Goal(y, wanted / gate, gate[:, 0].square(), everything)
        return Goal(y, wanted, torch.ones(n, dtype=torch.float64), everything)
    return _expert_goal(target, y, wanted, tokens)


def _expert_goal(target: Target, y: Tensor, wanted: Tensor, tokens: Tensor | None) -> Goal:
    """Only rows that are sent to the expert count, by the square of their weight.

    In a latent layer the mixture's rms is taken as it is now: W_up diag(gain) (z / s) shall be
    what is wanted, so the expert gives (s pinv(W_up diag(gain)) wanted - the others) / w.
    """
    module = FfnModule(target.layer.ffn, torch.float64)
    e = int(target.site.ffn.split(":")[1])
    x = y * gains(target.layer)
    ids, weights, _ = module.route(x, tokens)
    rows, place = (ids == e).nonzero(as_tuple=True)
    if not len(rows):
        raise GraftError(f"no token is sent to expert {e} of layer {target.site.layer}; give more "
                         "text")
    w = weights[rows, place]
    if module.latent is None:
        return Goal(y[rows], wanted[rows], w.square(), rows.numpy())
    down, up, gain, eps = module.latent
    h = F.linear(x, down)
    module.record = True
    module.mixture(x, tokens)
    assert module.seen is not None
    z = module.seen.z[rows]
    others = z - w[:, None] * module.expert(e, h[rows])
    s = (z.square().mean(dim=1, keepdim=True) + eps).sqrt()
    inverse = torch.linalg.pinv(up * gain, rtol=1e-6)
    t = (s * (wanted[rows] @ inverse.T) - others) / w[:, None]
    return Goal(h[rows], t, w.square(), rows.numpy())
