"""The JSON config block of a `.bin` file: strict parsing and the defaults of missing keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from nano.config import K3Config
from nano.dsv4.config import ARCH as DSV4
from nano.dsv4.config import MISSING as DSV4_MISSING
from nano.dsv4.config import OPTIONAL as DSV4_OPTIONAL
from nano.dsv4.config import Dsv4Config

MAX_DEPTH = 16
# What a missing key means, and the whole configuration of an MKIM0001 file.
LEGACY: dict[str, Any] = {
    "n_layers": 93, "hidden": 512, "vocab": 163840, "n_experts": 896, "top_k": 16, "n_shared": 2,
    "kda_heads": 4, "kda_dim": 128, "kda_conv": 4, "kda_fa_rank": 128, "gate_lower_bound": -5.0,
    "mla_heads": 4, "mla_q_lora": 128, "mla_kv_lora": 64, "mla_nope": 128, "mla_rope": 64,
    "mla_v": 128, "routed_hidden": 128, "moe_inter": 64, "shared_inter": 128, "dense_inter": 2048,
    "attn_res_block": 12, "first_k_dense": 1, "rms_eps": 1e-5,
}  # fmt: skip
LEGACY_SPECIALS = {"bos": 163584, "end_of_msg": 163586}
K3_ARCHITECTURES = (None, "k3", "kimi_k3")


class ConfigBlockError(ValueError):
    """A config block that is not acceptable JSON or names something unknown."""


def parse_config(raw: bytes) -> dict[str, Any]:
    """The JSON object in `raw`; keys unique, numbers finite, at most 16 levels deep."""
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as err:
        raise ConfigBlockError(f"the config is not UTF-8 (byte {err.start})") from err
    except RecursionError as err:
        raise ConfigBlockError(f"the config is nested more than {MAX_DEPTH} deep") from err
    except ConfigBlockError:
        raise
    except ValueError as err:
        raise ConfigBlockError(f"the config is not JSON: {err}") from err
    if not isinstance(value, dict):
        raise ConfigBlockError("the config must be a JSON object")
    _check_value(value, "config", 1)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise ConfigBlockError(f"the config has the key {twice!r} twice")
    return out


def _refuse_constant(text: str) -> None:
    raise ConfigBlockError(f"the config holds {text}, which JSON does not have")


def _check_value(value: Any, where: str, depth: int) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigBlockError(f"{where} is too large a number")
    if not isinstance(value, (dict, list)):
        return
    if depth > MAX_DEPTH:
        raise ConfigBlockError(f"the config is nested more than {MAX_DEPTH} deep")
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        _check_value(item, f"{where}.{key}", depth + 1)


def render_config(config: Mapping[str, Any]) -> bytes:
    return json.dumps(config, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def is_k3(config: Mapping[str, Any]) -> bool:
    return config.get("arch") in K3_ARCHITECTURES


def is_dsv4(config: Mapping[str, Any]) -> bool:
    return config.get("arch") == DSV4


def dsv4_config(config: Mapping[str, Any], warnings: list[str]) -> Dsv4Config:
    """Typed config of a DeepSeek-V4 model, with the defaults of the format for missing keys."""
    inner = config.get("ds", config)
    missing = [key for key in DSV4_MISSING if key not in inner and key not in DSV4_OPTIONAL]
    if missing:
        warnings.append(f"config lacks {', '.join(missing)}; the format's defaults are used")
    if not config.get("specials"):
        raise ConfigBlockError("the config lacks specials")
    return Dsv4Config.from_json(config, DSV4_MISSING)


def k3_config(
    config: Mapping[str, Any], a_log_elements: int | None, warnings: list[str]
) -> K3Config:
    """Typed config of a K3 model, with the defaults of the format for missing keys.

    `a_log_elements`: values in an A_log tensor of the file, None without KDA layers; it decides
    between one decay rate per head and one per channel where the config does not say.
    """
    if not is_k3(config):
        raise ConfigBlockError(f"arch {config['arch']!r} is not a Kimi K3 model")
    if "seam" in config:
        raise ConfigBlockError("the model has a seam adapter, which would be left out here")
    given = {key: value for key, value in config.items() if key != "arch"}
    missing = [key for key in LEGACY if key not in given]
    if missing:
        warnings.append(f"config lacks {', '.join(missing)}; the defaults of MKIM0001 are used")
    full = {**LEGACY, **given}
    if not full.get("specials"):
        size = full["vocab"] if isinstance(full["vocab"], int) else 0  # refused below
        full["specials"] = {k: v for k, v in LEGACY_SPECIALS.items() if v < size}
    if "kda_a_log" not in full:
        full["kda_a_log"] = _a_log_reading(full, a_log_elements, warnings)
    return K3Config.from_json(full)


def _a_log_reading(full: Mapping[str, Any], elements: int | None, warnings: list[str]) -> str:
    heads, dim = full["kda_heads"], full["kda_dim"]
    if elements == heads and heads != dim:
        return "head"
    if heads == dim and elements is not None:
        warnings.append("A_log may be per head or per channel; read as per channel")
    return "channel"
