"""Low-rank adapters on frozen weights: W + (alpha / r) B A, exactly W at the start.

A [r, in] is Kaiming uniform, B [out, r] zero.  An adapter is named by the tensor of the `.bin` that
it corrects; its trained tensors are `<name>.lora_A` and `<name>.lora_B`.  Gains (norms) that train
along are kept whole, under their own name.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nano.config import K3Config
from nano.model import K3Model
from nano.packed import SpineWeight, spine_weights

A, B = ".lora_A", ".lora_B"
_MLA_IN = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
# Which projections a target name stands for, KDA and MLA layers together.
ATTENTION = {
    "q": ("q_proj", "q_a_proj", "q_b_proj"),
    "k": ("k_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
    "v": ("v_proj", "kv_a_proj_with_mqa", "kv_b_proj"),
    "o": ("o_proj",),
    "attn": ("q_proj", "k_proj", "v_proj", "o_proj", *_MLA_IN),
    "g": ("g_proj",),
    "f": ("f_a_proj", "f_b_proj"),
}
FEED_FORWARD = {
    "shared": ("shared_experts.gate_proj", "shared_experts.up_proj", "shared_experts.down_proj"),
    "latent": ("routed_expert_down_proj", "routed_expert_up_proj"),
    "dense": ("gate_proj", "up_proj", "down_proj"),
}
FOLDERS = {"shared": "block_sparse_moe", "latent": "block_sparse_moe", "dense": "mlp"}
TARGETS = (*ATTENTION, *FEED_FORWARD)
NORMS = ("none", "final", "all")
FINAL_NORMS = ("norm.weight", "output_attn_res_norm.weight")


class LoraError(ValueError):
    """An adapter description that does not fit the model."""


@dataclass(frozen=True)
class LoraSpec:
    rank: int = 8
    alpha: float | None = None  # None: the rank, so that the factor is 1
    targets: tuple[str, ...] = ("attn",)
    layers: tuple[int, ...] | None = None  # None: all
    norms: str = "none"  # gains that train along: none, final, all

    @property
    def factor(self) -> float:
        return (self.rank if self.alpha is None else self.alpha) / self.rank

    def check(self, config: K3Config) -> None:
        if self.rank < 1 or not math.isfinite(self.factor) or self.factor == 0:
            raise LoraError(f"rank {self.rank} with alpha {self.alpha} is not an adapter")
        unknown = [t for t in self.targets if t not in TARGETS]
        if unknown or not self.targets:
            raise LoraError(f"targets {unknown or '(none)'}: choose from {', '.join(TARGETS)}")
        if self.norms not in NORMS:
            raise LoraError(f"norms {self.norms!r}: choose from {', '.join(NORMS)}")
        outside = [n for n in self.layers or () if not 0 <= n < config.n_layers]
        if outside:
            raise LoraError(f"layer {outside[0]}: the model has layers 0..{config.n_layers - 1}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LoraSpec:
        try:
            layers = data["layers"]
            return cls(int(data["rank"]), data["alpha"], tuple(data["targets"]),
                       None if layers is None else tuple(layers), str(data["norms"]))
        except (KeyError, TypeError, ValueError) as err:
            raise LoraError(f"not an adapter description: {err!r}") from err


def parse_layers(text: str) -> tuple[int, ...]:
    """Layer numbers from e.g. "3", "19-21" or "0,2,5-7"."""
    out: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise LoraError(f"layers {text!r}: give numbers and ranges such as 0,2,5-7")
        if last > 1 << 16:
            raise LoraError(f"layers {text!r}: no model has that many layers")
        out.update(range(first, last + 1))
    return tuple(sorted(out))


class Adapter(nn.Module):
    """The pair A, B; called with the frozen weight it returns the corrected one."""

    def __init__(self, shape: tuple[int, int], rank: int, factor: float,
                 device: torch.device, generator: torch.Generator) -> None:
        super().__init__()
        rows, cols = shape
        a = torch.empty(rank, cols)
        bound = 1 / math.sqrt(cols)  # Kaiming uniform with a = sqrt(5)
        a.uniform_(-bound, bound, generator=generator)
        self.a = nn.Parameter(a.to(device))
        self.b = nn.Parameter(torch.zeros(rows, rank, device=device))
        self.factor = factor

    def forward(self, weight: Tensor) -> Tensor:
        return torch.addmm(weight, self.b, self.a, alpha=self.factor)


def target_names(spec: LoraSpec, weights: dict[str, SpineWeight]) -> list[str]:
    """Names of the matrices that get an adapter, in the order of the model."""
    wanted = set()
    for target in spec.targets:
        folder = FOLDERS.get(target, "self_attn")
        wanted |= {f"{folder}.{n}.weight" for n in (ATTENTION | FEED_FORWARD)[target]}
    return [n for n in weights if _within(spec, n) and n.split(".", 2)[-1] in wanted]


def norm_names(spec: LoraSpec, weights: dict[str, SpineWeight]) -> list[str]:
    if spec.norms == "final":
        return [n for n in FINAL_NORMS if n in weights]
    if spec.norms == "none":
        return []
    return [n for n in weights if "norm" in n and (n in FINAL_NORMS or _within(spec, n))]


def _within(spec: LoraSpec, name: str) -> bool:
    parts = name.split(".")
    if parts[0] != "layers":
        return False
    return spec.layers is None or int(parts[1]) in spec.layers


def attach(model: K3Model, spec: LoraSpec, seed: int) -> dict[str, nn.Parameter]:
    """Puts adapters and trainable gains on a packed model; returns the parameters by name."""
    spec.check(model.config)
    weights = spine_weights(model)
    generator = torch.Generator().manual_seed(seed)
    trainable: dict[str, nn.Parameter] = {}
    for name in target_names(spec, weights):
        holder = weights[name]
        if holder.base.dtype != torch.float32:
            raise LoraError(
                f"{name} is stored in bf16; a merged correction would be rounded away. "
                "Heal a model that was exported with --spine f32"
            )
        rows, cols = holder.base.shape
        adapter = Adapter((rows, cols), spec.rank, spec.factor, holder.device, generator)
        holder.adapter = adapter
        trainable[name + A], trainable[name + B] = adapter.a, adapter.b
    for name in norm_names(spec, weights):
        holder = weights[name]
        holder.trained = nn.Parameter(holder.weight.detach().clone())
        trainable[name] = holder.trained
    if not trainable:
        raise LoraError("nothing would train: the chosen layers have none of the targets")
    return trainable


def correction(a: Tensor, b: Tensor, factor: float) -> Tensor:
    """(alpha / r) B A in f64."""
    return factor * (b.double() @ a.double())
