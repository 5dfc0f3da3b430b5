"""Dimensions of a DeepSeek-V4 model: the keys of the `.bin` config block, checked.

In the file the sizes are in an object `ds`; `arch`, `vocab`, `n_layers`, `specials` and
`tokenizer` lie at the top.  Here everything is flat.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nano.config import MAX_LAYERS, MAX_SIZE, MXFP4_GROUP, ConfigError, coerce, require

ARCH = "deepseek_v4"
TOP_KEYS = ("vocab", "n_layers", "specials", "tokenizer", "format")
# Special ids of a vocabulary in the published layout: the file begins with these three tokens.
SPECIALS = {"bos": 0, "eos": 1, "end_of_msg": 1, "pad": 2}
OVERLAPPED = 4  # the ratio whose compressor overlaps groups and which has an indexer
# What a missing key of `ds` means in a file.
MISSING: dict[str, Any] = {
    "n_layers": 43, "hidden": 512, "vocab": 129280, "n_heads": 8, "head_dim": 128,
    "qk_rope_head_dim": 64, "q_lora_rank": 128, "o_lora_rank": 128, "o_groups": 8,
    "sliding_window": 128, "compress_ratios": [0, 0] + [4, 128] * 20 + [4, 0, 0, 0],
    "rope_theta": 10000.0, "compress_rope_theta": 160000.0, "index_n_heads": 8,
    "index_head_dim": 128, "index_topk": 64, "n_routed_experts": 256, "num_experts_per_tok": 6,
    "moe_intermediate_size": 128, "num_hash_layers": 3, "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0, "rms_norm_eps": 1e-6, "hc_mult": 4, "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6, "yarn_factor": 16.0, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0,
    "yarn_orig_seq_len": 65536, "max_seq_len": 4096, "act_qat": True,
}  # fmt: skip
# Keys that only some writers know; no warning without them.
OPTIONAL = (
    "hc_mult", "hc_sinkhorn_iters", "hc_eps", "yarn_factor", "yarn_beta_fast", "yarn_beta_slow",
    "yarn_orig_seq_len", "max_seq_len", "act_qat",
)


@dataclass
class Dsv4Config:
    """One model.  The defaults are the bundled story model's."""

    n_layers: int = 4
    hidden: int = 128
    vocab: int = 2048
    n_heads: int = 4
    head_dim: int = 80
    qk_rope_head_dim: int = 16
    q_lora_rank: int = 64
    o_lora_rank: int = 64
    o_groups: int = 2
    sliding_window: int = 64
    compress_ratios: list[int] = field(default_factory=lambda: [0, 4, 32, 4])
    rope_theta: float = 10000.0
    compress_rope_theta: float = 160000.0
    index_n_heads: int = 4
    index_head_dim: int = 32
    index_topk: int = 32
    n_routed_experts: int = 40
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 64
    num_hash_layers: int = 1
    routed_scaling_factor: float = 1.5
    swiglu_limit: float = 10.0
    rms_norm_eps: float = 1e-6
    hc_mult: int = 4
    hc_sinkhorn_iters: int = 20
    hc_eps: float = 1e-6
    yarn_factor: float = 16.0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_orig_seq_len: int = 65536
    max_seq_len: int = 4096
    act_qat: bool = True  # false: activation round trips are identities (for tests)
    specials: dict[str, int] = field(default_factory=lambda: dict(SPECIALS))
    format: int = 2
    tokenizer: str = ""
    # Keys this class does not know (digests, provenance): carried through unchanged.
    extra: dict[str, Any] = field(default_factory=dict)

    # -- derived -----------------------------------------------------------------------------

    @property
    def plain_width(self) -> int:
        """Leading elements of a row that carry no position."""
        return self.head_dim - self.qk_rope_head_dim

    def ratio(self, layer: int) -> int:
        """Tokens per compressed row; 0 = the layer has only its window."""
        return self.compress_ratios[layer] if layer < len(self.compress_ratios) else 0

    def is_hashed(self, layer: int) -> bool:
        return layer < self.num_hash_layers

    # -- JSON --------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The config block; `from_json` of it gives an equal config."""
        flat = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        extra = flat.pop("extra")
        top = {key: flat[key] for key in TOP_KEYS if key != "tokenizer" or self.tokenizer}
        ds = {k: v for k, v in flat.items() if k not in ("specials", "tokenizer", "format")}
        return {"arch": ARCH, **top, "ds": ds, **extra}

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
    ) -> Dsv4Config:
        """`defaults`: for keys that `ds` lacks; without them those of this class.

        Keys of `ds` may stand at the top as well; in `ds` they win.
        """
        flat: dict[str, Any] = dict(defaults or {})
        known = {f.name: f for f in dataclasses.fields(cls) if f.name != "extra"}
        extra: dict[str, Any] = {}
        inner = data.get("ds", {})
        if not isinstance(inner, Mapping):
            raise ConfigError("config key ds: must be an object")
        for key, value in data.items():
            if key in known:
                flat[key] = value
            elif key not in ("arch", "ds"):
                extra[key] = value
        for key, value in inner.items():
            if key in known:
                flat[key] = value
        args = {k: coerce(k, str(known[k].type), v) for k, v in flat.items() if v is not None}
        config = cls(**args, extra=extra)
        config.validate()
        return config

    # -- checks ------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raises ConfigError naming the first bad key."""
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and f.name != "num_hash_layers":
                require(1 <= value <= MAX_SIZE, f.name, f"must be in 1..{MAX_SIZE}, is {value}")
            if f.type == "float" and f.name != "swiglu_limit":
                require(math.isfinite(value) and value > 0, f.name, "must be finite and positive")
        require(math.isfinite(self.swiglu_limit), "swiglu_limit", "must be finite")
        require(self.n_layers <= MAX_LAYERS, "n_layers", f"must be at most {MAX_LAYERS}")
        require(self.num_hash_layers >= 0, "num_hash_layers", "must not be negative")
        for key in ("hidden", "moe_intermediate_size", "index_head_dim"):
            value = getattr(self, key)
            require(value % MXFP4_GROUP == 0, key, f"must be a multiple of {MXFP4_GROUP}")
        rope, index = self.qk_rope_head_dim, self.index_head_dim
        require(rope % 2 == 0, "qk_rope_head_dim", "must be even")
        require(rope <= self.head_dim, "qk_rope_head_dim", f"exceeds head_dim {self.head_dim}")
        require(index & (index - 1) == 0, "index_head_dim", "must be a power of two")
        require(rope <= index, "qk_rope_head_dim", f"exceeds index_head_dim {index}")
        require(self.n_heads % self.o_groups == 0, "o_groups", f"must divide {self.n_heads} heads")
        k, e = self.num_experts_per_tok, self.n_routed_experts
        require(k <= e, "num_experts_per_tok", f"exceeds n_routed_experts {e}")
        for ratio in self.compress_ratios:
            ok = ratio == 0 or 2 <= ratio <= MAX_SIZE
            require(ok, "compress_ratios", f"a ratio is 0 or at least 2, not {ratio}")
        for name, token in self.specials.items():
            inside = 0 <= token < self.vocab
            require(inside, f"specials.{name}", f"must be below vocab {self.vocab}")
