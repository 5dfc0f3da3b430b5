"""Load balance of the router without an auxiliary loss.

After each step the selection bias of an expert that was called less than the mean rises by a
fixed amount, that of the others falls.  The bias is exported with the model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nano.models import Model

DEAD_SHARE = 0.01  # of the mean load


@torch.no_grad()
def update_bias(bias: Tensor, load: Tensor, rate: float) -> None:
    bias += rate * torch.sign(load.mean() - load)


@torch.no_grad()
def balance_step(model: Model, totals: dict[int, Tensor], rate: float) -> None:
    """Updates the bias of every MoE layer from its load counter, adds the counter to `totals`."""
    for index, moe in model.moe_layers():
        if moe.selection_bias is not None:  # a layer routed by token id has none
            update_bias(moe.selection_bias, moe.load, rate)
        totals[index] = totals.get(index, torch.zeros_like(moe.load)) + moe.load
        moe.load.zero_()


def load_statistics(load: Tensor) -> dict[str, Any]:
    """Spread of expert calls: 1.0 is even for all but `top_share` and `dead`."""
    load = load.double()
    mean = float(load.mean())
    if mean == 0:
        return {"calls": 0}
    share = load / load.sum()
    entropy = float(-(share * share.clamp_min(1e-300).log()).sum())
    even = float(torch.log(torch.tensor(float(len(load)))))
    return {
        "calls": int(load.sum()),
        "max_over_mean": float(load.max()) / mean,
        "min_over_mean": float(load.min()) / mean,
        "entropy": entropy / even if even > 0 else 1.0,
        "top_share": float(share.max()),
        "dead": int((load < DEAD_SHARE * mean).sum()),
    }
