"""AdamW and Muon over named parameters, with states that a checkpoint stores by name.

Muon takes the hidden matrices: its update is the momentum with all singular values pushed towards
1 (Newton-Schulz iteration).  AdamW takes everything else: embedding, head, router, convolutions,
gates, norms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


@dataclass
class OptimConfig:
    kind: str = "adamw"  # "adamw": everything; "muon": Muon for hidden matrices
    lr: float = 3e-4  # AdamW part
    muon_lr: float = 0.02
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    momentum: float = 0.95
    bf16: bool = False  # run Muon's iteration in bf16; it only needs a rough result


# Matrices outside the hidden stack: rows are looked up or compared, not mixed.
_OUTSIDE = (
    "embed_tokens", "lm_head", "conv1d", ".gate.weight",
    "embed.weight", "head.weight", "hc_", ".ape", "weights_proj",  # DeepSeek-V4
)
_NOT_HIDDEN = (*_OUTSIDE, "b_proj")
_NO_DECAY = _OUTSIDE


def is_hidden_matrix(name: str, p: Tensor) -> bool:
    if name.endswith("f_b_proj.weight"):
        return True
    return p.ndim >= 2 and not any(part in name for part in _NOT_HIDDEN)


def orthogonalise(g: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Nearest semi-orthogonal matrices, roughly: [n, r, c] -> [n, r, c], computed in `dtype`.

    X <- aX + (bM + cM^2)X with M = X X^T, on the wide orientation, from X / |X|_F.
    """
    a, b, c = NEWTON_SCHULZ
    tall = g.shape[1] > g.shape[2]
    x = g.transpose(1, 2) if tall else g
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
    for _ in range(NEWTON_SCHULZ_STEPS):
        m = torch.bmm(x, x.transpose(1, 2))
        poly = torch.baddbmm(m, m, m, beta=b, alpha=c)
        x = torch.baddbmm(x, poly, x, beta=a)
    return (x.transpose(1, 2) if tall else x).to(g.dtype)


class Optimizer:
    """One step function over two parameter sets; learning rates are scaled by the schedule."""

    def __init__(self, named: Iterable[tuple[str, Tensor]], config: OptimConfig) -> None:
        if config.kind not in ("adamw", "muon"):
            raise ValueError(f"optimizer {config.kind!r}: must be adamw or muon")
        self.config = config
        self.adam: dict[str, Tensor] = {}
        self.muon: dict[str, Tensor] = {}
        for name, p in named:
            to_muon = config.kind == "muon" and is_hidden_matrix(name, p)
            (self.muon if to_muon else self.adam)[name] = p
        self.first = {n: torch.zeros_like(p) for n, p in self.adam.items()}
        self.second = {n: torch.zeros_like(p) for n, p in self.adam.items()}
        self.moment = {n: torch.zeros_like(p) for n, p in self.muon.items()}
        self.updates = 0

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One update at `scale` times the configured learning rates."""
        self.updates += 1
        self._step_adam(scale * self.config.lr)
        if self.muon:
            self._step_muon(scale * self.config.muon_lr)

    def _step_adam(self, lr: float) -> None:
        c = self.config
        names = list(self.adam)
        grads = [self._grad(self.adam[n]) for n in names]
        first, second = [self.first[n] for n in names], [self.second[n] for n in names]
        params = [self.adam[n] for n in names]
        torch._foreach_lerp_(first, grads, 1 - c.beta1)
        torch._foreach_mul_(second, c.beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - c.beta2)
        decayed = [p for n, p in self.adam.items() if self._decays(n, p)]
        if decayed:
            torch._foreach_mul_(decayed, 1 - lr * c.weight_decay)
        unbias2 = 1 - c.beta2**self.updates
        scale = torch._foreach_div(second, unbias2)
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, c.eps)
        step = -lr / (1 - c.beta1**self.updates)
        torch._foreach_addcdiv_(params, first, scale, step)

    def _step_muon(self, lr: float) -> None:
        c = self.config
        dtype = torch.bfloat16 if c.bf16 else torch.float32
        groups: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
        for name, p in self.muon.items():
            groups[(p.shape[-2], p.shape[-1])].append(name)
        for (rows, cols), names in groups.items():
            looks = []
            for name in names:
                grad, buffer = self._grad(self.muon[name]), self.moment[name]
                buffer.lerp_(grad, 1 - c.momentum)
                looks.append(grad.lerp(buffer, c.momentum).view(-1, rows, cols))
            update = orthogonalise(torch.cat(looks), dtype)
            size = lr * max(1.0, rows / cols) ** 0.5
            parts = update.split([look.shape[0] for look in looks])
            for name, part in zip(names, parts, strict=True):
                p = self.muon[name]
                p.mul_(1 - lr * c.weight_decay).add_(part.reshape(p.shape), alpha=-size)

    @staticmethod
    def _decays(name: str, p: Tensor) -> bool:
        return p.ndim >= 2 and not any(part in name for part in _NO_DECAY)

    @staticmethod
    def _grad(p: Tensor) -> Tensor:
        return torch.zeros_like(p) if p.grad is None else p.grad

    # -- checkpoint --------------------------------------------------------------------------

    def state_tensors(self) -> dict[str, Tensor]:
        out = {f"first.{n}": t for n, t in self.first.items()}
        out |= {f"second.{n}": t for n, t in self.second.items()}
        out |= {f"moment.{n}": t for n, t in self.moment.items()}
        return out

    def load_tensors(self, tensors: dict[str, Tensor], updates: int) -> None:
        mine = self.state_tensors()
        if set(mine) != set(tensors):
            odd = sorted(set(mine) ^ set(tensors))[:3]
            raise ValueError(f"optimizer state does not fit the model: {', '.join(odd)}")
        for name, t in mine.items():
            if t.shape != tensors[name].shape:
                raise ValueError(f"optimizer state {name}: shape differs")
            t.copy_(tensors[name])
        self.updates = updates


@torch.no_grad()
def clip_gradients(params: list[Tensor], limit: float) -> float:
    """Scales gradients so that their global norm is at most `limit`; returns the norm before."""
    grads = [p.grad for p in params if p.grad is not None]
    if not grads:
        return 0.0
    norm = float(torch.stack(torch._foreach_norm(grads)).norm())
    if limit > 0 and norm > limit:
        torch._foreach_mul_(grads, limit / (norm + 1e-6))
    return norm


class Ema:
    """Moving average of the weights; early steps average over a short past."""

    def __init__(self, named: Iterable[tuple[str, Tensor]], decay: float) -> None:
        self.decay = decay
        self.live = dict(named)
        self.mean = {n: p.detach().clone() for n, p in self.live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.mean.values()), list(self.live.values()), weight)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchanges live and mean weights; call twice to restore."""
        for name, p in self.live.items():
            kept = p.detach().clone()
            p.copy_(self.mean[name])
            self.mean[name].copy_(kept)
