"""Seam adapter: a low-rank correction of the hidden vector between two layers.

A slice joins layers that were not neighbours; the layer behind the seam then sees a vector it was
not trained on.  On the partial sum h that leaves layer N:  h' = h + B(A h), A [r, d] Kaiming
uniform, B [d, r] zero.  It acts before the next layer may close h into a residual block.

The correction cannot be expressed in the weights: h also passes through into later layers.
Folding it into the direct readers of layer N+1, W (I + B A), is exact only while B is zero and
otherwise an approximation that must be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nano.config import K3Config
from nano.model import K3Model

A, B = "seam.A", "seam.B"
# Projections of a layer that read its normed input directly.
KDA_READERS = ("q_proj", "k_proj", "v_proj", "f_a_proj", "b_proj", "g_proj")
MLA_READERS = ("q_a_proj", "kv_a_proj_with_mqa", "g_proj")


class SeamError(ValueError):
    """A seam adapter that does not fit the model or cannot be folded."""


@dataclass(frozen=True)
class SeamSpec:
    rank: int
    after: int  # 0-based layer; the adapter acts on what leaves it

    def check(self, config: K3Config) -> None:
        if self.rank < 1:
            raise SeamError(f"seam rank {self.rank} must be at least 1")
        if not 0 <= self.after <= config.n_layers - 2:
            raise SeamError(
                f"a seam after layer {self.after} joins nothing: use 0..{config.n_layers - 2}"
            )

    def to_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "after": self.after}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SeamSpec:
        try:
            return cls(int(data["rank"]), int(data["after"]))
        except (KeyError, TypeError, ValueError) as err:
            raise SeamError(f"not a seam description: {err!r}") from err


class Seam(nn.Module):
    """Registered as a forward hook of layer N, so that checkpointing recomputes it too."""

    def __init__(self, spec: SeamSpec, hidden: int, device: torch.device, seed: int) -> None:
        super().__init__()
        a = torch.empty(spec.rank, hidden)
        bound = 1 / math.sqrt(hidden)
        a.uniform_(-bound, bound, generator=torch.Generator().manual_seed(seed))
        self.a = nn.Parameter(a.to(device))
        self.b = nn.Parameter(torch.zeros(hidden, spec.rank, device=device))

    def forward(self, h: Tensor) -> Tensor:
        return h + F.linear(F.linear(h, self.a), self.b)


def attach(
    model: K3Model, spec: SeamSpec, device: torch.device, seed: int
) -> dict[str, nn.Parameter]:
    """Puts the adapter behind layer `spec.after`; returns its parameters by name."""
    spec.check(model.config)
    seam = Seam(spec, model.config.hidden, device, seed)
    model.layers[spec.after].register_forward_hook(lambda _module, _inputs, out: seam(out))
    return {A: seam.a, B: seam.b}


def readers(config: K3Config, spec: SeamSpec) -> Iterator[str]:
    """Names of the tensors that a fold multiplies."""
    layer = spec.after + 1
    for name in MLA_READERS if config.is_mla(layer) else KDA_READERS:
        yield f"layers.{layer}.self_attn.{name}.weight"


def is_untrained(b: Tensor) -> bool:
    return not bool(b.any())


def fold(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """W (I + B A) in f64; W itself when B is zero."""
    w = weight.double()
    return w + (w @ b.double()) @ a.double()
