"""Model configuration: the keys of the `.bin` config block, checked.

One flat set of names is used everywhere (checkpoint, `.bin`, engine), so a config can travel
without translation.  Sizes are counts of elements; layer lists hold 0-based layer numbers.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SPECIAL_NAMES = ("bos", "eos", "open", "close", "sep", "end_of_msg", "unk", "pad")
MXFP4_GROUP = 32  # columns that share one scale
MAX_LAYERS = 4096
MAX_SIZE = 1 << 24  # no dimension of a real model comes near; catches typing errors


class ConfigError(ValueError):
    """A config value that no model can be built from; the message names the key."""


def default_specials(base: int) -> dict[str, int]:
    """The eight special ids directly behind a base vocabulary of `base` tokens."""
    return {name: base + i for i, name in enumerate(SPECIAL_NAMES)}


@dataclass
class K3Config:
    """Dimensions and constants of one K3 model.  The defaults are the bundled story model's."""

    n_layers: int = 8
    hidden: int = 160
    vocab: int = 2048
    n_experts: int = 48
    top_k: int = 4
    n_shared: int = 2
    kda_heads: int = 5
    kda_dim: int = 32
    kda_conv: int = 4
    kda_fa_rank: int = 32
    gate_lower_bound: float = -5.0
    mla_heads: int = 4
    mla_q_lora: int = 64
    mla_kv_lora: int = 32
    mla_nope: int = 32
    mla_rope: int = 32
    mla_v: int = 32
    routed_hidden: int = 64
    moe_inter: int = 64
    shared_inter: int = 64
    dense_inter: int = 448
    attn_res_block: int = 4
    first_k_dense: int = 1
    rms_eps: float = 1e-5
    mla_layers: list[int] | None = None
    dense_layers: list[int] | None = None
    kda_a_log: str = "head"  # "head": A_log is [kda_heads]; "channel": [kda_dim], shared by heads
    kda_l2: str = "max1e-12"  # q/k norm: u/max(|u|,1e-12), or "sum1e-6": u/sqrt(|u|^2+1e-6)
    situ_beta: float = 4.0
    situ_linear_beta: float = 25.0
    routed_scale: float = 1.0
    specials: dict[str, int] = field(default_factory=dict)
    format: int = 2
    tokenizer: str = ""
    # Keys this class does not know (audit records, provenance): carried through unchanged.
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        last = self.n_layers - 1
        if self.mla_layers is None:
            self.mla_layers = [i for i in range(self.n_layers) if i % 4 == 3 or i == last]
        if self.dense_layers is None:
            self.dense_layers = list(range(min(self.first_k_dense, self.n_layers)))
        if not self.specials:
            self.specials = default_specials(self.vocab - len(SPECIAL_NAMES))

    # -- derived -----------------------------------------------------------------------------

    @property
    def kda_width(self) -> int:
        """P: the KDA heads side by side."""
        return self.kda_heads * self.kda_dim

    @property
    def mla_qk(self) -> int:
        """Query/key size of one MLA head."""
        return self.mla_nope + self.mla_rope

    def is_mla(self, layer: int) -> bool:
        assert self.mla_layers is not None
        return layer in self.mla_layers

    def is_dense(self, layer: int) -> bool:
        assert self.dense_layers is not None
        return layer in self.dense_layers

    def a_log_size(self) -> int:
        return self.kda_heads if self.kda_a_log == "head" else self.kda_dim

    # -- JSON --------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Plain dict of `.bin` config keys; `from_json` of it gives an equal config."""
        out = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        extra = out.pop("extra")
        if not out["tokenizer"]:
            del out["tokenizer"]
        return {**out, **extra}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> K3Config:
        """Builds and validates.  Unknown keys are kept in `extra`."""
        if data.get("arch") not in (None, "k3", "kimi_k3"):
            raise ConfigError(f"arch: {data['arch']!r} is not a Kimi K3 model")
        known = {f.name: f for f in dataclasses.fields(cls) if f.name != "extra"}
        args: dict[str, Any] = {}
        extra: dict[str, Any] = {}
        for key, value in data.items():
            if key not in known:
                extra[key] = value
            elif value is not None:
                args[key] = coerce(key, str(known[key].type), value)
        config = cls(**args, extra=extra)
        config.validate()
        return config

    @classmethod
    def load(cls, path: Path) -> K3Config:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as err:
            raise ConfigError(f"{path}: cannot read the config: {err}") from err
        if not isinstance(data, dict):
            raise ConfigError(f"{path}: the config must be a JSON object")
        return cls.from_json(data)

    # -- checks ------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raises ConfigError naming the first bad key."""
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if f.type == "int" and f.name not in ("first_k_dense", "mla_rope"):
                require(1 <= value <= MAX_SIZE, f.name, f"must be in 1..{MAX_SIZE}, is {value}")
        require(self.n_layers <= MAX_LAYERS, "n_layers", f"must be at most {MAX_LAYERS}")
        require(0 <= self.mla_rope <= MAX_SIZE, "mla_rope", "must not be negative")
        require(self.first_k_dense >= 0, "first_k_dense", "must not be negative")
        require(self.top_k <= self.n_experts, "top_k", f"exceeds n_experts {self.n_experts}")
        require(2 <= self.kda_conv <= 16, "kda_conv", "must be in 2..16")
        for key in ("routed_hidden", "moe_inter", "hidden", "mla_nope", "mla_v"):
            value = getattr(self, key)
            require(value % MXFP4_GROUP == 0, key, f"must be a multiple of {MXFP4_GROUP}")
        for key in ("rms_eps", "situ_beta", "situ_linear_beta", "routed_scale"):
            value = getattr(self, key)
            require(math.isfinite(value) and value > 0, key, "must be finite and positive")
        bound = self.gate_lower_bound
        require(math.isfinite(bound) and bound < 0, "gate_lower_bound", "must be negative")
        require(self.kda_a_log in ("head", "channel"), "kda_a_log", 'must be "head" or "channel"')
        require(self.kda_l2 in ("max1e-12", "sum1e-6"), "kda_l2", 'is "max1e-12" or "sum1e-6"')
        for key in ("mla_layers", "dense_layers"):
            self._check_layer_list(key)
        self._check_specials()

    def _check_layer_list(self, key: str) -> None:
        layers = getattr(self, key)
        require(layers == sorted(set(layers)), key, "must be ascending without repeats")
        inside = all(0 <= layer < self.n_layers for layer in layers)
        require(inside, key, f"must lie below n_layers {self.n_layers}")

    def _check_specials(self) -> None:
        for name, token in self.specials.items():
            inside = 0 <= token < self.vocab
            require(inside, f"specials.{name}", f"must be below vocab {self.vocab}")
        distinct = len(set(self.specials.values())) == len(self.specials)
        require(distinct, "specials", "two names share one id")


def require(ok: bool, key: str, what: str) -> None:
    """ConfigError about `key` unless `ok`."""
    if not ok:
        raise ConfigError(f"config key {key}: {what}")


def coerce(key: str, kind: str, value: Any) -> Any:
    """JSON value to the type of a config field; numbers must be exact, nothing is guessed."""
    if kind == "int":
        return _integer(key, value)
    if kind == "float":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"config key {key}: must be a number, is {value!r}")
        return float(value)
    if kind == "bool":
        if not isinstance(value, bool):
            raise ConfigError(f"config key {key}: must be true or false, is {value!r}")
        return value
    if kind == "str":
        if not isinstance(value, str):
            raise ConfigError(f"config key {key}: must be a string, is {value!r}")
        return value
    if kind.startswith("list"):
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"config key {key}: must be a list of integers")
        return [_integer(key, item) for item in value]
    if not isinstance(value, Mapping):
        raise ConfigError(f"config key {key}: must be an object")
    return {str(name): _integer(f"{key}.{name}", item) for name, item in value.items()}


def _integer(key: str, value: Any) -> int:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value != int(value):
        raise ConfigError(f"config key {key}: must be an integer, is {value!r}")
    return int(value)
