"""Models of either architecture from their configs."""

from __future__ import annotations

import torch

from nano.arch import Config
from nano.dsv4.config import Dsv4Config
from nano.dsv4.model import Dsv4Model
from nano.dsv4.model import initialise as initialise_dsv4
from nano.model import K3Model
from nano.model import initialise as initialise_k3

Model = K3Model | Dsv4Model


def build_model(config: Config) -> Model:
    """A model whose parameters are not yet filled."""
    return Dsv4Model(config) if isinstance(config, Dsv4Config) else K3Model(config)


def initialise(model: Model, generator: torch.Generator) -> None:
    if isinstance(model, Dsv4Model):
        initialise_dsv4(model, generator)
    else:
        initialise_k3(model, generator)
