"""Held-out loss and router statistics of a model over a token stream."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from nano.balance import load_statistics
from nano.model import IGNORE
from nano.models import Model
from nano.sampler import sequential_batches
from nano.stream import TokenStream

BUCKETS = (16, 64, 256)  # first position of each bucket but the first


@dataclass
class HeldOut:
    nats: float = 0.0
    targets: int = 0
    text_bytes: int = 0
    buckets: list[list[float]] = field(
        default_factory=lambda: [[0.0, 0.0] for _ in range(len(BUCKETS) + 1)]
    )
    router: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Targets are the text's tokens and eos; bos is never predicted."""
        per_token = self.nats / self.targets
        edges = [0, *BUCKETS]
        names = [f"{a}-{b - 1}" for a, b in itertools.pairwise(edges)] + [f"{edges[-1]}+"]
        return {
            "nats_per_token": per_token, "perplexity_per_token": math.exp(per_token),
            "bits_per_byte": self.nats / math.log(2) / self.text_bytes,
            "perplexity_per_byte": math.exp(self.nats / self.text_bytes),
            "targets": self.targets, "bytes": self.text_bytes,
            "nats_by_position": {
                n: b[0] / b[1] for n, b in zip(names, self.buckets, strict=True) if b[1]
            },
            "router": self.router,
        }


@torch.no_grad()
def measure(model: Model, stream: TokenStream, batch: int = 8, seq: int = 512) -> HeldOut:
    """Every document from its beginning; documents longer than `seq` continue without context."""
    out = HeldOut(text_bytes=int(stream.meta["bytes"]))
    was_training = model.training
    model.train()  # counts expert calls; there is no dropout in the options
    pad = model.config.specials.get("pad", 0)
    for _, moe in model.moe_layers():
        moe.load.zero_()
    for b in sequential_batches(stream, batch, seq, pad):
        logits = model(b.tokens, b.docs)
        nats = F.cross_entropy(
            logits.flatten(0, 1), b.targets.flatten(), ignore_index=IGNORE, reduction="none"
        ).view_as(b.targets)
        assert b.docs is not None
        position = _positions(b.docs)
        known = b.targets != IGNORE
        which = torch.bucketize(position, torch.tensor(BUCKETS), right=True)
        for i, bucket in enumerate(out.buckets):
            here = known & (which == i)
            bucket[0] += float(nats[here].double().sum())
            bucket[1] += int(here.sum())
    model.train(was_training)
    out.nats = sum(b[0] for b in out.buckets)
    out.targets = int(sum(b[1] for b in out.buckets))
    for index, moe in model.moe_layers():
        out.router[str(index)] = load_statistics(moe.load)
        moe.load.zero_()
    return out


def _positions(docs: torch.Tensor) -> torch.Tensor:
    """Token index inside its piece of a document, from document numbers [B, T]."""
    index = torch.arange(docs.shape[1]).expand_as(docs)
    starts = torch.cat([torch.ones_like(docs[:, :1], dtype=torch.bool),
                        docs[:, 1:] != docs[:, :-1]], dim=1)
    first = torch.where(starts, index, torch.zeros_like(index)).cummax(dim=1).values
    return index - first
