"""How much of a model is left when all its experts are shadows.

    python -m tests.bench.shadow_quality MODEL SHADOWS TEXT

Prints the mean negative log-likelihood per token of TEXT with the experts of the file and with the
shadows (`mk shadow`), the divergence between both, and how often their likeliest tokens agree. TEXT
is cut into pieces of 128 tokens.
"""

from __future__ import annotations

import argparse
import struct
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from nano.loading import load_model, tokenizer_beside
from nano.models import Model

PIECE = 128


def read_shadows(path: Path) -> tuple[list[int], NDArray[np.float32]]:
    """Layers, and weights [layers, experts, 3, groups, 16], of either format."""
    data = path.read_bytes()
    if data[:8] == b"MKSH0001":
        (n,) = struct.unpack_from("<I", data, 8)
        layers = struct.unpack_from(f"<{n}I", data, 12)
        experts, groups = struct.unpack_from("<II", data, 12 + 4 * n)
        stages, books, start = 1, 20 + 4 * n, 20 + 4 * n + 16384
    elif data[:8] == b"MKSH0002":
        n, experts, groups, stages = struct.unpack_from("<4I", data, 8)
        layers = struct.unpack_from(f"<{n}I", data, 128)
        books = -(-(128 + 4 * n) // 64) * 64
        start = -(-(books + stages * 16384 + 8 * n * experts) // 4096) * 4096
    else:
        raise SystemExit(f"{path}: no file of shadows")
    codebooks = np.frombuffer(data, "<f4", stages * 4096, books).reshape(stages, 256, 16)
    index = np.frombuffer(data, np.uint8, offset=start).reshape(n, experts, 3, groups, stages)
    weights = sum(codebooks[s][index[..., s]] for s in range(stages))
    return list(layers), np.asarray(weights, np.float32)


def put(model: Model, layers: list[int], weights: NDArray[np.float32]) -> None:
    """Replaces the experts of a model."""
    parameters = dict(model.named_parameters())
    for row, layer in enumerate(layers):
        for part in range(3):
            (name,) = (
                n for n in parameters
                if n.startswith(f"layers.{layer}.") and n.endswith(f".experts.w{part + 1}")
                and "shared" not in n
            )  # fmt: skip
            target = parameters[name]
            target.data.copy_(torch.from_numpy(weights[row, :, part]).view_as(target))


@torch.no_grad()
def log_probabilities(model: Model, tokens: Tensor) -> Tensor:
    return torch.cat([F.log_softmax(model(t), -1) for t in tokens[:, :-1].split(8)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "shadows", "text"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    model = load_model(args.model)
    ids = list(tokenizer_beside(args.model, None).encode(args.text.read_text()))
    bos = model.config.specials.get("bos", 0)
    count = min(len(ids) // PIECE, 64)
    tokens = torch.tensor([[bos, *ids[i * PIECE : (i + 1) * PIECE]] for i in range(count)])
    whole = log_probabilities(model, tokens)
    put(model, *read_shadows(args.shadows))
    shadow = log_probabilities(model, tokens)
    for name, values in (("experts", whole), ("shadows", shadow)):
        nll = -values.gather(-1, tokens[:, 1:, None]).mean().item()
        print(f"{name}  {nll:.4f} nats per token")
    divergence = (whole.exp() * (whole - shadow)).sum(-1).mean().item()
    agree = (whole.argmax(-1) == shadow.argmax(-1)).float().mean().item()
    print(f"divergence {divergence:.4f} nats, same likeliest token {100 * agree:.1f} %")


if __name__ == "__main__":
    main()
