"""The two architectures behind one set of names: configs and the tensors they call for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nano.config import ConfigError, K3Config
from nano.dsv4.config import ARCH as DSV4
from nano.dsv4.config import Dsv4Config
from nano.dsv4.tensors import dsv4_tensors
from nano.tensors import Tensor, k3_tensors

Config = K3Config | Dsv4Config

CONFIGS: dict[str, type[K3Config] | type[Dsv4Config]] = {"k3": K3Config, "dsv4": Dsv4Config}


def config_from_json(data: Mapping[str, Any]) -> Config:
    """By the key `arch`; without it the config is of a K3 model."""
    return Dsv4Config.from_json(data) if data.get("arch") == DSV4 else K3Config.from_json(data)


def load_config(path: Path) -> Config:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise ConfigError(f"{path}: cannot read the config: {err}") from err
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: the config must be a JSON object")
    return config_from_json(data)


def model_tensors(config: Config) -> Iterator[Tensor]:
    """Every tensor that a model of this config must have, in the order of the exporter."""
    return dsv4_tensors(config) if isinstance(config, Dsv4Config) else k3_tensors(config)


def expert_count(config: Config) -> int:
    """Routed experts of a layer."""
    return config.n_routed_experts if isinstance(config, Dsv4Config) else config.n_experts
