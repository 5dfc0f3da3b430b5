"""Seeded random models that judge an engine: small, but with every part of the architecture.

Weights are scaled so that the model is well-conditioned: what sublayers write to the streams is
damped by a gain, which keeps one flip of an 8-bit rounding from growing through the layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nano import mxfp4
from nano.dsv4.config import Dsv4Config
from nano.dsv4.model import Dsv4Model
from nano.dsv4.tensors import dsv4_tensors
from nano.mkim import DType
from nano.mkim_writer import MkimWriter, Spec
from nano.tensors import Tensor, stack_of

HC_SCALES = (0.8, 0.6, 1.2)
HEAD_SCALE = 0.7
SPECIALS = {"bos": 0, "end_of_msg": 1}
_A: dict[str, Any] = {
    "hidden": 64, "vocab": 256, "n_heads": 4, "head_dim": 80, "qk_rope_head_dim": 16,
    "q_lora_rank": 32, "o_groups": 2, "o_lora_rank": 16, "sliding_window": 128,
    "index_n_heads": 4, "index_head_dim": 32, "index_topk": 20, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "specials": SPECIALS,
}


@dataclass(frozen=True)
class Recipe:
    """A model family; the seed picks the member."""

    gain: float  # of what sublayers write
    positions: int  # tokens of the recorded run
    config: dict[str, Any]
    layers: tuple[int, ...] = field(default=())  # recorded ones; empty: all


RECIPES = {
    # Window full at 127 and wrapped twice, dense rows at 127 and 255, 75 rows to pick 20 from; the
    # clamp of the experts is tight enough to bite.
    "a": Recipe(0.3, 300, {
        **_A, "n_layers": 6, "compress_ratios": [0, 0, 4, 128, 4, 128], "num_hash_layers": 1,
        "swiglu_limit": 1.5,
    }),
    # Every size differs from every other, and constants are not the usual ones.
    "b": Recipe(0.3, 140, {
        "n_layers": 4, "compress_ratios": [0, 4, 128, 4], "num_hash_layers": 2, "hidden": 96,
        "vocab": 320, "n_heads": 6, "head_dim": 192, "qk_rope_head_dim": 64, "q_lora_rank": 64,
        "o_groups": 3, "o_lora_rank": 32, "sliding_window": 128, "index_n_heads": 2,
        "index_head_dim": 64, "index_topk": 8, "n_routed_experts": 12, "num_experts_per_tok": 3,
        "moe_intermediate_size": 64, "routed_scaling_factor": 2.5, "hc_sinkhorn_iters": 7,
        "rms_norm_eps": 1e-5, "specials": SPECIALS,
    }),
    # As deep as the published model.
    "c": Recipe(0.03, 300, {
        **_A, "n_layers": 43, "compress_ratios": [0, 0] + [4, 128] * 20 + [4],
        "num_hash_layers": 3, "index_n_heads": 2,
    }, (0, 1, 2, 3, 21, 42)),
}  # fmt: skip

State = dict[str, NDArray[Any]]


def random_state(recipe: Recipe, config: Dsv4Config, seed: int) -> State:
    """Tensors under the names of the `.bin`; experts hold values that MXFP4 represents exactly."""
    rng = np.random.default_rng(seed)
    tensors = sorted(dsv4_tensors(config), key=lambda t: t.expert)  # experts last, order kept
    return {t.name: _draw(t, recipe.gain, config, rng) for t in tensors}


def _draw(t: Tensor, gain: float, c: Dsv4Config, rng: np.random.Generator) -> NDArray[Any]:
    name = t.name
    if t.integer:
        order = rng.random((t.dims[0], c.n_routed_experts)).argsort(axis=1)
        return order[:, : t.dims[1]].astype(np.int32)
    if name.startswith("hc_head_scale") or (".hc_" in name and name.endswith("_scale")):
        values = [HEAD_SCALE] if t.dims == (1,) else HC_SCALES
        return np.array(values, np.float32)
    offset, size = 0.0, 1.0
    if "norm" in name:
        offset, size = 1.0, 0.1
    elif name.endswith(("_base", ".ape")):
        size = 0.5
    elif name.endswith("gate.bias"):
        size = 0.3
    elif name.endswith("gate.weight"):
        size = 2 / math.sqrt(t.dims[1])  # wide gaps between scores
    elif name != "embed.weight" and len(t.dims) == 2:
        size = 1 / math.sqrt(t.dims[1])
        if name.endswith(("wo_b.weight", ".w2", ".w2.weight")):
            size *= gain
    values = (offset + size * rng.standard_normal(t.dims)).astype(np.float32)
    if t.expert:
        return mxfp4.decode(mxfp4.encode(values, search=False), *t.dims)
    return values


def write_model(path: Path, config: Dsv4Config, state: State) -> None:
    kinds = {True: DType.MXFP4, False: DType.F32}
    tensors = list(dsv4_tensors(config))
    specs = [Spec(t.name, DType.I32 if t.integer else kinds[t.expert], t.dims) for t in tensors]
    with MkimWriter(path, config.to_json(), specs) as writer:
        for t in tensors:
            if t.expert:
                writer.write_blob(t.name, mxfp4.encode(state[t.name], search=False))
            else:
                writer.write(t.name, state[t.name])
        writer.commit()


def as_model(config: Dsv4Config, state: State) -> Dsv4Model:
    """The same weights in the f32 model."""
    model = Dsv4Model(config).eval()
    target = dict(model.state_dict())
    stacks: dict[str, list[NDArray[Any]]] = {}
    for t in dsv4_tensors(config):
        if t.expert:
            stacks.setdefault(stack_of(t.name), []).append(state[t.name])
        else:
            target[t.name].copy_(torch.from_numpy(state[t.name]))
    for name, members in stacks.items():
        target[name].copy_(torch.from_numpy(np.stack(members)))
    return model


def token_ids(recipe: Recipe, config: Dsv4Config, seed: int) -> list[int]:
    """The begin mark, then uniform ids that are no specials."""
    rng = np.random.default_rng([seed, 1])
    return [0, *rng.integers(3, config.vocab, recipe.positions - 1).tolist()]
