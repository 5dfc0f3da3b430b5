"""What the tests of adapters and seams share: base model, data, arguments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nano.bin2pt import read_state
from nano.export import export
from nano.mkim import MkimFile
from nano.model import K3Model
from nano.stream import write_stream
from nano.tests.random_model import save_checkpoint, tiny_model


@pytest.fixture(scope="session")
def heal_base(tmp_path_factory) -> Path:
    """A random model with blocks of three layers, f32 spine, MXFP4 experts."""
    folder = tmp_path_factory.mktemp("base")
    export(save_checkpoint(folder / "run", tiny_model(11)), folder / "base.bin")
    return folder / "base.bin"


@pytest.fixture(scope="session")
def heal_data(tmp_path_factory) -> Path:
    """Documents that count upwards from a random start: easy to learn."""
    rng = np.random.default_rng(5)
    documents = []
    for _ in range(40):
        start = int(rng.integers(0, 200))
        documents.append([272, *range(start, start + 30), 273])
    prefix = tmp_path_factory.mktemp("data") / "train"
    write_stream(prefix, documents, {"vocab_size": 280, "bos": 272, "eos": 273})
    return prefix


def loaded(path: Path) -> K3Model:
    """A `.bin` as an ordinary model in memory."""
    with MkimFile(path) as f:
        model = K3Model(f.k3())
        state = read_state(f)
    model.load_state_dict({n: torch.from_numpy(v.copy()) for n, v in state.items()})
    return model.eval()


def tokens(vocab: int, n: int = 64) -> torch.Tensor:
    return torch.randint(0, vocab, (1, n), generator=torch.Generator().manual_seed(3))


def heal_args(base: Path, data: Path, out: Path, *more: str) -> list[str]:
    return [
        "--bin", str(base), "--data", str(data), "--out", str(out), "--rank", "4", "--seq", "64",
        "--batch", "2", "--lr", "1e-2", "--warmup", "2", "--log-every", "100", *more,
    ]
