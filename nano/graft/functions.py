"""Feed-forward layers computed from the view, for every family.

One module serves as proof that a view is right (its output equals the library's), as the probe of
`utility` and as the thing that ablations change.  Shapes: N tokens, E experts, k per token, m the
experts' input width, I inner width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nano.dsv4.moe import clamped_swiglu, scores
from nano.graft.checkpoint import FFNView, GatedMLP, Matrix
from nano.moe import grouped_experts, situ

Activation = Callable[[Tensor, Tensor], Tensor]


def activation(act: str, params: tuple[float, ...] = ()) -> Activation:
    """Of gate and up pre-activations [..., I]."""
    if act == "swiglu":
        return lambda g, u: F.silu(g) * u
    if act == "situ":
        return lambda g, u: situ(g, u, *params)
    if act == "swiglu_clamp":
        return lambda g, u: clamped_swiglu(g, u, *params)
    if act == "geglu_tanh":
        return lambda g, u: F.gelu(g, approximate="tanh") * u
    raise ValueError(f"unknown activation {act}")


def tensor(matrix: Matrix, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(matrix.read())).to(dtype)


@dataclass
class Gated:
    """down(act(gate x, up x)) with tensors."""

    gate: Tensor
    up: Tensor
    down: Tensor
    act: Activation

    @classmethod
    def of(cls, mlp: GatedMLP, act: Activation, dtype: torch.dtype = torch.float32) -> Gated:
        return cls(*(tensor(m, dtype) for m in (mlp.gate, mlp.up, mlp.down)), act)

    def inner(self, x: Tensor) -> Tensor:
        return self.act(F.linear(x, self.gate), F.linear(x, self.up))

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(self.inner(x), self.down)


@dataclass
class Ablation:
    """What the router's choice becomes, for one expert or several."""

    banned: set[int] = field(default_factory=set)
    reroute: bool = True  # the next best expert enters; else the term is left out
    redirect: dict[int, int] = field(default_factory=dict)  # expert -> the one that stands in


@dataclass
class Seen:
    """What a layer saw in one pass: inputs of the experts [N, m], choice [N, k], mixture."""

    x: Tensor
    h: Tensor
    ids: Tensor
    weights: Tensor
    scores: Tensor
    z: Tensor


class FfnModule(nn.Module):
    """Stands where a model has its feed-forward module; further arguments of the call pass by."""

    def __init__(self, view: FFNView, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.view, self.kind = view, view.kind
        self.act = activation(view.act, view.act_params)
        self.record = self.want_gradient = False
        self.seen: Seen | None = None
        self.ablation: Ablation | None = None
        if view.dense is not None:
            self.dense = Gated.of(view.dense, self.act, dtype)
            return
        assert view.router is not None
        self.router = view.router
        self.gate = tensor(view.router.weight, dtype)
        self.bias = tensor(view.router.bias, dtype) if view.router.bias else None
        self.table = (torch.from_numpy(view.router.table.read().astype(np.int64))
                      if view.router.table else None)
        mlps = [Gated.of(e, self.act, dtype) for e in view.experts]
        self.w13 = torch.stack([torch.cat([m.gate, m.up]) for m in mlps])  # [E, 2I, m]
        self.w2 = torch.stack([m.down for m in mlps])  # [E, m, I]
        self.shared = [Gated.of(s, self.act, dtype) for s in view.shared]
        self.shared_gate = tensor(view.shared_gate, dtype) if view.shared_gate else None
        self.latent: tuple[Tensor, Tensor, Tensor, float] | None = None
        if view.latent:
            down, up, norm = view.latent
            self.latent = (tensor(down, dtype), tensor(up, dtype),
                           torch.from_numpy(norm.gain()).to(dtype), norm.eps)

    @property
    def experts(self) -> int:
        return self.w13.shape[0]

    def forward(self, x: Tensor, *args: Any, **_: Any) -> Tensor:
        if self.kind == "dense":
            return self.dense(x)
        flat = x.reshape(-1, x.shape[-1])
        tokens = args[0].reshape(-1) if self.table is not None else None
        out = self.mixture(flat, tokens)
        for shared in self.shared:
            y = shared(flat)
            if self.shared_gate is not None:
                y = y * torch.sigmoid(F.linear(flat, self.shared_gate))
            out = out + y
        return out.view_as(x)

    def mixture(self, flat: Tensor, tokens: Tensor | None) -> Tensor:
        """What the routed experts add to the output."""
        ids, weights, score = self.route(flat, tokens)
        h = flat if self.latent is None else F.linear(flat, self.latent[0])
        z, _ = grouped_experts(h, ids, weights, self.w13, self.w2, self.act)
        if self.record:
            if self.want_gradient:
                z = z if z.requires_grad else z.requires_grad_()
                z.retain_grad()
            self.seen = Seen(flat.detach(), h.detach(), ids, weights.detach(), score.detach(), z)
        return self.leave(z)

    def leave(self, z: Tensor) -> Tensor:
        """From the mixture to the width of the model."""
        if self.latent is None:
            return z
        _, up, gain, eps = self.latent
        normed = z * torch.rsqrt(z.square().mean(dim=-1, keepdim=True) + eps) * gain
        return F.linear(normed, up)

    def expert(self, e: int, h: Tensor) -> Tensor:
        """Output of one expert for inputs h [n, m]."""
        gate, up = F.linear(h, self.w13[e]).chunk(2, dim=-1)
        return F.linear(self.act(gate, up), self.w2[e])

    # -- routing -----------------------------------------------------------------------------

    def route(self, flat: Tensor, tokens: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Experts [N, k], their weights, and the scores of all [N, E]."""
        logits = F.linear(flat, self.gate)
        kind = self.router.kind
        score = (logits.softmax(dim=-1) if kind == "softmax"
                 else torch.sigmoid(logits) if kind == "sigmoid" else scores(logits))
        a = self.ablation
        if self.table is not None:
            assert tokens is not None
            ids = self.table[tokens]
        else:
            key = score.detach() if self.bias is None else score.detach() + self.bias
            if a is not None and a.reroute and a.banned:
                key = key.clone()
                key[:, sorted(a.banned)] = float("-inf")
            ids = torch.argsort(key, dim=-1, descending=True, stable=True)[:, : self.router.top_k]
        picked = score.gather(1, ids)
        if a is not None and a.banned and a.reroute and self.table is not None:
            picked = picked * self._allowed(ids, a)  # a table has no next best expert
        weights = self.router.scale * picked / (picked.sum(dim=-1, keepdim=True) + 1e-20)
        if a is not None:
            if a.banned and not a.reroute:
                weights = weights * self._allowed(ids, a)
            for old, new in a.redirect.items():
                ids = torch.where(ids == old, torch.full_like(ids, new), ids)
        return ids, weights, score

    def _allowed(self, ids: Tensor, a: Ablation) -> Tensor:
        banned = torch.tensor(sorted(a.banned))
        return (~torch.isin(ids, banned)).to(self.gate.dtype)
