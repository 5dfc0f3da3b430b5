"""A small random model for tests of files and healing."""

from __future__ import annotations

from pathlib import Path

import torch

from nano import checkpoint
from nano.config import K3Config
from nano.model import K3Model, initialise

GOLDEN = Path(__file__).parents[2] / "tests" / "data" / "golden" / "k3"

# All widths differ from one another, so that a swapped axis cannot go unnoticed.
TINY = {
    "n_layers": 5, "hidden": 96, "vocab": 280, "n_experts": 6, "top_k": 2, "n_shared": 1,
    "kda_heads": 2, "kda_dim": 32, "kda_fa_rank": 24, "mla_heads": 2, "mla_q_lora": 40,
    "mla_kv_lora": 48, "mla_nope": 64, "mla_rope": 16, "mla_v": 32, "routed_hidden": 32,
    "moe_inter": 64, "shared_inter": 56, "dense_inter": 128, "attn_res_block": 3,
}


def tiny_model(seed: int = 0, **changes: object) -> K3Model:
    model = K3Model(K3Config.from_json({**TINY, **changes}))
    generator = torch.Generator().manual_seed(seed)
    initialise(model, generator)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith(("res_proj.weight", "dt_bias")):
                p.normal_(0, 0.3, generator=generator)
        for _, moe in model.moe_layers():
            moe.gate.e_score_correction_bias.normal_(0, 0.05, generator=generator)
    return model


def save_checkpoint(run: Path, model: K3Model, ema: bool = False) -> Path:
    state = dict(model.state_dict())
    averaged = {k: t * 0.5 for k, t in state.items()} if ema else None
    return checkpoint.save(run, 3, model.config, {"step": 3, "train": {"seed": 9}}, state, {},
                           averaged)
