"""A model for evaluation from a checkpoint directory, a run directory or a `.bin` file."""

from __future__ import annotations

from pathlib import Path

import torch

from nano import checkpoint
from nano.bin2pt import read_state
from nano.bpe import Tokenizer, load_tokenizer
from nano.dsv4.tokenizer import SUFFIX
from nano.dsv4.tokenizer import Tokenizer as Dsv4Tokenizer
from nano.mkim import MkimFile
from nano.models import Model, build_model


def load_model(path: Path, averaged: bool = True) -> Model:
    """Evaluation-ready model; `averaged` takes the averaged weights of a checkpoint, if any."""
    if path.is_dir():
        source = checkpoint.open_checkpoint(path)
        model = build_model(source.config)
        state = (source.ema() if averaged else None) or source.model()
        checkpoint.load_into(dict(model.state_dict()), state, str(path))
        return model.eval()
    with MkimFile(path) as source:
        model = build_model(source.model_config())
        state = {name: torch.from_numpy(t.copy()) for name, t in read_state(source).items()}
    target = dict(model.state_dict())
    state = {n: t.reshape(target[n].shape) if n in target else t for n, t in state.items()}
    checkpoint.load_into(target, state, str(path))
    return model.eval()


def tokenizer_beside(
    model: Path, vocab: Path | None, ranks: Path | None = None
) -> Tokenizer | Dsv4Tokenizer:
    """The given vocabulary, or `<stem>.vocab.json` or `<stem>.tokenizer.json` next to the model."""
    beside = [model.with_name(model.stem + suffix) for suffix in (".vocab.json", SUFFIX)]
    candidates = beside if vocab is None else [vocab]
    for path in candidates:
        if path.is_file():
            if path.name.endswith(SUFFIX):
                return Dsv4Tokenizer(path)
            return load_tokenizer(path, ranks)
    names = " or ".join(str(path) for path in candidates)
    raise FileNotFoundError(f"{names}: no vocabulary here (give --vocab)")
