"""Data parallelism: every rank holds the model, gradients and decisions are shared.

Started by torchrun (environment variables RANK, WORLD_SIZE, ...); without it everything here is
the identity.  Expert parameters are stacked, so each parameter has a gradient on every rank and
the reductions always match.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

TIMEOUT = timedelta(minutes=10)


@dataclass
class Group:
    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def sum(self, t: Tensor) -> Tensor:
        """In-place sum over ranks."""
        if self.world > 1:
            dist.all_reduce(t)
        return t

    def sum_gradients(self, params: list[Tensor]) -> None:
        """Sums all gradients in one flat message."""
        if self.world == 1:
            return
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        flat = torch.cat([g.reshape(-1) for g in grads])
        dist.all_reduce(flat)
        for p, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
            p.grad = part.view_as(p)

    def agree(self, value: float) -> float:
        """Rank 0's value on every rank."""
        if self.world == 1:
            return value
        t = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(t, 0)
        return float(t)

    def any(self, flag: bool) -> bool:
        """True on every rank if true on one."""
        return bool(self.sum(torch.tensor([float(flag)])) > 0)

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()

    def assert_same(self, params: list[Tensor]) -> None:
        """Raises if ranks hold different weights."""
        if self.world == 1:
            return
        digest = hashlib.sha256()
        for p in params:
            digest.update(p.detach().cpu().numpy().tobytes())
        mine = float(int.from_bytes(digest.digest()[:6], "big"))
        if self.any(self.agree(mine) != mine):
            raise RuntimeError("ranks hold different weights: same seed and data on all machines?")


def start(device: str = "cpu") -> Group:
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Group()
    dist.init_process_group("nccl" if device == "cuda" else "gloo", timeout=TIMEOUT)
    return Group(dist.get_rank(), dist.get_world_size())


def stop(group: Group) -> None:
    if group.world > 1:
        dist.destroy_process_group()
